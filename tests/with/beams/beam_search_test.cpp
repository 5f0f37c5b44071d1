#include "nanovllm/with/beams/beam_search.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

/// The log-probability of each token of a small vocabulary after some tokens.
using Model = std::function<std::vector<float>(const std::vector<TokenId>&)>;

/// One whose probabilities depend on all tokens.
Model random_model(std::uint32_t seed, std::size_t vocab) {
  return [=](const std::vector<TokenId>& tokens) {
    std::uint32_t state = seed;
    for (const TokenId token : tokens)
      state = state * 1664525u + static_cast<std::uint32_t>(token) + 1013904223u;
    std::mt19937 random(state);
    std::vector<float> logits;
    for (std::size_t i = 0; i < vocab; ++i)
      logits.push_back(static_cast<float>(random() % 100000) / 25000.f);
    double sum = 0;
    for (const float x : logits) sum += std::exp(double{x});
    for (float& x : logits) x = static_cast<float>(x - std::log(sum));
    return logits;
  };
}

struct Found {
  std::vector<TokenId> tokens;
  float score = 0;
};

/// The candidates of every beam: its `most` likeliest tokens.
void advance(BeamSearch& beams, const Model& model, std::int64_t most) {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<float>> logprobs;
  for (const BeamSearch::Beam& beam : beams.beams()) {
    const std::vector<float> all = model(beams.tokens(beam.node));
    const auto at = [&](TokenId i) { return all[static_cast<std::size_t>(i)]; };
    std::vector<TokenId> order(all.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](TokenId a, TokenId b) { return at(a) > at(b); });
    order.resize(std::min(order.size(), static_cast<std::size_t>(most)));
    tokens.push_back(order);
    logprobs.emplace_back();
    for (const TokenId i : order) logprobs.back().push_back(at(i));
  }
  std::vector<BeamCandidates> candidates;
  for (std::size_t i = 0; i < tokens.size(); ++i) candidates.push_back({tokens[i], logprobs[i]});
  beams.advance(candidates);
}

/// A search that was run to its end on as many candidates as it wants.
BeamSearch search(const BeamSearchTerms& terms, const Model& model) {
  BeamSearch beams(terms);
  while (!beams.is_done()) advance(beams, model, terms.num_listed());
  return beams;
}

/// Every text that may come out, best first: what a search that is wide enough finds.
std::vector<Found> exhaust(const BeamSearchTerms& terms, const Model& model, TokenId vocab) {
  std::vector<Found> out;
  std::vector<std::pair<std::vector<TokenId>, float>> open{{{}, 0.f}};
  while (!open.empty()) {
    auto [tokens, sum] = open.back();
    open.pop_back();
    const std::vector<float> logprobs = model(tokens);
    for (TokenId t = 0; t < vocab; ++t) {
      const bool is_end = std::binary_search(terms.end_tokens.begin(), terms.end_tokens.end(), t);
      if (is_end && std::cmp_less(tokens.size(), terms.min_tokens)) continue;
      std::vector<TokenId> longer = tokens;
      longer.push_back(t);
      const float total = sum + logprobs[static_cast<std::size_t>(t)];
      if (is_end || std::cmp_equal(longer.size(), terms.max_tokens)) {
        out.push_back(
            {longer, total / static_cast<float>(std::pow(static_cast<double>(longer.size()),
                                                         terms.length_penalty))});
      } else {
        open.emplace_back(std::move(longer), total);
      }
    }
  }
  std::sort(out.begin(), out.end(),
            [](const Found& a, const Found& b) { return a.score > b.score; });
  return out;
}

}  // namespace

TEST_CASE("a search as wide as the tree finds all texts, best first", "[beam_search]") {
  constexpr TokenId kVocab = 5;
  const std::vector<TokenId> ends{3};
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    for (const float penalty : {0.f, 0.5f, 1.f, 2.f}) {
      for (const int min_tokens : {0, 1, 2, 3}) {
        const BeamSearchTerms terms{.width = 100,
                                    .length_penalty = penalty,
                                    .early_stopping = EarlyStopping::never,
                                    .max_tokens = 3,
                                    .min_tokens = min_tokens,
                                    .end_tokens = ends};
        const Model model = random_model(seed, kVocab);
        const std::vector<Found> all = exhaust(terms, model, kVocab);
        const std::size_t num_texts[] = {1 + 4 + 80, 4 + 80, 80, 64};
        REQUIRE(all.size() == num_texts[min_tokens]);
        const BeamSearch found = search(terms, model);
        REQUIRE(found.hypotheses().size() == all.size());
        std::set<std::vector<TokenId>> texts;
        for (std::size_t i = 0; i < all.size(); ++i) {
          CHECK(found.hypotheses()[i].score == Approx(all[i].score));
          CHECK(texts.insert(found.tokens(found.hypotheses()[i].node)).second);
        }
        CHECK(found.tokens(found.hypotheses()[0].node) == all[0].tokens);
      }
    }
  }
}

