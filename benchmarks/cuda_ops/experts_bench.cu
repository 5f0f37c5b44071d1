// A layer of experts of Qwen3-30B-A3B, as tokens are routed evenly or by Zipf's law, in bfloat16 and
// in 8-bit floats: the whole of `route_experts` and `expert_mlp`, and the router's choice alone.
// Bytes are those of the experts that are touched. Then Hopper's gated product of many rows as the
// gate_up of a dense Qwen3-8B, beside cuBLASLt and `silu_mul`. Argument: JSON file.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/with/moe/cuda/fp8_ops.cuh"
#include "nanovllm/with/moe/cuda/hopper/experts.cuh"
#include "nanovllm/with/moe/cuda/ops.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"
#include "nanovllm/with/moe/cuda/workspace.cuh"

namespace nanovllm::bench {
namespace {

constexpr std::int64_t kIn = 2048, kWidth = 768, kExperts = 128, kSlots = 8, kMostRows = 8192;
constexpr int kLayers = 4;  // together larger than the L2 cache for any number of tokens

/// Logits by which `rows` tokens are routed: noise, with `zipf` on top of the logarithm of 1 / rank,
/// so that the heaviest expert gets about ten times the mean.
std::vector<float> router_logits(std::int64_t rows, bool zipf, std::uint64_t seed) {
  std::vector<float> out(static_cast<std::size_t>(rows * kExperts));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 5});
    const double u = std::max(to_unit_interval(words[0]), 1e-9);
    const auto expert = static_cast<double>((i % kExperts * 37) % kExperts);
    // Gumbel noise: experts are drawn without replacement, with probabilities by rank.
    out[i] = static_cast<float>(-std::log(-std::log(u)) - (zipf ? std::log(1 + expert) : 0));
  }
  return out;
}

struct Bench {
  CudaBackend backend{BackendConfig{}};
  const cuda::Context& context = backend.context();
  cuda::DeviceBuffer<bf16> x{kMostRows * kIn}, out{kMostRows * kIn};
  cuda::DeviceBuffer<float> logits{kMostRows * kExperts}, weights{kMostRows * kSlots};
  cuda::DeviceBuffer<std::int32_t> ids{kMostRows * kSlots};
  Report report;

  template <class Matrix>
  [[nodiscard]] std::vector<std::vector<Expert<Matrix>>> layers() {
    std::vector<bf16> noise(static_cast<std::size_t>(2 * kWidth * kIn));
    for (std::size_t i = 0; i < noise.size(); ++i)
      noise[i] = bf16((static_cast<float>(i * 2654435761u % 4096) / 4096.f - 0.5f) / 16);
    std::vector<std::vector<Expert<Matrix>>> out_layers;
    for (int i = 0; i < kLayers; ++i) {
      out_layers.push_back(make_experts<Matrix>(kExperts, kIn, kWidth));
      for (auto& expert : out_layers.back()) {
        backend.set_rows(expert.gate_up, 0,
                         MatrixView<const bf16>(noise.data(), {2 * kWidth, kIn}));
        backend.set_rows(expert.down, 0, MatrixView<const bf16>(noise.data(), {kIn, kWidth}));
      }
    }
    backend.synchronize();
    return out_layers;
  }

  [[nodiscard]] RouteExpertsArgs route(std::int64_t n) {
    return {.logits = {logits.data(), {n, kExperts}},
            .ids = {ids.data(), {n, kSlots}},
            .weights = {weights.data(), {n, kSlots}},
            .normalise = true};
  }

