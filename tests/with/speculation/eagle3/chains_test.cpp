// EAGLE-3 drafts for the sequences of a target's steps: those of a plain torch loop; the target's
// tokens are those without drafts, and every draft is what a head that begins anew with all pairs
// drafts: on one rank and on two, for prompts in chunks, and with guesses that are right, wrong and
// partly right.

#include "nanovllm/with/speculation/eagle3/chains.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "model/one_sequence.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/parallel/thread_group.hpp"
#include "with/speculation/eagle3/chains_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

constexpr std::int64_t kVocab = 61, kLayers = 6;
constexpr std::int32_t kBlocks = 32, kMaxDrafts = 20;
constexpr StepLimits kLimits{
    .max_num_batched_tokens = 160, .max_num_seqs = 48, .max_model_len = 96};

using Target = Qwen3Network<shapes::qwen3_any, Elements<float>, CpuBackend, ThreadGroup>;
using Head = Eagle3Head<Elements<float>, CpuBackend>;
using Chains = Eagle3Chains<Elements<float>, CpuBackend>;

/// One rank of a target with random weights.
struct TargetRig {
  explicit TargetRig(ThreadGroup end, bool tied = true)
      : comm(std::move(end)),
        network(Qwen3Config::from_json(
                    R"({"model_type": "qwen3", "hidden_size": 24, "num_hidden_layers": 6,
                        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
                        "intermediate_size": 40, "vocab_size": 61, "max_position_embeddings": 96,
                        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": )" +
                    std::string(tied ? "true}" : "false}")),
                kLimits, backend, comm),
        pool({kLayers, network.num_kv_heads(), network.head_dim(), 16, sizeof(float)}, kBlocks) {
    network.weights().randomize(11, backend, 0.4f);
  }

  /// The likeliest token after each of `tokens`.
  std::vector<TokenId> run(OneSequence& sequence, const std::vector<TokenId>& tokens,
                           std::int32_t begin) {
    const ForwardBatch batch = sequence.batch(tokens, begin);
    const std::int64_t width = network.padded_vocab_size();
    std::vector<float> logits(tokens.size() * static_cast<std::size_t>(width));
    network.forward(batch, pool, MatrixView<float>(logits.data(), {std::ssize(tokens), width}));
    std::vector<TokenId> out;
    for (auto row = logits.begin(); row != logits.end(); row += width)
      out.push_back(static_cast<TokenId>(std::max_element(row, row + kVocab) - row));
    return out;
  }

  CpuBackend backend{BackendConfig{.num_threads = 1}};
  ThreadGroup comm;
  Target network;
  KvPool<float, CpuBackend::Buffer<float>> pool;
};

std::vector<TokenId> prompt_of(std::size_t i) {
  std::vector<TokenId> out;
  for (std::size_t j = 0; j < 3 + 14 * i; ++j)
    out.push_back(static_cast<TokenId>((7 * i + 11 * j * j + 3 * j + 5) % kVocab));
  return out;
}

/// Greedy tokens after `prompt`, one at a time.
std::vector<TokenId> plain_tokens(TargetRig& rig, const std::vector<TokenId>& prompt,
                                  std::size_t count) {
  OneSequence sequence(6);
  std::vector<TokenId> out{rig.run(sequence, prompt, 0).back()};
  while (out.size() < count)
    out.push_back(rig.run(sequence, {out.back()},
                          static_cast<std::int32_t>(prompt.size() + out.size()) - 1)[0]);
  return out;
}

struct Drafting {
  std::vector<TokenId> tokens, expected;  // prompt and output; what it must become
  std::size_t num_prompt = 0, num_computed = 0;
  OneSequence blocks;
  std::vector<TokenId> guesses{};
  std::vector<float> history{};  // streams of all computed tokens that are in `tokens`
};

