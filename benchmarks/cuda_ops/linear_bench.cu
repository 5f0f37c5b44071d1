// Dense layers of Qwen3-0.6B and Qwen3-8B in bf16, weights from memory: the own kernel for few rows
// against the best algorithm of cuBLASLt, all linears of a step in a row, and the time to tune
// them. Arguments: JSON file, and optionally a word that the names of rows must contain.

#include <chrono>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"

namespace nanovllm::bench {
namespace {

using cuda::DeviceBuffer;
using cuda::DeviceMatrix;

struct Shape {
  const char* name;
  std::int64_t n, k;
  bool accumulate;
};

struct Model {
  const char* name;
  std::int64_t num_layers;
  Shape layer[4];
  Shape lm_head;
};

constexpr Model kModels[] = {
    {"0.6B",
     28,
     {{"qkv", 4096, 1024, false},
      {"o", 1024, 2048, true},
      {"gate_up", 6144, 1024, false},
      {"down", 1024, 3072, true}},
     {"lm_head", 151936, 1024, false}},
    {"8B",
     4,
     {{"qkv", 6144, 4096, false},
      {"o", 4096, 4096, true},
      {"gate_up", 24576, 4096, false},
      {"down", 4096, 12288, true}},
     {"lm_head", 151936, 4096, false}},
};

/// Matrices of one shape, filled with noise.
std::deque<DeviceMatrix<bf16>> make_weights(const Shape& shape, std::int64_t count,
                                            const cuda::Context& context) {
  std::deque<DeviceMatrix<bf16>> out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.emplace_back(shape.n, shape.k);
    cuda::detail::fill_noise(out.back().data(), shape.n * shape.k, context);
  }
  return out;
}

std::vector<const DeviceMatrix<bf16>*> pointers(const std::deque<DeviceMatrix<bf16>>& weights) {
  std::vector<const DeviceMatrix<bf16>*> out;
  for (const auto& weight : weights) out.push_back(&weight);
  return out;
}

struct Bench {
  cuda::Stream stream;
  cuda::Context context = cuda::Context::on(stream.get());
  cuda::BlasHandle blas;
  DeviceBuffer<std::byte> workspace{cuda::kBlasWorkspaceBytes};
  Report report;
  const char* wanted = "";

  [[nodiscard]] bool wants(const std::string& name) const {
    return name.find(wanted) != std::string::npos;
  }

  /// One shape at one number of rows, every way.
  template <class Out>
  void shape(const std::string& model, const Shape& s, std::int64_t m,
             const std::vector<const DeviceMatrix<bf16>*>& weights, bf16* x, Out* y) {
    const std::string name = model + " " + s.name + " M=" + std::to_string(m);
    if (!wants(name)) return;
    const double flop = 2.0 * m * s.n * s.k;
    const double bytes = 2.0 * (s.n * s.k + m * s.k) + double(sizeof(Out)) * m * s.n;
    const bool few = m <= 256;
    const int calls = few ? int(std::clamp<double>(3e8 / bytes, 2, 20)) : 2;
    const int replays = few ? 15 : 7;
    const auto weight = [&](int i) { return weights[std::size_t(i) % weights.size()]->view(); };
    const MatrixView<const bf16> xs(x, {m, s.k});
    const MatrixView<Out> ys(y, {m, s.n});
    if (m <= cuda::kMaxSmallMRows) {
      for (const int tiles : cuda::kSmallMTiles) {
        const auto run = [&](int i) {
          static_cast<void>(cuda::small_m_linear(
              cuda::DenseLayer<bf16, Out>{
                  .x = xs, .weight = weight(i), .y = ys, .accumulate = s.accumulate},
              tiles, context));
        };
        report.add(name + " own, tiles " + std::to_string(tiles),
                   time_in_graph(context, run, calls, replays), bytes, flop);
      }
    }
    cuda::BlasProduct product({.m = m,
                               .n = s.n,
                               .k = s.k,
                               .x_stride = s.k,
                               .y_stride = s.n,
                               .in = CUDA_R_16BF,
                               .out = cuda::kCudaDataType<Out>,
                               .accumulate = s.accumulate,
                               .alignment = 16});
    const std::size_t size = workspace.size();
    Timing first, best;
    for (const auto& algorithm : product.heuristics(blas, few ? 8 : 4, size, true)) {
      const auto run = [&](int i) {
        static_cast<void>(product.run(blas, algorithm, x, weight(i).data, y, workspace.data(), size,
                                      context.stream));
      };
      const Timing timing = time_in_graph(context, run, calls, replays);
      if (first.median_us == 0) first = best = timing;
      if (timing.median_us < best.median_us) best = timing;
    }
    report.add(name + " cuBLASLt, first", first, bytes, flop);
    report.add(name + " cuBLASLt, best", best, bytes, flop);
  }

