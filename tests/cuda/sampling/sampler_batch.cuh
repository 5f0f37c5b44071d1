#pragma once
/// Rows to sample for the tests of the sampler: on the host, on the device, and what the CPU says.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cpu/kernels/sampler.hpp"
#include "nanovllm/cuda/sampling/sampler.cuh"

namespace nanovllm::test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr TokenId kPoisonToken = -1;  // what GpuArray's poison reads as

inline cpu::ThreadPool& pool() {
  static cpu::ThreadPool threads(
      std::min(16, std::max(1, static_cast<int>(std::thread::hardware_concurrency()))));
  return threads;
}

/// The outputs of a call.
struct Outputs {
  std::vector<TokenId> tokens, top_tokens;
  std::vector<float> logprobs, top_logprobs;

  [[nodiscard]] bool same_bits(const Outputs& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
    };
    return same(tokens, other.tokens) && same(top_tokens, other.top_tokens) &&
           same(logprobs, other.logprobs) && same(top_logprobs, other.top_logprobs);
  }
};

/// Rows to sample, on the host.
struct Batch {
  std::int64_t vocab;
  std::vector<float> logits;
  std::vector<SamplingRow> rows;
  std::vector<std::int32_t> banned_starts{0};
  std::vector<TokenId> banned;
  std::int64_t width = 0;

  explicit Batch(std::int64_t size) : vocab(size) {}

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }

  void add(const std::vector<float>& row, const SamplingRow& settings,
           const std::vector<TokenId>& bans = {}) {
    REQUIRE(static_cast<std::int64_t>(row.size()) == vocab);
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(settings);
    banned.insert(banned.end(), bans.begin(), bans.end());
    banned_starts.push_back(static_cast<std::int32_t>(banned.size()));
    width = std::max<std::int64_t>(width, settings.num_logprobs);
  }

  /// What the CPU answers.
  [[nodiscard]] Outputs expected() const {
    std::vector<float> scratch = logits;
    Outputs out;
    out.tokens.assign(rows.size(), kPoisonToken);
    out.logprobs.assign(rows.size(), kNaN);
    out.top_tokens.assign(static_cast<std::size_t>(size() * width), kPoisonToken);
    out.top_logprobs.assign(static_cast<std::size_t>(size() * width), kNaN);
    SampleArgs args;
    args.logits = {scratch.data(), {size(), vocab}};
    args.batch.rows = {rows.data(), {size()}};
    args.batch.banned.starts = {banned_starts.data(), {size() + 1}};
    args.batch.banned.values = {banned.data(), {banned_starts.back()}};
    args.tokens = {out.tokens.data(), {size()}};
    args.logprobs = {out.logprobs.data(), {size()}};
    args.top_tokens = {out.top_tokens.data(), {size(), width}};
    args.top_logprobs = {out.top_logprobs.data(), {size(), width}};
    cpu::sample(args, {.pool = &pool(), .isa = cpu::best_isa()});
    return out;
  }
};

/// A batch on the device. The rows begin `offset` elements after a 16-byte boundary and are
/// `stride` apart; what lies between them is +inf, which would win if it were read.
class DeviceBatch {
 public:
  explicit DeviceBatch(const Batch& batch, std::int64_t stride = 0, std::int64_t offset = 0)
      : rows_(batch.size()),
        vocab_(batch.vocab),
        width_(batch.width),
        stride_(stride == 0 ? batch.vocab : stride),
        offset_(offset),
        logits_(static_cast<std::size_t>(rows_ * stride_ + offset)),
        settings_(batch.rows),
        starts_(batch.banned_starts),
        banned_(batch.banned.size() + 5),
        tokens_(batch.rows.size()),
        top_tokens_(static_cast<std::size_t>(rows_ * width_)),
        logprobs_(batch.rows.size()),
        top_logprobs_(static_cast<std::size_t>(rows_ * width_)) {
    load(batch);
  }

