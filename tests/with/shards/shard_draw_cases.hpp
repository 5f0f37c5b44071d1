#pragma once
/// Draws by shard against `sample` of the whole rows, on any backend. The shards of a row are parts
/// of one matrix, and the exchange is a copy.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "nanovllm/core/math.hpp"
#include "nanovllm/with/shards/shard_draw.hpp"
#include "ops/rig.hpp"

namespace nanovllm::test::ops {

/// Some rows of logits, and how they are drawn.
struct ShardDrawRows {
  std::int64_t vocab = 0;
  std::vector<float> logits;
  std::vector<SamplingRow> rows;
  std::vector<std::int32_t> banned_starts{0};
  std::vector<TokenId> banned;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  [[nodiscard]] std::int64_t width() const {
    std::int64_t out = 0;
    for (const SamplingRow& row : rows) out = std::max<std::int64_t>(out, row.num_logprobs);
    return out;
  }
};

/// What is drawn.
struct ShardDrawn {
  std::vector<TokenId> tokens, top_tokens;
  std::vector<float> logprobs, top_logprobs;
};

enum class LogitShape { normal, ties, flat, peaked, sparse, odd };
inline constexpr LogitShape kLogitShapes[] = {LogitShape::normal, LogitShape::ties,
                                              LogitShape::flat,   LogitShape::peaked,
                                              LogitShape::sparse, LogitShape::odd};

inline std::vector<float> shard_logits(LogitShape shape, std::int64_t vocab, std::mt19937& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::normal_distribution<float> normal(0.f, shape == LogitShape::peaked ? 9.f : 2.5f);
  std::vector<float> out;
  for (std::int64_t i = 0; i < vocab; ++i) {
    float x = normal(random);
    if (shape == LogitShape::ties) x = std::round(x);
    if (shape == LogitShape::flat) x = 1.5f;
    if (shape == LogitShape::sparse && random() % 64 != 0) x = -kInfinity;
    out.push_back(x);
  }
  if (shape != LogitShape::odd) return out;
  const float odd[] = {-kInfinity, std::numeric_limits<float>::quiet_NaN(), kInfinity, 0.f};
  const std::uint32_t kind = random() % 4;
  for (float& x : out) {
    if (kind == 3 || random() % 16 == 0) x = odd[kind == 3 ? random() % 2 : kind];
  }
  return out;
}

/// Rows of all kinds that shards can draw; plain ones only, on demand.
inline ShardDrawRows shard_draw_rows(std::int64_t vocab, bool plain, std::uint32_t seed,
                                     int count = 60) {
  std::mt19937 random(seed);
  ShardDrawRows out;
  out.vocab = vocab;
  const auto pick = [&](std::initializer_list<double> values) {
    return std::data(values)[random() % values.size()];
  };
  for (int i = 0; i < count; ++i) {
    const std::vector<float> logits = shard_logits(kLogitShapes[i % 6], vocab, random);
    SamplingRow row{.temperature = static_cast<float>(pick({0, 0.3, 1, 1, 2.5}))};
    row.seed = random();
    row.position = random() % 1000;
    if (!plain) {
      row.top_k = static_cast<std::int32_t>(pick({0, 1, 2, 20, 20, 40, 64}));
      row.top_p = row.top_k > 0 ? static_cast<float>(pick({1, 1, 0.95, 0.5, 0.01})) : 1.f;
      row.min_p = static_cast<float>(pick({0, 0, 0.05, 1}));
      row.num_logprobs = static_cast<std::int32_t>(pick({-1, -1, 0, 1, 5, 20}));
    }
    std::vector<TokenId> bans;
    if (!plain && row.num_logprobs < 0 && random() % 2 == 0) {
      const std::uint32_t one_in = 1 + random() % 5;  // 1: all
      for (std::int64_t id = 0; id < vocab; ++id) {
        if (random() % one_in == 0) bans.push_back(static_cast<TokenId>(id));
      }
    }
    REQUIRE(is_drawn_by_shard(row, !bans.empty()));
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
    out.rows.push_back(row);
    out.banned.insert(out.banned.end(), bans.begin(), bans.end());
    out.banned_starts.push_back(static_cast<std::int32_t>(out.banned.size()));
  }
  return out;
}

/// `sample` on the whole rows, or with `num_shards` the three ops on as many shards.
template <class B>
class ShardDrawRig {
  template <class T>
  using Buffer = typename B::template Buffer<T>;

