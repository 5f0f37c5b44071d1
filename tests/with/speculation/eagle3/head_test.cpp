// EAGLE-3 heads on the CPU: speculators' logits of pairs and a plain torch loop's drafts, in every
// form of files; pairs in pieces and together; steps whose drafts were refused leave no trace.

#include "nanovllm/with/speculation/eagle3/head.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "with/speculation/eagle3/head_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct Distance {
  double largest = 0, mean = 0;
};

Distance distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  Distance out;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double{a[i]} - double{b[i]});
    out.largest = std::max(out.largest, d);
    out.mean += d / static_cast<double>(a.size());
  }
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Drafts after all pairs, and their logits.
template <Element T>
std::vector<TokenId> chain(HeadRig<T>& rig, OneSequence& sequence, std::vector<float>& logits) {
  const auto n = static_cast<std::int32_t>(rig.expected.tokens.size());
  std::vector<float> rows = rig.pairs(sequence, 0, n, true);
  std::vector<TokenId> out;
  for (std::size_t i = 0; i < rig.expected.drafts.size(); ++i) {
    logits.insert(logits.end(), rows.begin(), rows.end());
    out.push_back(rig.likeliest(rows)[0]);
    // A row that is wrong is seen in its own logits, and not in all that follow.
    const TokenId next = rig.expected.drafts[i];
    if (i + 1 < rig.expected.drafts.size())
      rows = rig.step(sequence.batch({next}, n + static_cast<std::int32_t>(i)));
  }
  return out;
}

/// Both rows of decodes of two sequences, in one batch.
struct TwoDecodes {
  TwoDecodes(const ForwardBatch& a, const ForwardBatch& b) {
    const std::array both{a, b};
    const std::int64_t width = a.block_tables.extent(1);
    for (std::size_t i = 0; i < 2; ++i) {
      tokens[i] = both[i].tokens.data[0];
      positions[i] = both[i].positions.data[0];
      slots[i] = both[i].slots.data[0];
      kv_lens[i] = both[i].kv_lens.data[0];
      tables.insert(tables.end(), both[i].block_tables.data, both[i].block_tables.data + width);
    }
    batch = a;
    batch.num_decodes = 2;
    batch.tokens = {tokens.data(), {2}};
    batch.positions = {positions.data(), {2}};
    batch.slots = {slots.data(), {2}};
    batch.kv_lens = {kv_lens.data(), {2}};
    batch.block_tables = {tables.data(), {2, width}};
    batch.logit_rows = {nullptr, {2}};
  }
  ForwardBatch batch;

 private:
  std::array<TokenId, 2> tokens{};
  std::array<std::int32_t, 2> positions{}, kv_lens{};
  std::array<Slot, 2> slots{};
  std::vector<BlockId> tables;
};

}  // namespace

TEST_CASE("a head gives speculators' logits of pairs and a plain loop's drafts",
          "[eagle3][parity]") {
  for (const char* name : kHeads) {
    INFO(name);
    HeadRig<float> rig(name);
    OneSequence sequence(4);
    const auto n = static_cast<std::int64_t>(rig.expected.tokens.size());
    CHECK(distance(rig.pairs(sequence, 0, n), rig.expected.logits).largest < 2e-4);
    std::vector<float> logits;
    CHECK(chain(rig, sequence, logits) == rig.expected.drafts);
    CHECK(distance(logits, rig.expected.chain_logits).largest < 2e-4);
  }
}

TEST_CASE("a head in bfloat16 is as far from float32 as its rounding", "[eagle3][parity]") {
  for (const char* name : kHeads) {
    INFO(name);
    HeadRig<bf16> rig(name);
    OneSequence sequence(4);
    std::vector<float> logits;
    chain(rig, sequence, logits);
    double size = 0;
    for (const float x : rig.expected.chain_logits)
      size += std::abs(double{x}) / static_cast<double>(logits.size());
    const double mean = distance(logits, rig.expected.chain_logits).mean;
    CHECK(mean > 0);
    CHECK(mean < 0.02 * size);
  }
}

TEST_CASE("pairs in pieces have the bits of pairs together", "[eagle3][laws]") {
  for (const char* name : kHeads) {
    INFO(name);
    HeadRig<float> whole(name), pieces(name);
    OneSequence one(4), other(5);  // in other blocks
    const std::vector<float> expected = whole.pairs(one, 0, 37);
    std::vector<float> got;
    for (const auto& [begin, count] :
         std::vector<std::pair<int, int>>{{0, 5}, {5, 1}, {6, 16}, {22, 1}, {23, 14}}) {
      const std::vector<float> rows = pieces.pairs(other, begin, count);
      got.insert(got.end(), rows.begin(), rows.end());
    }
    CHECK(same_bits(got, expected));
  }
}