  template <class Matrix>
  void run(const std::string& format, double expert_bytes) {
    const auto experts = layers<Matrix>();
    for (const bool zipf : {false, true}) {
      for (const std::int64_t n : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192}) {
        const std::vector<float> values = router_logits(n, zipf, static_cast<std::uint64_t>(n));
        backend.upload(values.data(), logits.data(), values.size());
        backend.run(route(n));
        std::vector<std::int32_t> chosen(static_cast<std::size_t>(n * kSlots));
        backend.download(ids.data(), chosen.data(), chosen.size());
        std::vector<std::int64_t> counts(kExperts);
        for (const std::int32_t id : chosen) ++counts[static_cast<std::size_t>(id)];
        const auto touched =
            static_cast<double>(kExperts - std::count(counts.begin(), counts.end(), 0));
        const double heaviest =
            static_cast<double>(*std::max_element(counts.begin(), counts.end()));
        const std::string name = format + (zipf ? ", Zipf" : ", even") + ", " + std::to_string(n) +
                                 " tokens, " + std::to_string(static_cast<int>(touched)) +
                                 " experts, heaviest " + std::to_string(static_cast<int>(heaviest));
        const Timing us = time_in_graph(
            context,
            [&](int i) {
              backend.run(route(n));
              backend.run(ExpertMlpArgs<bf16, Matrix>{
                  .x = {x.data(), {n, kIn}},
                  .ids = {ids.data(), {n, kSlots}},
                  .weights = {weights.data(), {n, kSlots}},
                  .experts = experts[static_cast<std::size_t>(i % kLayers)],
                  .out = {out.data(), {n, kIn}}});
            },
            n > 512 ? 8 : 16, n > 512 ? 10 : 30);
        report.add(name, us, touched * expert_bytes,
                   6. * static_cast<double>(n * kSlots) * kIn * kWidth);
      }
    }
  }

  /// The same product with SwiGLU after it: as the one expert's of all tokens, and by parts.
  void run_dense() {
    if (context.compute_capability != 90) return;
    constexpr std::int64_t kHidden = 4096, kIntermediate = 12288;
    cuda::DeviceMatrix<bf16> weight(2 * kIntermediate, kHidden);
    cuda::DeviceBuffer<bf16> in(kMostRows * kHidden), gate_up(kMostRows * 2 * kIntermediate);
    cuda::DeviceBuffer<bf16> h(kMostRows * kIntermediate);
    cuda::detail::fill_noise(weight.data(), weight.rows() * weight.cols(), context);
    cuda::detail::fill_noise(in.data(), static_cast<std::int64_t>(in.size()), context);
    const std::vector<std::int32_t> zeros(kMostRows);
    backend.upload(zeros.data(), ids.data(), zeros.size());
    cuda::ExpertWorkspace workspace;
    workspace.reserve(
        {.max_rows = kMostRows, .experts_per_token = 1, .in = kHidden, .width = kIntermediate},
        sizeof(bf16));
    cuda::DenseEngine<cuda::DeviceArchitectures> engine;
    const std::vector<const cuda::DeviceMatrix<bf16>*> weights{&weight};
    const std::vector<std::int64_t> row_counts{1024, 2048, 8192};
    cuda::DenseTuner(engine, context)
        .template tune_linear<bf16, bf16>(weights, false, row_counts, std::chrono::seconds(2));
    for (const std::int64_t n : row_counts) {
      const MatrixView<const std::int32_t> all(ids.data(), {n, 1});
      const MatrixView<const bf16> x_rows(in.data(), {n, kHidden});
      const double flop = 4. * static_cast<double>(n) * kHidden * kIntermediate;
      const std::string rows = std::to_string(n) + " tokens";
      cuda::plan_experts(all, {0, 1}, cuda::kWideExpertTokens, workspace.plan(), context);
      const Timing fused = time_in_graph(
          context,
          [&](int) {
            cuda::wide_expert_product<true>(
                cuda::GroupedOperands<bf16, bf16>{.x = x_rows.data,
                                                  .weight = weight.data(),
                                                  .y = h.data(),
                                                  .x_stride = kHidden,
                                                  .y_stride = kIntermediate,
                                                  .weight_stride = kHidden,
                                                  .expert_stride = 0,
                                                  .divisor = 1,
                                                  .n = kIntermediate,
                                                  .k = kHidden,
                                                  .row_blocks = 0,
                                                  .ids = all,
                                                  .local = {0, 1},
                                                  .plan = workspace.plan(),
                                                  .plan_is_ready = false},
                1, cuda::max_expert_tiles(n, 1, cuda::kWideExpertTokens), workspace.maps(),
                context);
          },
          4, 10);
      report.add("8B gate_up as an expert's, " + rows, fused, 0, flop);
      const MatrixView<bf16> y(gate_up.data(), {n, 2 * kIntermediate});
      const auto product = [&](int) {
        engine.run(
            LinearArgs<bf16, cuda::DeviceMatrix<bf16>>{.x = x_rows, .weight = &weight, .y = y},
            context);
      };
      report.add("8B gate_up by cuBLASLt, " + rows, time_in_graph(context, product, 4, 10), 0,
                 flop);
      const Timing parts = time_in_graph(
          context,
          [&](int i) {
            product(i);
            backend.run(SiluMulArgs<bf16>{.gate_up = y, .out = {h.data(), {n, kIntermediate}}});
          },
          4, 10);
      report.add("the same and silu_mul, " + rows, parts, 0, flop);
    }
  }

  void run_all() {
    cuda::detail::fill_noise(x.data(), static_cast<std::int64_t>(x.size()), context);
    constexpr double kElements = 3. * kIn * kWidth;
    run<CudaBackend::Matrix<bf16>>("bf16", 2 * kElements);
    run<CudaBackend::Fp8Matrix>("fp8", kElements * (1 + 4. / 128));
    cuda::ExpertWorkspace workspace;
    workspace.reserve(
        {.max_rows = kMostRows, .experts_per_token = kSlots, .in = kIn, .width = kWidth},
        sizeof(bf16));
    for (const std::int64_t n : {1, 64, 256, 8192}) {
      const Timing us = time_in_graph(context, [&](int) { backend.run(route(n)); });
      report.add("route_experts, " + std::to_string(n) + " tokens", us, 0, 0);
      const MatrixView<const std::int32_t> chosen(ids.data(), {n, kSlots});
      const Timing plan = time_in_graph(context, [&](int) {
        cuda::plan_experts(chosen, {0, kExperts}, 64, workspace.plan(), context);
      });
      report.add("plan_experts, " + std::to_string(n) + " tokens", plan, 0, 0);
    }
    run_dense();
  }
};

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  nanovllm::bench::Bench bench;
  bench.run_all();
  if (argc > 1) bench.report.write(argv[1]);
}
