// The n-gram drafter beside vLLM's (tests/oracle/make_ngram_fixtures.py). Both look up the longest
// suffix that came before. Of several places vLLM takes the earliest and this library the latest,
// and where the draft reaches the end of the text vLLM's ends and this library's goes on with itself.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "catch.hpp"
#include "nanovllm/with/speculation/ngram_drafter.hpp"

using namespace nanovllm;

namespace {

using Tokens = std::vector<TokenId>;

/// One past each earlier place of the longest suffix of min to max tokens that has any; ascending.
std::vector<std::size_t> earlier_ends(const Tokens& tokens, std::size_t min, std::size_t max) {
  std::vector<std::size_t> ends;
  for (std::size_t n = max; n >= min && ends.empty(); --n) {
    const auto suffix = std::span(tokens).last(std::min(n, tokens.size()));
    for (std::size_t end = n; end < tokens.size(); ++end) {
      if (std::ranges::equal(std::span(tokens).subspan(end - n, n), suffix)) ends.push_back(end);
    }
  }
  return ends;
}

/// What follows in the text itself.
Tokens text_from(const Tokens& tokens, std::size_t begin, std::size_t count) {
  const auto found = std::span(tokens).subspan(begin, std::min(count, tokens.size() - begin));
  return {found.begin(), found.end()};
}

/// What the drafter says of a text of which it has seen the first half before.
Tokens draft_of(const SpeculativeConfig& options, const Tokens& tokens, std::int32_t count) {
  const EngineConfig engine;
  NgramDrafter drafter({.options = options, .engine = engine});
  std::vector<Draft> drafts(1);
  for (const std::size_t size : {(tokens.size() + 1) / 2, tokens.size()}) {
    drafts[0].tokens.clear();
    drafter.propose(
        std::vector<DraftRequest>{
            {.sequence = 1, .tokens = std::span(tokens).first(size), .max_tokens = count}},
        drafts);
  }
  return drafts[0].tokens;
}

}  // namespace

TEST_CASE("n-grams as vLLM finds them", "[ngram]") {
  std::ifstream file("tests/fixtures/ngrams.json");
  const auto fixture = nlohmann::json::parse(file);
  int num_equal = 0, num_later = 0, num_longer = 0, num_none = 0;
  for (std::size_t i = 0; i < fixture.at("cases").size(); ++i) {
    CAPTURE(i);
    const auto& entry = fixture.at("cases")[i];
    const auto tokens = entry.at("tokens").get<Tokens>();
    const auto theirs = entry.at("draft").get<Tokens>();
    const SpeculativeConfig options{.prompt_lookup_max = entry.at("max").get<std::int32_t>(),
                                    .prompt_lookup_min = entry.at("min").get<std::int32_t>()};
    const std::int32_t room =
        entry.at("max_model_len").get<std::int32_t>() - static_cast<std::int32_t>(tokens.size());
    const std::int32_t count = std::min(entry.at("count").get<std::int32_t>(), room);
    if (count <= 0) {  // the engine does not ask
      CHECK(theirs.empty());
      continue;
    }
    Tokens ours = draft_of(options, tokens, count);
    const auto asked = static_cast<std::size_t>(count);
    const std::vector<std::size_t> ends =
        earlier_ends(tokens, static_cast<std::size_t>(options.lookup_min()),
                     static_cast<std::size_t>(options.lookup_max()));
    CHECK(theirs.empty() == ours.empty());
    CHECK(ends.empty() == ours.empty());
    num_none += ours.empty() ? 1 : 0;
    if (ours.empty() || ends.empty()) continue;
    CHECK(ours.size() == asked);
    num_longer += theirs.size() < asked ? 1 : 0;
    if (ends.size() == 1) {  // both rules are one
      ours.resize(theirs.size());
      CHECK(ours == theirs);
      ++num_equal;
    } else {
      CHECK(theirs == text_from(tokens, ends.front(), asked));
      const Tokens latest = text_from(tokens, ends.back(), asked);
      ours.resize(latest.size());
      CHECK(ours == latest);
      num_later += latest != theirs ? 1 : 0;
    }
  }
  CAPTURE(num_equal, num_later, num_longer, num_none);
  CHECK(num_equal > 150);
  CHECK(num_later > 50);
  CHECK(num_longer > 20);
  CHECK(num_none > 30);
}