  /// Other rows of the same shape, in the same memory.
  void load(const Batch& batch) {
    REQUIRE(batch.size() == rows_);
    std::fill(logits_.host.begin(), logits_.host.end(), kInfinity);
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::copy_n(batch.logits.begin() + r * vocab_, vocab_,
                  logits_.host.begin() + offset_ + r * stride_);
    }
    settings_.host = batch.rows;
    starts_.host = batch.banned_starts;
    // As in a captured graph, there is room for more bans than there are.
    REQUIRE(batch.banned.size() <= banned_.size());
    std::copy(batch.banned.begin(), batch.banned.end(), banned_.host.begin());
    logits_.upload();
    settings_.upload();
    starts_.upload();
    banned_.upload();
    poison();
  }

  void poison() {
    for (auto* ids : {&tokens_, &top_tokens_}) {
      std::fill(ids->host.begin(), ids->host.end(), kPoisonToken);
      ids->upload();
    }
    for (auto* values : {&logprobs_, &top_logprobs_}) {
      std::fill(values->host.begin(), values->host.end(), kNaN);
      values->upload();
    }
  }

  [[nodiscard]] SampleArgs args(bool plain = false) {
    SampleArgs out;
    out.plain = plain;
    out.logits = {logits_.data() + offset_, {rows_, vocab_}, {stride_, 1}};
    out.batch.rows = {settings_.data(), {rows_}};
    out.batch.banned.starts = {starts_.data(), {rows_ + 1}};
    out.batch.banned.values = {banned_.data(), {static_cast<std::int64_t>(banned_.size())}};
    out.tokens = {tokens_.data(), {rows_}};
    out.logprobs = {logprobs_.data(), {rows_}};
    out.top_tokens = {top_tokens_.data(), {rows_, width_}};
    out.top_logprobs = {top_logprobs_.data(), {rows_, width_}};
    return out;
  }

  [[nodiscard]] Outputs outputs() {
    Outputs out;
    for (auto* array : {&tokens_, &top_tokens_}) {
      array->download();
      CHECK(array->guards_intact());
    }
    for (auto* array : {&logprobs_, &top_logprobs_}) {
      array->download();
      CHECK(array->guards_intact());
    }
    CHECK(logits_.guards_intact());
    return {tokens_.host, top_tokens_.host, logprobs_.host, top_logprobs_.host};
  }

 private:
  std::int64_t rows_, vocab_, width_, stride_, offset_;
  GpuArray<float> logits_;
  GpuArray<SamplingRow> settings_;
  GpuArray<std::int32_t> starts_;
  GpuArray<TokenId> banned_, tokens_, top_tokens_;
  GpuArray<float> logprobs_, top_logprobs_;
};

inline Outputs sample_on_gpu(const Batch& batch, Gpu& gpu, std::int64_t stride = 0,
                             std::int64_t offset = 0, bool plain = false) {
  cuda::SamplerWorkspace workspace(batch.size(), batch.vocab, gpu.context);
  DeviceBatch device(batch, stride, offset);
  cuda::sample(device.args(plain), workspace, gpu.context);
  gpu.sync();
  return device.outputs();
}

inline TokenId sample_one(const std::vector<float>& row, const SamplingRow& settings, Gpu& gpu,
                          const std::vector<TokenId>& bans = {}) {
  Batch batch(static_cast<std::int64_t>(row.size()));
  batch.add(row, settings, bans);
  return sample_on_gpu(batch, gpu).tokens[0];
}

inline std::string describe(const Batch& batch, std::int64_t r) {
  const SamplingRow& s = batch.rows[static_cast<std::size_t>(r)];
  return concat("row ", r, " of vocabulary ", batch.vocab, ": temperature ", s.temperature,
                ", top_k ", s.top_k, ", top_p ", s.top_p, ", min_p ", s.min_p, ", logprobs ",
                s.num_logprobs, ", bans ",
                batch.banned_starts[static_cast<std::size_t>(r + 1)] -
                    batch.banned_starts[static_cast<std::size_t>(r)]);
}

/// Tokens are the CPU's, without exception: both decide in float64. Log-probabilities are within
/// 1e-5 of the truth on both.
inline void compare(const Batch& batch, const Outputs& out, const Outputs& expected) {
  std::int64_t wrong = 0;
  const auto close = [](float a, float b) {
    return (std::isnan(a) && std::isnan(b)) || a == b || std::abs(a - b) < 2e-5f;
  };
  for (std::int64_t r = 0; r < batch.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    bool good = out.tokens[i] == expected.tokens[i] && close(out.logprobs[i], expected.logprobs[i]);
    for (std::int64_t j = 0; j < batch.width; ++j) {
      const auto k = static_cast<std::size_t>(r * batch.width + j);
      good = good && out.top_tokens[k] == expected.top_tokens[k] &&
             close(out.top_logprobs[k], expected.top_logprobs[k]);
    }
    if (good || ++wrong > 3) continue;  // a few say enough
    std::string top;
    for (std::int64_t j = 0; j < std::min<std::int64_t>(batch.width, 6); ++j) {
      const auto k = static_cast<std::size_t>(r * batch.width + j);
      top += concat(" ", out.top_tokens[k], "/", expected.top_tokens[k], ":", out.top_logprobs[k],
                    "/", expected.top_logprobs[k]);
    }
    FAIL_CHECK(describe(batch, r) << " gave token " << out.tokens[i] << " with " << out.logprobs[i]
                                  << " and not " << expected.tokens[i] << " with "
                                  << expected.logprobs[i] << top);
  }
  CHECK(wrong == 0);
}