  /// All linears of a step of `m` rows, one after the other, as the engine runs them.
  void step(const Model& model, std::int64_t m,
            cuda::DenseEngine<cuda::DeviceArchitectures>& engine,
            const std::deque<DeviceMatrix<bf16>> (&layers)[4], const DeviceMatrix<bf16>& lm_head,
            bf16* x, bf16* y, float* logits) {
    const auto linears = [&](int) {
      for (std::int64_t l = 0; l < model.num_layers; ++l) {
        for (int i = 0; i < 4; ++i) {
          const Shape& s = model.layer[i];
          bf16 *const from = i % 2 == 0 ? x : y, *const to = i % 2 == 0 ? y : x;
          const std::int64_t stride = i % 2 == 0 ? s.k : model.layer[i - 1].n;
          cuda::linear(LinearArgs<bf16, DeviceMatrix<bf16>>{.x = MatrixView<const bf16>(
                                                                from, {m, s.k}, {stride, 1}),
                                                            .weight = &layers[i][std::size_t(l)],
                                                            .y = MatrixView<bf16>(to, {m, s.n}),
                                                            .accumulate = s.accumulate},
                       engine, context);
        }
      }
      cuda::linear(
          LinearArgs<bf16, DeviceMatrix<bf16>, float>{
              .x = MatrixView<const bf16>(x, {m, model.lm_head.k}),
              .weight = &lm_head,
              .y = MatrixView<float>(logits, {m, model.lm_head.n})},
          engine, context);
    };
    if (!wants(std::string(model.name) + " all linears of a step M=" + std::to_string(m))) return;
    std::string ways;  // the letter of the kernel, and its variant
    for (int i = 0; i < 4; ++i) {
      const Shape& s = model.layer[i];
      const cuda::DensePlan plan = engine.plan_for(
          LinearArgs<bf16, DeviceMatrix<bf16>>{.x = MatrixView<const bf16>(x, {m, s.k}),
                                               .weight = &layers[i][0],
                                               .y = MatrixView<bf16>(y, {m, s.n}),
                                               .accumulate = s.accumulate},
          context);
      constexpr const char* kNames[] = {" parts", " b", " s", " m", " w", " h"};
      ways += kNames[static_cast<int>(plan.kernel)];
      if (plan.kernel != cuda::DenseKernel::blas) ways += std::to_string(plan.variant);
    }
    double bytes = double(lm_head.size_bytes());
    for (const auto& matrices : layers)
      bytes += double(matrices[0].size_bytes()) * double(model.num_layers);
    report.add(std::string(model.name) + " all linears of a step M=" + std::to_string(m) + " (" +
                   ways + ")",
               time_in_graph(context, linears, 1, 15), bytes, bytes * double(m));
  }

  void run(const Model& model) {
    constexpr std::int64_t kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 8192, 16384};
    constexpr std::int64_t kMostRows = 16384, kMostLogitRows = 256;
    std::deque<DeviceMatrix<bf16>> layers[4];
    for (int i = 0; i < 4; ++i) layers[i] = make_weights(model.layer[i], model.num_layers, context);
    const auto lm_head = make_weights(model.lm_head, 1, context);
    std::int64_t widest = 0;
    for (const Shape& s : model.layer) widest = std::max({widest, s.n, s.k});
    DeviceBuffer<bf16> x(std::size_t(kMostRows * widest)), y(x.size());
    DeviceBuffer<float> logits(std::size_t(kMostLogitRows * model.lm_head.n));
    cuda::detail::fill_noise(x.data(), std::int64_t(x.size()), context);
    cuda::detail::fill_noise(y.data(), std::int64_t(y.size()), context);
    for (const std::int64_t m : kRows) {
      for (int i = 0; i < 4; ++i)
        shape(model.name, model.layer[i], m, pointers(layers[i]), x.data(), y.data());
      if (m <= kMostLogitRows)
        shape(model.name, model.lm_head, m, pointers(lm_head), x.data(), logits.data());
    }
    cuda::DenseEngine<cuda::DeviceArchitectures> engine;
    cuda::DenseTuner tuner(engine, context);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 4; ++i)
      tuner.tune_linear<bf16, bf16>(pointers(layers[i]), model.layer[i].accumulate,
                                    cuda::kRowBuckets);
    const std::span<const std::int64_t> buckets(cuda::kRowBuckets);
    tuner.tune_linear<bf16, float>(pointers(lm_head), false, buckets.first(13));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%s tuned in %.2f s\n", model.name, seconds.count());
    for (const std::int64_t m : {1, 2, 8, 16, 32, 64, 128, 256}) {
      step(model, m, engine, layers, lm_head[0], x.data(), y.data(), logits.data());
    }
  }
};

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  nanovllm::bench::Bench bench;
  if (argc > 2) bench.wanted = argv[2];
  for (const auto& model : nanovllm::bench::kModels) {
    if (argc <= 3 || std::strcmp(argv[3], model.name) == 0) bench.run(model);
  }
  if (argc > 1) bench.report.write(argv[1]);
}