 public:
  ShardDrawRig(B& backend, const ShardDrawRows& rows)
      : backend_(backend),
        rows_(rows),
        settings_(upload(rows.rows)),
        starts_(upload(rows.banned_starts)),
        banned_(upload(rows.banned)),
        tokens_(upload(std::vector<TokenId>(elements(rows.size()), -7))),
        logprobs_(upload(std::vector<float>(elements(rows.size()), 7.f))),
        top_tokens_(upload(std::vector<TokenId>(elements(rows.size() * rows.width()), -7))),
        top_logprobs_(upload(std::vector<float>(elements(rows.size() * rows.width()), 7.f))) {}

  [[nodiscard]] ShardDrawn sample(bool plain) {
    const std::int64_t n = rows_.size(), width = rows_.width();
    Buffer<float> logits = upload(rows_.logits);
    backend_.run(SampleArgs{.logits = {logits.data(), {n, rows_.vocab}},
                            .batch = batch(),
                            .tokens = {tokens_.data(), {n}},
                            .logprobs = {logprobs_.data(), {n}},
                            .top_tokens = {top_tokens_.data(), {n, width}},
                            .top_logprobs = {top_logprobs_.data(), {n, width}},
                            .plain = plain});
    return results();
  }

  [[nodiscard]] ShardDrawn draw(std::int64_t num_shards, bool plain) {
    const std::int64_t n = rows_.size(), width = rows_.width();
    const std::int64_t columns = align_up(ceil_div(rows_.vocab, num_shards), kShardAlignment);
    std::vector<Buffer<float>> shards;
    std::vector<ShardLogits> views;
    for (std::int64_t s = 0; s < num_shards; ++s) {
      const std::int64_t first = s * columns;
      const std::int64_t count = std::clamp<std::int64_t>(rows_.vocab - first, 0, columns);
      std::vector<float> part(elements(n * columns), 1e30f);  // columns after do not count
      for (std::int64_t r = 0; r < n; ++r)
        std::copy_n(rows_.logits.begin() + r * rows_.vocab + std::min(first, rows_.vocab), count,
                    part.begin() + r * columns);
      shards.push_back(upload(part));
      views.push_back({.values = {shards.back().data(), {n, count}, {columns, 1}},
                       .first_token = first,
                       .vocab_size = rows_.vocab});
    }
    Buffer<float> surveys(elements(plain ? 0 : n * num_shards * kSurveyWords));
    const MatrixView<const float> all_surveys(surveys.data(),
                                              {n, plain ? 0 : num_shards * kSurveyWords});
    if (!plain) {
      gather(num_shards, kSurveyWords, surveys, [&](std::int64_t s, MatrixView<float> survey) {
        backend_.run(
            SurveyShardArgs{.logits = views[elements(s)], .batch = batch(), .survey = survey});
      });
    }
    Buffer<float> winners(elements(n * num_shards * kWinnerWords));
    gather(num_shards, kWinnerWords, winners, [&](std::int64_t s, MatrixView<float> winner) {
      if (!plain) {  // what a backend keeps is of the last survey
        Buffer<float> again(elements(n * kSurveyWords));
        backend_.run(SurveyShardArgs{.logits = views[elements(s)],
                                     .batch = batch(),
                                     .survey = {again.data(), {n, kSurveyWords}}});
      }
      backend_.run(DrawShardArgs{.logits = views[elements(s)],
                                 .batch = batch(),
                                 .shard = s,
                                 .surveys = all_surveys,
                                 .winner = winner});
    });
    backend_.run(PickWinnerArgs{.rows = batch().rows,
                                .surveys = all_surveys,
                                .winners = {winners.data(), {n, num_shards * kWinnerWords}},
                                .tokens = {tokens_.data(), {n}},
                                .logprobs = {logprobs_.data(), {n}},
                                .top_tokens = {top_tokens_.data(), {n, width}},
                                .top_logprobs = {top_logprobs_.data(), {n, width}}});
    return results();
  }

