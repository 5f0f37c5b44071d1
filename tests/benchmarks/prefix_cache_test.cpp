/// The workloads of the prefix cache's benchmark are what they say, and the same for the same seed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "../../benchmarks/prefix_cache/workload.hpp"
#include "catch.hpp"

using namespace prefix_bench;

namespace {

constexpr std::int32_t kAnswer = 5;
constexpr std::int64_t kVocab = 100'000;

TextSource source(std::uint64_t seed = 7) { return {seed, kVocab}; }

bool begins_with(const Tokens& tokens, const Tokens& beginning) {
  return tokens.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), tokens.begin());
}

std::size_t num_common(const Tokens& a, const Tokens& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

/// All prompts, where request i answers with tokens that no text has.
std::vector<Tokens> prompts(const Workload& workload) {
  std::vector<Tokens> prompts(workload.requests.size()), answers(workload.requests.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    prompts[i] = prompt_of(workload, i, prompts, answers);
    answers[i].assign(static_cast<std::size_t>(workload.requests[i].max_tokens),
                      static_cast<nanovllm::TokenId>(kVocab + static_cast<std::int64_t>(i)));
  }
  return prompts;
}

bool within(const Tokens& text, Length length) {
  const auto size = static_cast<std::int64_t>(text.size());
  return size >= length.min && size <= length.max;
}

}  // namespace

TEST_CASE("the same seed makes the same prompts, another seed others") {
  const auto all = [](std::uint64_t seed) {
    std::vector<std::vector<Tokens>> out;
    for (const Workload& workload :
         {make_shared({}, kAnswer, source(seed)), make_chats({}, kAnswer, source(seed)),
          make_trees({}, kAnswer, source(seed)), make_unique({}, kAnswer, source(seed))})
      out.push_back(prompts(workload));
    return out;
  };
  const auto first = all(1), again = all(1), other = all(2);
  CHECK(first == again);
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i] != other[i]);
}

TEST_CASE("tokens are of the vocabulary, and use all of it") {
  const Workload workload = make_unique({.num_requests = 50, .prompt = {50, 60}}, 1, {3, 11});
  std::set<nanovllm::TokenId> seen;
  for (const Request& request : workload.requests)
    seen.insert(request.text.begin(), request.text.end());
  CHECK(seen.size() == 11);
  CHECK(*seen.begin() == 0);
  CHECK(*seen.rbegin() == 10);
}

TEST_CASE("shared prefixes: each has its share of the requests, in an order that is not sorted") {
  const SharedSpec spec{.num_requests = 43, .num_prefixes = 4, .prefix_tokens = 30, .own = {3, 9}};
  const Workload workload = make_shared(spec, kAnswer, source());
  REQUIRE(workload.requests.size() == 43);
  REQUIRE(workload.prefixes.size() == 4);
  std::map<std::size_t, int> uses;
  std::size_t num_changes = 0, last = 0;
  const std::vector<Tokens> all = prompts(workload);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Request& request = workload.requests[i];
    REQUIRE(request.prefix);
    CHECK(!request.parent);
    CHECK(request.max_tokens == kAnswer);
    CHECK(within(request.text, spec.own));
    CHECK(begins_with(all[i], workload.prefixes[*request.prefix]));
    CHECK(all[i].size() == 30 + request.text.size());
    ++uses[*request.prefix];
    num_changes += i > 0 && *request.prefix != last ? 1 : 0;
    last = *request.prefix;
  }
  for (const auto& [prefix, count] : uses) CHECK((count == 10 || count == 11));
  CHECK(uses.size() == 4);
  CHECK(num_changes > 20);
  CHECK(num_changes < 42);  // 'in turn' would be no random order either
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(workload.prefixes[i].size() == 30);
    for (std::size_t j = 0; j < i; ++j)
      CHECK(num_common(workload.prefixes[i], workload.prefixes[j]) < 3);
  }
}

TEST_CASE("chats: every prompt is the whole history and more, and conversations take turns") {
  const ChatSpec spec{
      .num_chats = 6, .num_turns = 20, .system_tokens = 12, .user = {2, 4}, .tool = {20, 30}};
  const Workload workload = make_chats(spec, kAnswer, source());
  const std::vector<Tokens> all = prompts(workload);
  REQUIRE(all.size() == 120);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Request& request = workload.requests[i];
    CHECK(begins_with(all[i], workload.prefixes.at(0)));
    if (i < 6) {
      CHECK(!request.parent);
      CHECK(within(request.text, spec.user));
      continue;
    }
    REQUIRE(request.parent == i - 6);
    CHECK(begins_with(all[i], all[i - 6]));
    const auto answer = std::span(all[i]).subspan(all[i - 6].size(), kAnswer);
    for (const nanovllm::TokenId token : answer)
      CHECK(token ==
            static_cast<nanovllm::TokenId>(kVocab) + static_cast<nanovllm::TokenId>(i) - 6);
    CHECK(all[i].size() == all[i - 6].size() + kAnswer + request.text.size());
  }
  for (std::size_t i = 1; i < 6; ++i) CHECK(num_common(all[i], all[0]) < 12 + 2);
}