/// What happens in one engine's rank: rounds of steps, each with rows of all sequences.
struct Rounds {
  Rounds(const std::string& head_name, ThreadGroup end, bool tied)
      : files("tests/fixtures/eagle3/" + head_name),
        target(std::move(end), tied),
        config(Eagle3Config::load(files)),
        head(config, {24, kLayers, kVocab}, kLimits, target.backend),
        anew(config, {24, kLayers, kVocab}, kLimits, target.backend),
        chains(head, target.backend, kLimits, 16, kBlocks, kMaxDrafts) {
    head.weights().load(files, target.backend);
    anew.weights().load(files, target.backend);
    for (std::size_t i = 0; i < 4; ++i) {
      Drafting one{.tokens = prompt_of(i),
                   .expected = {},

                   .blocks = OneSequence(6, static_cast<BlockId>(1 + 7 * i))};
      one.num_prompt = one.tokens.size();
      one.expected = one.tokens;
      const std::vector<TokenId> output = plain_tokens(target, one.tokens, 50);
      one.expected.insert(one.expected.end(), output.begin(), output.end());
      sequences.push_back(std::move(one));
    }
    target.network.taps().open(head.stream_layers(), kLayers);
  }

  /// A step's rows of one sequence, a chunk of at most 9 tokens of a prompt or a token and guesses.
  Eagle3Request step(Drafting& one, std::vector<float>& streams, std::int32_t num_drafts) {
    std::vector<TokenId> rows(one.tokens.begin() + static_cast<std::ptrdiff_t>(one.num_computed),
                              one.tokens.end());
    if (rows.size() > 9) rows.resize(9);
    const std::size_t num_known = rows.size();
    const bool is_last = one.num_computed + num_known == one.tokens.size();
    if (is_last) rows.insert(rows.end(), one.guesses.begin(), one.guesses.end());
    const auto begin = static_cast<std::int32_t>(one.num_computed);
    const auto width = static_cast<std::size_t>(head.streams_width());
    Eagle3Request out{.first_row = static_cast<std::int32_t>(streams.size() / width),
                      .begin = begin};
    const std::vector<TokenId> drawn = target.run(one.blocks, rows, begin);
    const auto kept = target.network.taps().rows(std::ssize(rows));
    streams.insert(streams.end(), kept.data, kept.data + kept.size());
    std::size_t count = num_known;
    if (is_last) {
      one.tokens.push_back(drawn[num_known - 1]);
      for (; count < rows.size() && rows[count] == one.tokens.back(); ++count)
        one.tokens.push_back(drawn[count]);
      num_accepted += count - num_known;
      num_refused += rows.size() - count;
    }
    one.history.insert(one.history.end(), kept.data, kept.data + count * width);
    one.num_computed += count;
    out.blocks = one.blocks.blocks(one.num_computed);
    out.num_drafts = is_last ? num_drafts : 0;
    num_rows_.push_back(count);
    return out;
  }

  /// Drafts of a head that has not seen the sequence.
  std::vector<TokenId> drafts_anew(const Drafting& one, std::int32_t count) {
    Chains fresh(anew, target.backend, kLimits, 16, kBlocks, kMaxDrafts);
    const Eagle3Request all{.next = std::span(one.tokens).subspan(1),
                            .blocks = one.blocks.blocks(one.num_computed),
                            .num_drafts = count};
    std::vector<std::vector<TokenId>> out;
    fresh.draft({one.history.data(), {std::ssize(all.next), head.streams_width()}}, {&all, 1},
                target.network, out);
    return out[0];
  }