 private:
  static std::size_t elements(std::int64_t n) { return static_cast<std::size_t>(n); }

  template <class T>
  [[nodiscard]] Buffer<T> upload(const std::vector<T>& values) {
    Buffer<T> out(values.size());
    backend_.upload(values.data(), out.data(), values.size());
    return out;
  }
  template <class T>
  [[nodiscard]] std::vector<T> download(const Buffer<T>& buffer) {
    std::vector<T> out(static_cast<std::size_t>(buffer.size()));
    backend_.download(buffer.data(), out.data(), out.size());
    return out;
  }

  /// all_gather_columns of what make(s, part) leaves in `part`, [n, words].
  template <class Make>
  void gather(std::int64_t num_shards, std::int64_t words, Buffer<float>& whole, const Make& make) {
    const std::int64_t n = rows_.size();
    std::vector<float> all(elements(n * num_shards * words));
    for (std::int64_t s = 0; s < num_shards; ++s) {
      Buffer<float> part = upload(std::vector<float>(elements(n * words), 3.f));
      make(s, MatrixView<float>(part.data(), {n, words}));
      const std::vector<float> values = download(part);
      for (std::int64_t r = 0; r < n; ++r)
        std::copy_n(values.begin() + r * words, words, all.begin() + (r * num_shards + s) * words);
    }
    backend_.upload(all.data(), whole.data(), all.size());
  }

  [[nodiscard]] SamplingBatch batch() {
    const std::int64_t n = rows_.size();
    SamplingBatch out;
    out.rows = {settings_.data(), {n}};
    out.banned.starts = {starts_.data(), {n + 1}};
    out.banned.values = {banned_.data(), {static_cast<std::int64_t>(rows_.banned.size())}};
    return out;
  }

  [[nodiscard]] ShardDrawn results() {
    return {download(tokens_), download(top_tokens_), download(logprobs_), download(top_logprobs_)};
  }

  B& backend_;
  const ShardDrawRows& rows_;
  Buffer<SamplingRow> settings_;
  Buffer<std::int32_t> starts_;
  Buffer<TokenId> banned_, tokens_;
  Buffer<float> logprobs_;
  Buffer<TokenId> top_tokens_;
  Buffer<float> top_logprobs_;
};

/// Tokens and lists are those of `sample`; log-probabilities, too, within `bound`.
template <class B>
void shard_draw_cases(B& backend, float bound) {
  for (const bool plain : {false, true}) {
    for (const std::int64_t vocab : {1, 250, 2051, 9000}) {
      for (std::uint32_t seed = 0; seed < 3; ++seed) {
        const ShardDrawRows rows = shard_draw_rows(vocab, plain, 10 * seed + (plain ? 1 : 0));
        ShardDrawRig<B> rig(backend, rows);
        const ShardDrawn expected = rig.sample(plain);
        for (const std::int64_t num_shards : {1, 2, 3, 4, 8}) {
          INFO((plain ? "plain rows, " : "rows, ")
               << vocab << " tokens, seed " << seed << ", " << num_shards << " shards");
          ShardDrawRig<B> fresh(backend, rows);
          const ShardDrawn got = fresh.draw(num_shards, plain);
          CHECK(got.tokens == expected.tokens);
          CHECK(got.top_tokens == expected.top_tokens);
          const auto check_near = [&](const std::vector<float>& a, const std::vector<float>& b) {
            REQUIRE(a.size() == b.size());
            std::size_t num_far = 0;
            for (std::size_t i = 0; i < a.size(); ++i)
              num_far += a[i] == b[i] || std::abs(a[i] - b[i]) <= bound ? 0 : 1;
            CHECK(num_far == 0);
          };
          check_near(got.logprobs, expected.logprobs);
          check_near(got.top_logprobs, expected.top_logprobs);
        }
      }
    }
  }
}

}  // namespace nanovllm::test::ops