TEST_CASE("chats: tools speak in their share of the turns after the first") {
  for (const double share : {0.0, 0.25, 1.0}) {
    const ChatSpec spec{
        .num_chats = 50, .num_turns = 21, .tool_share = share, .user = {2, 4}, .tool = {20, 30}};
    const Workload workload = make_chats(spec, kAnswer, source());
    double num_tools = 0;
    for (const Request& request : workload.requests) {
      CHECK((within(request.text, spec.user) || within(request.text, spec.tool)));
      num_tools += within(request.text, spec.tool) ? 1 : 0;
    }
    INFO("share " << share);
    CHECK(std::abs(num_tools / 1000 - share) <= (share == 0.25 ? 0.05 : 0.0));
  }
}

TEST_CASE("trees: every node has as many children, each prompt is the path to it") {
  const TreeSpec spec{
      .num_trees = 2, .root_tokens = 40, .num_children = 3, .num_levels = 2, .thought = {4, 6}};
  const Workload workload = make_trees(spec, kAnswer, source());
  const std::vector<Tokens> all = prompts(workload);
  REQUIRE(all.size() == 2 * (1 + 3 + 9));
  std::map<std::size_t, int> children;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Request& request = workload.requests[i];
    if (i < 2) {
      CHECK(!request.parent);
      CHECK(all[i].size() == 40);
      continue;
    }
    REQUIRE(request.parent);
    REQUIRE(*request.parent < i);
    ++children[*request.parent];
    CHECK(within(request.text, spec.thought));
    CHECK(begins_with(all[i], all[*request.parent]));
    CHECK(all[i].size() == all[*request.parent].size() + kAnswer + request.text.size());
  }
  CHECK(children.size() == 2 * (1 + 3));
  for (const auto& [parent, count] : children) CHECK(count == 3);
}

TEST_CASE("unique prompts begin with different tokens") {
  const UniqueSpec spec{.num_requests = 40, .prompt = {10, 20}};
  const Workload workload = make_unique(spec, kAnswer, source());
  REQUIRE(workload.requests.size() == 40);
  CHECK(workload.prefixes.empty());
  for (std::size_t i = 0; i < 40; ++i) {
    CHECK(within(workload.requests[i].text, spec.prompt));
    for (std::size_t j = 0; j < i; ++j)
      CHECK(num_common(workload.requests[i].text, workload.requests[j].text) < 3);
  }
}

TEST_CASE("lengths and blocks are counted without the answers' tokens") {
  const Workload workload = make_chats({.num_chats = 3, .num_turns = 4}, kAnswer, source());
  const std::vector<Tokens> all = prompts(workload);
  const std::vector<std::int64_t> lengths = prompt_lengths(workload);
  std::int64_t longest = 0;
  REQUIRE(lengths.size() == all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(lengths[i] == static_cast<std::int64_t>(all[i].size()));
    longest = std::max(longest, lengths[i] + kAnswer);
  }
  CHECK(longest_sequence(workload) == longest);
}

TEST_CASE("a pool is a share of what the workload needs, and holds its longest sequence") {
  Workload workload{.prefixes = {Tokens(33)}};
  workload.requests.push_back({.prefix = 0, .text = Tokens(10), .max_tokens = 7});
  workload.requests.push_back({.parent = 0, .text = Tokens(15), .max_tokens = 1});
  CHECK(longest_sequence(workload) == 33 + 10 + 7 + 15 + 1);
  CHECK(needed_blocks(workload, 16) == 3 + (2 + 1) + (1 + 1));
  CHECK(needed_blocks(workload, 1) == 33 + (17 + 1) + (16 + 1));
  CHECK(pool_blocks(workload, 1.0, 16) == 8);
  CHECK(pool_blocks(workload, 2.5, 16) == 20);
  CHECK(pool_blocks(workload, 0.1, 16) == 6);  // 67 tokens and a block more
  CHECK(sample_blocks(workload, 1, 16) == 0);
  CHECK(sample_blocks(workload, 3, 16) == 2 * 3 * std::ssize(workload.requests));
}