TEST_CASE("pairs with true streams replace what refused drafts have stored", "[eagle3][laws]") {
  for (const char* name : kHeads) {
    INFO(name);
    HeadRig<float> plain(name), drafting(name);
    OneSequence a(4), b(4);
    const std::vector<float> first = plain.pairs(a, 0, 20);
    REQUIRE(same_bits(drafting.pairs(b, 0, 20), first));
    // Three drafts, of which the target takes the first.
    for (std::int32_t i = 0; i < 3; ++i) {
      static_cast<void>(drafting.step(b.batch({static_cast<TokenId>(7 * i)}, 20 + i)));
    }
    CHECK(same_bits(drafting.pairs(b, 20, 2), plain.pairs(a, 20, 2)));
    CHECK(same_bits(drafting.pairs(b, 22, 15), plain.pairs(a, 22, 15)));
  }
}

TEST_CASE("drafts of two sequences together are those of each alone", "[eagle3][laws]") {
  for (const char* name : kHeads) {
    INFO(name);
    HeadRig<float> alone(name), together(name);
    OneSequence long_one(4), short_one(4), left(3), right(6);
    // Of the second sequence the blocks are 6 … 1: those of the first are its last three.
    static_cast<void>(alone.pairs(long_one, 0, 30, true));
    const std::vector<float> expected_long = alone.step(long_one.batch({5}, 30));
    const std::vector<float> expected_longer = alone.step(long_one.batch({6}, 31));
    static_cast<void>(alone.pairs(short_one, 0, 9, true));
    const std::vector<float> expected_short = alone.step(short_one.batch({8}, 9));

    // Each needs its last output: both are computed in one call, as decodes.
    static_cast<void>(together.pairs(left, 0, 29));
    static_cast<void>(together.pairs(right, 0, 8));
    std::vector<float> rows = together.streams(29, 1);
    const std::vector<float> second = together.streams(8, 1);
    rows.insert(rows.end(), second.begin(), second.end());
    const TokenId t29 = together.expected.tokens[29], t8 = together.expected.tokens[8];
    const TwoDecodes last(left.batch({t29}, 29), right.batch({t8}, 8));
    static_cast<void>(together.forward(rows, last.batch));
    const TwoDecodes step(left.batch({5}, 30), right.batch({8}, 9));
    std::vector<float> both = expected_long;
    both.insert(both.end(), expected_short.begin(), expected_short.end());
    CHECK(same_bits(together.step(step.batch), both));
    // The second one ends; the first goes on.
    CHECK(same_bits(together.step(left.batch({6}, 31)), expected_longer));
    CHECK_THROWS_WITH(together.step(step.batch),
                      Catch::Matchers::Contains("the last call kept 1 outputs, a step wants 2"));
  }
}

TEST_CASE("likeliest tokens are the target's, the lowest of the draft's among equals", "[eagle3]") {
  HeadRig<float> mapped("angelslim"), same("speculators_qwen3");
  const auto row = [](std::int64_t vocab, std::size_t best) {
    std::vector<float> out(static_cast<std::size_t>(vocab), -1.f);
    out[best] = out.back() = 2.f;
    return out;
  };
  REQUIRE(mapped.config.target_ids.size() == 33);
  std::vector<float> logits = row(33, 4);
  const std::vector<float> other = row(33, 20);
  logits.insert(logits.end(), other.begin(), other.end());
  CHECK(mapped.likeliest(logits) ==
        std::vector{mapped.config.target_ids[4], mapped.config.target_ids[20]});
  CHECK(mapped.config.target_ids[20] != 20);
  CHECK(same.config.target_ids.empty());
  CHECK(same.likeliest(row(61, 20)) == std::vector<TokenId>{20});
}

TEST_CASE("calls of a head that do not fit are refused", "[eagle3][errors]") {
  HeadRig<float> rig("angelslim");
  OneSequence sequence(4);
  const ForwardBatch batch = sequence.batch({1, 2, 3}, 0);
  std::vector<float> logits(3 * 33), streams(3 * 48);
  CHECK_THROWS_WITH(rig.head.forward({streams.data(), {3, 48}}, batch, rig.target,
                                     rig.pool.layer(0), rig.logits_of(logits)),
                    Catch::Matchers::Contains("'streams' must have shape [3, 72], got [3, 48]"));
  CHECK_THROWS_WITH(rig.step(batch), Catch::Matchers::Contains("kept 0 outputs"));
  OneSequence longest(7);  // of the positions in limits the last is 95
  CHECK_NOTHROW(rig.forward(rig.streams(0, 3), longest.batch({1, 2, 3}, 93)));
  CHECK_THROWS_AS(rig.forward(rig.streams(0, 3), longest.batch({1, 2, 3}, 94)), ShapeError);
}
