// Residual streams that are asked for: each is what a network of fewer layers gives to its final
// norm, on one rank and on two, and asking changes no logit.

#include "nanovllm/model/layers/stream_taps.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "model/one_sequence.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/parallel/thread_group.hpp"

using namespace nanovllm;

namespace {

constexpr std::int64_t kWidth = 24, kLayers = 3;

Qwen3Config config_of(std::int64_t num_layers) {
  return Qwen3Config::from_json(
      R"({"model_type": "qwen3", "hidden_size": 24, "num_hidden_layers": )" +
      std::to_string(num_layers) +
      R"(, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
          "intermediate_size": 32, "vocab_size": 40, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true})");
}

struct Outputs {
  std::vector<float> logits;   // [n, vocab]
  std::vector<float> hidden;   // [n, width]
  std::vector<float> streams;  // [n, layers that were asked for · width]
};

using Networks = Qwen3Network<shapes::qwen3_any, Elements<float>, CpuBackend, ThreadGroup>;

/// One rank's part of a step, and of a decode after it: their outputs below each other.
Outputs run(std::int64_t num_layers, std::vector<std::int64_t> asked, ThreadGroup comm) {
  const StepLimits limits{.max_num_batched_tokens = 32, .max_num_seqs = 32, .max_model_len = 64};
  CpuBackend backend(BackendConfig{.num_threads = 1});
  Networks network(config_of(num_layers), limits, backend, comm);
  network.weights().randomize(7, backend, 0.3f);
  if (!asked.empty()) network.taps().open(std::move(asked), num_layers);
  KvPool<float, CpuBackend::Buffer<float>> kv(
      {num_layers, network.num_kv_heads(), network.head_dim(), 16, sizeof(float)}, 8);
  test::OneSequence sequence(4);
  Outputs out;
  const auto append = [](std::vector<float>& to, const auto& rows) {
    to.insert(to.end(), rows.data, rows.data + rows.size());
  };
  const auto step = [&](const std::vector<TokenId>& tokens, std::int32_t begin) {
    ForwardBatch batch = sequence.batch(tokens, begin);
    batch.hidden_rows = batch.logit_rows;
    const auto n = static_cast<std::int64_t>(tokens.size());
    const std::int64_t vocab = network.padded_vocab_size();
    std::vector<float> logits(static_cast<std::size_t>(n * vocab)), hidden(n * kWidth);
    network.forward(batch, kv, {logits.data(), {n, vocab}}, {hidden.data(), {n, kWidth}});
    append(out.logits, VectorView<float>(logits.data(), {n * vocab}));
    append(out.hidden, VectorView<float>(hidden.data(), {n * kWidth}));
    append(out.streams, network.taps().rows(n));
  };
  step({3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7, 9, 3, 2, 3, 8}, 0);
  step({33}, 18);
  return out;
}

Outputs run_one(std::int64_t num_layers, std::vector<std::int64_t> asked = {}) {
  return run(num_layers, std::move(asked), ThreadGroup::make(1)[0]);
}

/// `width` columns from `column` on of rows of `stride`.
std::vector<float> columns(const std::vector<float>& rows, std::int64_t stride,
                           std::int64_t column) {
  std::vector<float> out;
  for (std::size_t row = 0; row < rows.size(); row += static_cast<std::size_t>(stride))
    out.insert(out.end(), rows.begin() + static_cast<std::ptrdiff_t>(row) + column * kWidth,
               rows.begin() + static_cast<std::ptrdiff_t>(row) + (column + 1) * kWidth);
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Norms are filled with 1: hidden states of so many layers are x / rms(x).
void check_normed(const std::vector<float>& stream, const std::vector<float>& hidden) {
  for (std::size_t row = 0; row < 19; ++row) {
    double squares = 0;
    for (std::size_t e = 0; e < kWidth; ++e)
      squares += std::pow(double{stream[row * kWidth + e]}, 2);
    for (std::size_t e = 0; e < kWidth; ++e) {
      const double normed = stream[row * kWidth + e] / std::sqrt(squares / kWidth + 1e-6);
      REQUIRE(std::abs(normed - double{hidden[row * kWidth + e]}) < 1e-5);
    }
  }
}

}  // namespace

TEST_CASE("a residual stream is what a network of as many layers gives to its final norm",
          "[model][streams]") {
  const std::vector<std::int64_t> asked{2, 0, 3, 2, 1};
  const auto stride = static_cast<std::int64_t>(asked.size()) * kWidth;
  const Outputs all = run_one(kLayers, asked);
  REQUIRE(all.streams.size() == static_cast<std::size_t>(19 * stride));
  for (std::size_t i = 0; i < asked.size(); ++i) {
    INFO("layer " << asked[i]);
    const std::vector<float> stream = columns(all.streams, stride, static_cast<std::int64_t>(i));
    if (asked[i] > 0) {
      const Outputs fewer = run_one(asked[i], {asked[i]});
      CHECK(same_bits(stream, fewer.streams));
      check_normed(stream, fewer.hidden);
    } else {
      // The same token enters with the same row: tokens 1 and 3 of the prompt are equal.
      for (std::size_t e = 0; e < kWidth; ++e)
        REQUIRE(stream[kWidth + e] == stream[3 * kWidth + e]);
    }
  }
}

TEST_CASE("asking for residual streams changes no bit of the logits", "[model][streams][laws]") {
  const Outputs plain = run_one(kLayers), asked = run_one(kLayers, {0, 1, 2, 3});
  CHECK(plain.streams.empty());
  CHECK(same_bits(plain.logits, asked.logits));
  CHECK(same_bits(plain.hidden, asked.hidden));
}

TEST_CASE("two ranks keep the sum over both, to the bit the same", "[model][streams][ranks]") {
  const std::vector<std::int64_t> asked{1, 3};
  // Each rank draws its own shards, so that two ranks are another model than one: they are compared
  // with what a network of fewer layers on two ranks gives.
  const auto on_two = [&](std::int64_t num_layers, const std::vector<std::int64_t>& layers) {
    std::vector<ThreadGroup> ends = ThreadGroup::make(2);
    std::vector<Outputs> out(2);
    std::thread other([&] { out[1] = run(num_layers, layers, ends[1]); });
    out[0] = run(num_layers, layers, ends[0]);
    other.join();
    return out;
  };
  const std::vector<Outputs> both = on_two(kLayers, asked);
  CHECK(same_bits(both[0].streams, both[1].streams));
  CHECK(same_bits(both[0].logits, both[1].logits));
  check_normed(columns(both[0].streams, 2 * kWidth, 1), both[0].hidden);
  const Outputs fewer = on_two(1, {1})[0];
  CHECK(same_bits(columns(both[0].streams, 2 * kWidth, 0), fewer.streams));
}

TEST_CASE("streams of layers that are not there are refused", "[model][streams][errors]") {
  CHECK_THROWS_WITH(run_one(kLayers, {4}),
                    Catch::Matchers::Contains("layers must be in [0, 3], got 4"));
  CHECK_THROWS_AS(run_one(kLayers, {-1}), ConfigError);
}
