// The n-gram drafter against a search of the whole text, and what it does at the edges.

#include "nanovllm/with/speculation/ngram_drafter.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/philox.hpp"

using namespace nanovllm;

namespace {

using Tokens = std::vector<TokenId>;

Tokens draft(NgramIndex& index, std::span<const TokenId> tokens, std::int32_t count) {
  Tokens out;
  index.look_up(tokens, count, out);
  return out;
}

Tokens draft_anew(const Tokens& tokens, std::int32_t min, std::int32_t max, std::int32_t count) {
  NgramIndex index(min, max);
  return draft(index, tokens, count);
}

/// The same by comparing each suffix with the text before each place.
Tokens draft_slowly(std::span<const TokenId> tokens, std::int32_t min, std::int32_t max,
                    std::int32_t count) {
  const auto size = static_cast<std::int32_t>(tokens.size());
  for (std::int32_t n = std::min(max, size - 1); n >= min; --n) {
    for (std::int32_t end = size - 1; end >= n; --end) {
      if (!std::equal(tokens.end() - n, tokens.end(), tokens.begin() + (end - n))) continue;
      Tokens text(tokens.begin(), tokens.end());
      for (std::int32_t i = 0; i < count; ++i)
        text.push_back(text[static_cast<std::size_t>(end + i)]);
      return {text.end() - count, text.end()};
    }
  }
  return {};
}

}  // namespace

TEST_CASE("what followed the last tokens when they came before", "[ngram]") {
  CHECK(draft_anew({1, 2, 3, 4, 5, 1, 2, 3}, 3, 5, 2) == Tokens{4, 5});
  CHECK(draft_anew({1, 2, 3, 4, 5, 1, 2, 3}, 4, 5, 2).empty());
  CHECK(draft_anew({1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3}, 2, 3, 1) == Tokens{8});  // the latest
  // A longer suffix goes before a later one.
  CHECK(draft_anew({7, 1, 2, 3, 5, 1, 2, 6, 7, 1, 2}, 2, 3, 1) == Tokens{3});
  CHECK(draft_anew({7, 1, 2, 3, 5, 1, 2, 6, 7, 1, 2}, 2, 2, 1) == Tokens{6});
}

TEST_CASE("a text that repeats goes on repeating", "[ngram]") {
  CHECK(draft_anew({5, 5, 5}, 2, 3, 4) == Tokens{5, 5, 5, 5});
  CHECK(draft_anew({1, 2, 3, 1, 2, 3}, 3, 3, 7) == Tokens{1, 2, 3, 1, 2, 3, 1});
}

TEST_CASE("there is no draft for what never came, and for short texts", "[ngram]") {
  CHECK(draft_anew({}, 1, 3, 4).empty());
  CHECK(draft_anew({1}, 1, 3, 4).empty());
  CHECK(draft_anew({1, 1}, 2, 3, 4).empty());
  CHECK(draft_anew({1, 1}, 1, 3, 2) == Tokens{1, 1});
  CHECK(draft_anew({1, 2, 3, 4}, 1, 3, 4).empty());
}

TEST_CASE("an index that grows drafts as a search of the text does", "[ngram]") {
  std::int64_t num_drafts = 0;
  for (std::uint32_t round = 0; round < 60; ++round) {
    const auto words = philox4x32(round, {0, 0, 0, 0});
    const std::uint32_t num_tokens = 2 + words[0] % 9;
    const auto min = static_cast<std::int32_t>(1 + words[1] % 3);
    const std::int32_t max = min + static_cast<std::int32_t>(words[2] % 4);
    NgramIndex index(min, max);
    Tokens tokens;
    for (std::uint32_t i = 0; i < 400; ++i) {
      const auto next = philox4x32(round, {i, 1, 0, 0});
      tokens.push_back(static_cast<TokenId>(next[0] % num_tokens * 1'000'003u % 151'936u));
      if (next[1] % 3 == 0) continue;  // several tokens come between two calls
      const auto count = static_cast<std::int32_t>(1 + next[2] % 6);
      CAPTURE(round, i, min, max, count);
      const Tokens got = draft(index, tokens, count);
      REQUIRE(got == draft_slowly(tokens, min, max, count));
      num_drafts += got.empty() ? 0 : 1;
    }
  }
  CHECK(num_drafts > 1000);
}

TEST_CASE("sequences have indexes of their own, and lose them", "[ngram]") {
  const SpeculativeConfig options{.prompt_lookup_max = 2};
  const EngineConfig engine;
  NgramDrafter drafter({.options = options, .engine = engine});
  const Tokens repeats{1, 2, 3, 1, 2}, other{1, 2};
  std::vector<Draft> drafts(2);
  drafter.propose(std::vector<DraftRequest>{{.sequence = 4, .tokens = repeats, .max_tokens = 2},
                                            {.sequence = 5, .tokens = other, .max_tokens = 2}},
                  drafts);
  CHECK(drafts[0].tokens == Tokens{3, 1});
  CHECK(drafts[1].tokens.empty());
  drafter.forget(4);
  drafter.forget(77);
  drafts[0].tokens.clear();
  drafter.propose(std::vector<DraftRequest>{{.sequence = 4, .tokens = other, .max_tokens = 2}},
                  std::span(drafts).first(1));
  CHECK(drafts[0].tokens.empty());
}

TEST_CASE("suffix lengths: one setting is as the other, and their order is checked", "[ngram]") {
  const auto lengths = [](const SpeculativeConfig& config) {
    config.validate();
    return std::vector<std::int32_t>{config.lookup_min(), config.lookup_max()};
  };
  CHECK(lengths({}) == std::vector<std::int32_t>{3, 5});
  CHECK(lengths({.prompt_lookup_max = 4}) == std::vector<std::int32_t>{4, 4});
  CHECK(lengths({.prompt_lookup_min = 2}) == std::vector<std::int32_t>{2, 2});
  CHECK(lengths({.prompt_lookup_max = 7, .prompt_lookup_min = 2}) ==
        std::vector<std::int32_t>{2, 7});
  const auto error_of = [](const SpeculativeConfig& config) -> std::string {
    try {
      config.validate();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(error_of({.prompt_lookup_max = 2, .prompt_lookup_min = 3}) ==
        "SpeculativeConfig: prompt_lookup_min must be in [1, prompt_lookup_max = 2], got 3");
  CHECK(error_of({.prompt_lookup_max = 257, .prompt_lookup_min = 1}) ==
        "SpeculativeConfig: prompt_lookup_max must be at most 256, got 257");
  CHECK(error_of({.prompt_lookup_min = 0}) ==
        "SpeculativeConfig: prompt_lookup_min must be in [1, prompt_lookup_max = 0], got 0");
  CHECK(error_of({.num_speculative_tokens = 64}) ==
        "SpeculativeConfig::num_speculative_tokens must be in [0, 63], got 64");
  CHECK(error_of({.num_speculative_tokens = -1}) ==
        "SpeculativeConfig::num_speculative_tokens must be in [0, 63], got -1");
}