enum class Shape { normal, ties, flat, peaked, sparse, lonely };
inline constexpr Shape kShapes[] = {Shape::normal, Shape::ties,   Shape::flat,
                                    Shape::peaked, Shape::sparse, Shape::lonely};

/// Random rows, fast: stretches of one array of normal numbers.
inline std::vector<float> random_row(std::int64_t size, Shape shape, std::mt19937& random,
                                     float deviation = 3.f) {
  static const std::vector<float> normal = [] {
    std::mt19937 source(99);
    std::normal_distribution<float> distribution;
    std::vector<float> out(1 << 20);
    for (float& x : out) x = distribution(source);
    return out;
  }();
  std::vector<float> out(static_cast<std::size_t>(size));
  const auto start = random() % normal.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    float& x = out[i];
    x = deviation * normal[(start + i) % normal.size()];
    if (shape == Shape::ties) x = std::round(x);
    if (shape == Shape::flat) x = -1.25f;
    if (shape == Shape::sparse && i % 11 != 3) x = -kInfinity;
    if (shape == Shape::lonely) x = -kInfinity;
  }
  const auto one = random() % out.size();
  if (shape == Shape::peaked) out[one] = 6.5f * deviation;
  if (shape == Shape::lonely) out[one] = 3.f;
  return out;
}

/// Settings of every kind, different with each call.
inline SamplingRow random_settings(std::int64_t vocab, std::mt19937& random) {
  const auto pick = [&](const auto& from) { return from[random() % std::size(from)]; };
  const float temperatures[] = {0.f, .6f, 1.f, 1.f, .6f, 1.7f, 1e-3f};
  const std::int32_t top_ks[] = {0,
                                 0,
                                 0,
                                 1,
                                 5,
                                 20,
                                 20,
                                 50,
                                 1000,
                                 3000,
                                 static_cast<std::int32_t>(vocab) - 1,
                                 static_cast<std::int32_t>(vocab)};
  const float top_ps[] = {1.f, 1.f, 1.f, .95f, .1f, .5f, .8f, .999f, 1e-9f, .999999f};
  const float min_ps[] = {0.f, 0.f, 0.f, .05f, .5f, 1e-6f, 1.f};
  const std::int32_t logprobs[] = {-1, -1, 0, 1, 5, 20};
  SamplingRow out;
  out.temperature = pick(temperatures);
  out.top_k = pick(top_ks);
  out.top_p = pick(top_ps);
  out.min_p = pick(min_ps);
  out.seed = random() * std::uint64_t{0x100000001};
  out.position = random() % 8 == 0 ? random() * std::uint64_t{0x100000003} : random() % 40000;
  out.num_logprobs = pick(logprobs);
  return out;
}

inline std::vector<TokenId> random_bans(const std::vector<float>& row, std::mt19937& random) {
  std::vector<TokenId> out;
  const auto vocab = row.size();
  const auto kind = random() % 6;
  if (kind < 3) return out;
  const std::size_t count = kind == 3 ? 1 : kind == 4 ? 6 : std::min<std::size_t>(vocab, 700);
  for (std::size_t i = 0; i < count; ++i) out.push_back(static_cast<TokenId>(random() % vocab));
  // The most likely token, or the outcome is the same with and without bans.
  out.push_back(static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
  return out;
}

inline Batch random_batch(std::int64_t vocab, std::int64_t rows, std::mt19937& random) {
  Batch batch(vocab);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto x = random_row(vocab, kShapes[random() % std::size(kShapes)], random,
                              random() % 3 == 0 ? .5f : 3.f);
    batch.add(x, random_settings(vocab, random), random_bans(x, random));
  }
  return batch;
}

}  // namespace nanovllm::test
