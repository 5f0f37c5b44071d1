#pragma once
/// Cases of `sample`: greedy and seeded draws through every filter, bans, and log-probabilities.

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "ops/rig.hpp"

namespace nanovllm::test::ops {

/// One row of the contract in float64.
class SampleOracle {
 public:
  SampleOracle(std::vector<double> logits, const std::vector<TokenId>& banned)
      : model_(std::move(logits)), logits_(model_) {
    for (TokenId id : banned) logits_[static_cast<std::size_t>(id)] = -kInfinity;
    const double max = *std::max_element(model_.begin(), model_.end());
    double sum = 0;
    for (double x : model_) sum += std::exp(x - max);
    log_sum_ = max + std::log(sum);
  }

  /// Of the model itself: before bans, temperature and filters.
  [[nodiscard]] double logprob(std::int64_t id) const {
    return model_[static_cast<std::size_t>(id)] - log_sum_;
  }
  /// Ids in descending order of the model's logits.
  [[nodiscard]] std::vector<std::size_t> ranking() const { return sorted(model_); }

  /// The token; nothing when rounding could tip a filter or the draw.
  [[nodiscard]] std::optional<std::size_t> draw(const SamplingRow& row) const {
    const std::vector<std::size_t> order = sorted(logits_);
    if (row.temperature == 0) return order[0];
    std::vector<double> x;
    for (double logit : logits_) x.push_back(logit / double{row.temperature});
    std::size_t kept = order.size();
    if (row.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(row.top_k));
    while (kept > 0 && x[order[kept - 1]] == -kInfinity) --kept;
    double mass = 0, cumulative = 0;
    for (std::size_t i = 0; i < kept; ++i) mass += std::exp(x[order[i]] - x[order[0]]);
    bool close = false;
    if (row.top_p < 1) {
      std::size_t i = 0;
      while (i < kept) {
        cumulative += std::exp(x[order[i]] - x[order[0]]) / mass;
        close = close || std::abs(cumulative - double{row.top_p}) < kMargin;
        ++i;
        if (cumulative >= double{row.top_p}) break;
      }
      kept = i;
    }
    if (row.min_p > 0) {
      const auto share = [&](std::size_t i) {
        return std::exp(x[order[i]] - x[order[0]]) / double{row.min_p};
      };
      for (std::size_t i = 0; i < kept; ++i) close = close || std::abs(share(i) - 1) < kMargin;
      while (kept > 1 && share(kept - 1) < 1) --kept;
    }
    std::size_t best = order[0];
    double first = -kInfinity, second = -kInfinity;
    for (std::size_t i = 0; i < kept; ++i) {
      const auto bits = sampling_bits(row.seed, row.position, static_cast<std::uint32_t>(order[i]));
      const double score = x[order[i]] - std::log(-std::log1p(-to_unit_interval(bits)));
      if (score > first) {
        second = first, first = score, best = order[i];
      } else {
        second = std::max(second, score);
      }
    }
    if (close || first - second < kMargin) return std::nullopt;
    return best;
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kMargin = 1e-4;

  static std::vector<std::size_t> sorted(const std::vector<double>& x) {
    std::vector<std::size_t> order(x.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return x[a] > x[b]; });
    return order;
  }
  std::vector<double> model_, logits_;
  double log_sum_ = 0;
};

/// Rows of all kinds, in one call.
inline std::vector<SamplingRow> sampling_rows() {
  std::vector<SamplingRow> out;
  for (std::uint64_t i = 0; i < 48; ++i) {
    SamplingRow row;
    row.temperature = i % 4 == 0 ? 0.f : i % 4 == 1 ? 0.6f : 1.3f;
    if (i / 4 % 2 == 1) row.top_k = static_cast<std::int32_t>(1 + 7 * (i % 5));
    if (i / 8 % 2 == 1) row.top_p = 0.85f;
    if (i / 16 % 2 == 1) row.min_p = 0.05f;
    row.seed = 1234567 + 99991 * i;
    row.position = 3 * i;
    row.num_logprobs = static_cast<std::int32_t>(i % 5) - 1;
    out.push_back(row);
  }
  return out;
}

/// Plain rows: the promise that they are changes no token, and nothing else is written.
template <class B>
void plain_sample_cases(B& backend) {
  for (std::int64_t vocab : {1, 50, 5003}) {
    INFO("plain rows, vocabulary " << vocab);
    constexpr std::int64_t kTop = 2;
    std::vector<SamplingRow> rows;
    for (SamplingRow row : sampling_rows()) {
      row.num_logprobs = -1;
      if (row.temperature > 0) row.top_k = -1, row.top_p = 1, row.min_p = 0;
      REQUIRE(is_plain(row));
      rows.push_back(row);
    }
    const auto n = static_cast<std::int64_t>(rows.size());
    backend.reserve({.limits = {.max_num_batched_tokens = n, .max_num_seqs = n},
                     .vocab_size = vocab,
                     .num_heads = 1,
                     .num_kv_heads = 1,
                     .head_dim = 64});
    auto logits = Array<B, float>::random(backend, n * vocab, 6, -6, 6);
    const auto before = logits.host;
    Array<B, SamplingRow> settings(backend, rows);
    Array<B, std::int32_t> starts(backend, std::vector<std::int32_t>(rows.size() + 1));
    Array<B, TokenId> banned(backend, 0);
    std::vector<TokenId> general;
    for (const bool plain : {false, true}) {
      logits.host = before;
      logits.upload();
      Array<B, TokenId> tokens(backend, n), top(backend, n * kTop);
      Array<B, float> logprobs(backend, n), top_logprobs(backend, n * kTop);
      backend.run(SampleArgs{logits.matrix(vocab),
                             {settings.vector(), {starts.vector(), banned.vector()}},
                             tokens.vector(),
                             logprobs.vector(),
                             top.matrix(kTop),
                             top_logprobs.matrix(kTop),
                             plain});
      tokens.download(), logprobs.download(), top.download(), top_logprobs.download();
      for (TokenId id : top.host) REQUIRE(id == TokenId{-1});
      for (float logprob : logprobs.host) REQUIRE(std::isnan(logprob));
      for (float logprob : top_logprobs.host) REQUIRE(std::isnan(logprob));
      if (!plain) general = tokens.host;
      REQUIRE(tokens.host == general);
    }
    std::int64_t decided = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      INFO("row " << i);
      const auto begin = before.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      const SampleOracle oracle({begin, begin + vocab}, {});
      const auto expected = oracle.draw(rows[i]);
      if (!expected) continue;
      REQUIRE(static_cast<std::size_t>(general[i]) == *expected);
      ++decided;
    }
    REQUIRE(decided >= n * 9 / 10);
  }
}