TEST_CASE("one beam is greedy decoding up to the first end token", "[beam_search]") {
  const std::vector<TokenId> ends{2, 5};
  int num_ended = 0;
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const Model model = random_model(seed, 12);
    std::vector<TokenId> expected;
    while (expected.size() < 8) {
      const std::vector<float> logprobs = model(expected);
      expected.push_back(static_cast<TokenId>(std::max_element(logprobs.begin(), logprobs.end()) -
                                              logprobs.begin()));
      if (std::binary_search(ends.begin(), ends.end(), expected.back())) break;
    }
    num_ended += expected.size() < 8 ? 1 : 0;
    for (const EarlyStopping how : {EarlyStopping::no, EarlyStopping::yes, EarlyStopping::never}) {
      const BeamSearch found =
          search({.width = 1, .early_stopping = how, .max_tokens = 8, .end_tokens = ends}, model);
      REQUIRE(found.hypotheses().size() == 1);
      CHECK(found.tokens(found.hypotheses()[0].node) == expected);
    }
  }
  CHECK((num_ended > 10 && num_ended < 50));
}

TEST_CASE("a search that goes on for longer finds nothing worse", "[beam_search]") {
  const std::vector<TokenId> ends{2, 5};
  int num_longer = 0, num_longest = 0, num_better = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const Model model = random_model(seed, 24);
    BeamSearchTerms terms{.width = 3,
                          .length_penalty = seed % 2 == 0 ? 0.5f : 2.f,
                          .max_tokens = 12,
                          .end_tokens = ends};
    const auto run = [&](EarlyStopping how) {
      terms.early_stopping = how;
      return search(terms, model);
    };
    const BeamSearch first = run(EarlyStopping::yes), second = run(EarlyStopping::no),
                     third = run(EarlyStopping::never);
    CHECK(first.num_generated() <= second.num_generated());
    CHECK(second.num_generated() <= third.num_generated());
    CHECK(first.hypotheses()[0].score <= second.hypotheses()[0].score);
    CHECK(second.hypotheses()[0].score <= third.hypotheses()[0].score);
    num_longer += first.num_generated() < second.num_generated() ? 1 : 0;
    num_longest += second.num_generated() < third.num_generated() ? 1 : 0;
    num_better += first.hypotheses()[0].score < third.hypotheses()[0].score ? 1 : 0;
  }
  CHECK(num_longer > 10);
  CHECK(num_longest > 10);
  CHECK(num_better > 10);
}

TEST_CASE("an end that is not among the first is lost, and the best of the rest go on",
          "[beam_search]") {
  const std::vector<TokenId> ends{9};
  BeamSearch beams({.width = 2, .max_tokens = 5, .end_tokens = ends});
  const std::vector<TokenId> tokens{1, 2, 9, 3};
  const std::vector<float> logprobs{-1.f, -2.f, -2.5f, -3.f};
  beams.advance(std::vector<BeamCandidates>{{tokens, logprobs}});
  CHECK(beams.hypotheses().empty());  // it was the third of two
  REQUIRE(beams.beams().size() == 2);
  CHECK(beams.beams()[1].token == 2);
  // Of the second beam an end is the best of all; the first goes on with its two likeliest.
  const std::vector<TokenId> ending{9, 1, 2, 3};
  const std::vector<float> of_first{-9.f, -9.5f, -9.6f, -9.7f},
      of_second{-0.5f, -9.f, -9.1f, -9.2f};
  beams.advance(std::vector<BeamCandidates>{{tokens, of_first}, {ending, of_second}});
  REQUIRE(beams.hypotheses().size() == 1);
  CHECK(beams.tokens(beams.hypotheses()[0].node) == std::vector<TokenId>{2, 9});
  CHECK(beams.hypotheses()[0].score == -1.25f);
  CHECK(beams.hypotheses()[0].cumulative_logprob == -2.5f);
  REQUIRE(beams.beams().size() == 2);
  CHECK(beams.beams()[0].parent == 0);
  CHECK(beams.beams()[0].cumulative_logprob == -10.f);
  CHECK(beams.beams()[1].token == 2);
  CHECK_FALSE(beams.is_done());
}

TEST_CASE("candidates that do not belong to the beams are refused", "[beam_search]") {
  BeamSearch beams({.width = 2, .max_tokens = 1});
  REQUIRE_THROWS_WITH(beams.advance({}),
                      Catch::Matchers::Contains("0 lists of candidates for 1 beams"));
  const std::vector<TokenId> tokens{1, 2, 3, 4};
  const std::vector<float> logprobs{-1.f, -2.f, -3.f, -4.f};
  const std::vector<BeamCandidates> candidates{{tokens, logprobs}};
  beams.advance(candidates);
  CHECK(beams.is_done());
  REQUIRE_THROWS_WITH(beams.advance(candidates), Catch::Matchers::Contains("of one that is over"));
  CHECK(BeamSearchTerms{.width = 3}.num_candidates() == 6);
  const std::vector<TokenId> ends{1, 2, 3};
  CHECK(BeamSearchTerms{.width = 3, .end_tokens = ends}.num_candidates() == 12);
  CHECK(BeamSearchTerms{.width = 3, .min_tokens = 2, .end_tokens = ends}.num_listed() == 15);
}