  /// Returns all drafts.
  std::vector<TokenId> run() {
    std::vector<TokenId> drafted;
    for (std::size_t round = 0; round < 24; ++round) {
      std::vector<float> streams;
      std::vector<Eagle3Request> requests;
      std::vector<Drafting*> running;
      num_rows_.clear();
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        Drafting& one = sequences[i];
        if (one.tokens.size() + kMaxDrafts + 2 > one.expected.size()) continue;
        // Now and then so many that all of them need blocks that they do not have yet.
        const auto num_drafts =
            round % 3 == 2 ? kMaxDrafts : static_cast<std::int32_t>((5 * round + 3 * i) % 8);
        requests.push_back(step(one, streams, num_drafts));
        running.push_back(&one);
      }
      for (std::size_t i = 0; i < running.size(); ++i)
        requests[i].next =
            std::span(running[i]->tokens)
                .subspan(static_cast<std::size_t>(requests[i].begin) + 1, num_rows_[i]);
      std::vector<std::vector<TokenId>> drafts;
      chains.draft(
          {streams.data(), {std::ssize(streams) / head.streams_width(), head.streams_width()}},
          requests, target.network, drafts);
      for (std::size_t i = 0; i < running.size(); ++i) {
        Drafting& one = *running[i];
        const std::int32_t count = requests[i].num_drafts;
        if (std::ssize(drafts[i]) != count || (count > 0 && drafts[i] != drafts_anew(one, count)))
          problems.push_back(concat("round ", round, ", sequence ", i));
        drafted.insert(drafted.end(), drafts[i].begin(), drafts[i].end());
        one.guesses = drafts[i];
        // A head of noise is never right: some guesses are made so, from the first on.
        for (std::size_t j = 0; j < one.guesses.size() && j < (round + i) % 5; ++j)
          one.guesses[j] = one.expected[one.tokens.size() + j];
      }
    }
    return drafted;
  }

  Checkpoint files;
  TargetRig target;
  Eagle3Config config;
  Head head, anew;
  Chains chains;
  std::vector<Drafting> sequences;
  std::size_t num_accepted = 0, num_refused = 0;
  std::vector<std::string> problems;  // a second rank's thread may not use the test's macros

 private:
  std::vector<std::size_t> num_rows_;  // of this round's sequences, those that count
};

void check_rounds(const Rounds& rounds) {
  CHECK(rounds.problems == std::vector<std::string>{});
  for (const Drafting& one : rounds.sequences) {
    CHECK(one.tokens.size() > one.num_prompt + 8);
    CHECK(std::equal(one.tokens.begin(), one.tokens.end(), one.expected.begin()));
  }
  CHECK(rounds.num_accepted > 20);
  CHECK(rounds.num_refused > 20);
}

}  // namespace

TEST_CASE("chains give a plain loop's drafts", "[eagle3][parity]") {
  check_fixture_drafts<CpuBackend>();
}

TEST_CASE("drafts are those of all pairs anew, and change no token of the target",
          "[eagle3][laws]") {
  for (const char* name : {"speculators_llama", "angelslim"}) {
    INFO(name);
    Rounds rounds(name, ThreadGroup::make(1)[0], true);
    CHECK(rounds.run().size() > 100);
    check_rounds(rounds);
  }
}

TEST_CASE("two ranks of a target draft the same", "[eagle3][laws][ranks]") {
  // The target's embedding is divided if it is tied, and whole on both ranks if not.
  for (const bool tied : {true, false}) {
    const std::vector<ThreadGroup> ends = ThreadGroup::make(2);
    std::unique_ptr<Rounds> first, second;  // the ends wait for each other
    std::vector<TokenId> drafts, others;
    std::thread other([&] {
      second = std::make_unique<Rounds>("angelslim", ends[1], tied);
      others = second->run();
    });
    first = std::make_unique<Rounds>("angelslim", ends[0], tied);
    drafts = first->run();
    other.join();
    CHECK(drafts.size() > 100);
    CHECK(drafts == others);
    check_rounds(*first);
    check_rounds(*second);
  }
}

TEST_CASE("requests of drafts that cannot be are refused", "[eagle3][errors]") {
  Rounds rounds("angelslim", ThreadGroup::make(1)[0], true);
  const std::vector<TokenId> next{1};
  const auto refuses = [&](const Eagle3Request& request, const char* message) {
    std::vector<float> streams(static_cast<std::size_t>(rounds.head.streams_width()));
    std::vector<std::vector<TokenId>> out;
    CHECK_THROWS_WITH(rounds.chains.draft({streams.data(), {1, rounds.head.streams_width()}},
                                          {&request, 1}, rounds.target.network, out),
                      Catch::Matchers::Contains(message));
  };
  const OneSequence blocks(1);
  refuses({.next = next, .blocks = blocks.blocks(1), .num_drafts = kMaxDrafts + 1},
          "at most 20 drafts, got 1 and 21");
  refuses({.blocks = blocks.blocks(1), .num_drafts = 1}, "got 0 and 1");
  refuses({.first_row = 1, .next = next, .blocks = blocks.blocks(1)}, "row 0 must be in [0, 1)");
}