template <class B>
void sample_cases(B& backend) {
  for (std::int64_t vocab : {50, 5003}) {
    INFO("vocabulary " << vocab);
    constexpr std::int64_t kTop = 4;
    const std::vector<SamplingRow> kinds = sampling_rows();
    const auto n = static_cast<std::int64_t>(kinds.size());
    backend.reserve({.limits = {.max_num_batched_tokens = n, .max_num_seqs = n},
                     .vocab_size = vocab,
                     .num_heads = 1,
                     .num_kv_heads = 1,
                     .head_dim = 64});
    auto logits = Array<B, float>::random(backend, n * vocab, 5, -6, 6);
    const auto before = logits.host;
    Array<B, SamplingRow> rows(backend, kinds);
    // Every third row bans its own most likely token, and another one.
    std::vector<std::vector<TokenId>> bans(kinds.size());
    std::vector<std::int32_t> starts{0};
    std::vector<TokenId> banned;
    std::vector<SampleOracle> oracles;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const auto begin = before.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      const std::vector<double> row(begin, begin + vocab);
      const auto top = std::max_element(row.begin(), row.end()) - row.begin();
      if (i % 3 == 1) bans[i] = {static_cast<TokenId>(top), 7};
      banned.insert(banned.end(), bans[i].begin(), bans[i].end());
      starts.push_back(static_cast<std::int32_t>(banned.size()));
      oracles.emplace_back(row, bans[i]);
    }
    Array<B, std::int32_t> banned_starts(backend, starts);
    Array<B, TokenId> banned_tokens(backend, banned), tokens(backend, n), top(backend, n * kTop);
    Array<B, float> logprobs(backend, n), top_logprobs(backend, n * kTop);
    backend.run(SampleArgs{logits.matrix(vocab),
                           {rows.vector(), {banned_starts.vector(), banned_tokens.vector()}},
                           tokens.vector(),
                           logprobs.vector(),
                           top.matrix(kTop),
                           top_logprobs.matrix(kTop)});
    tokens.download(), logprobs.download(), top.download(), top_logprobs.download();
    std::int64_t decided = 0;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      INFO("row " << i);
      const auto token = tokens.host[i];
      REQUIRE((token >= 0 && token < vocab));
      if (const auto expected = oracles[i].draw(kinds[i])) {
        REQUIRE(static_cast<std::size_t>(token) == *expected);
        ++decided;
      }
      if (kinds[i].num_logprobs < 0) continue;
      REQUIRE(std::abs(double{logprobs.host[i]} - oracles[i].logprob(token)) < 1e-5);
      const auto ranking = oracles[i].ranking();
      for (std::int32_t j = 0; j < kinds[i].num_logprobs; ++j) {
        const auto at = i * kTop + static_cast<std::size_t>(j);
        const std::size_t id = ranking[static_cast<std::size_t>(j)];
        REQUIRE(static_cast<std::size_t>(top.host[at]) == id);
        REQUIRE(std::abs(double{top_logprobs.host[at]} -
                         oracles[i].logprob(static_cast<std::int64_t>(id))) < 1e-5);
      }
    }
    REQUIRE(decided >= n * 9 / 10);
  }
  plain_sample_cases(backend);
}

}  // namespace nanovllm::test::ops
