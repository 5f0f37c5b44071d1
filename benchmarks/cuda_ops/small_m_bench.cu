// A chain of decode layers of Qwen3-0.6B on 1 to 16 rows, without attention, qk-norm and RoPE: the
// kernels for few rows with norms and SwiGLU fused in, against a kernel for each of them.
// Argument: JSON file.

#include <string>

#include "cuda_ops/timing.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/elementwise/rowwise.cuh"
#include "nanovllm/cuda/linear/small_m/small_m_linear.cuh"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"

namespace nanovllm::bench {
namespace {

using cuda::NextStart;

constexpr std::int64_t kHidden = 1024, kQ = 2048, kQkv = 4096, kWidth = 3072, kMostRows = 16;
constexpr std::int64_t kPerLayer = kQkv * kHidden + kHidden * kQ + 3 * kWidth * kHidden;
constexpr int kLayers = 28;

struct Bench {
  cuda::Stream stream;
  cuda::Context context = cuda::Context::on(stream.get());
  cuda::DeviceBuffer<bf16> weights{std::size_t(kPerLayer * kLayers)};
  cuda::DeviceBuffer<bf16> norm{kHidden}, x{kMostRows * kHidden}, normed{kMostRows * kHidden};
  cuda::DeviceBuffer<bf16> qkv{kMostRows * kQkv}, gate_up{kMostRows * 2 * kWidth};
  cuda::DeviceBuffer<bf16> act{kMostRows * kWidth};
  Report report;

  static MatrixView<const bf16> constant(const cuda::DeviceBuffer<bf16>& from, std::int64_t rows,
                                         std::int64_t cols, std::int64_t stride) {
    return {from.data(), {rows, cols}, {stride, 1}};
  }

  void run(std::int64_t m) {
    const MatrixView<bf16> xs(x.data(), {m, kHidden}), ns(normed.data(), {m, kHidden});
    const MatrixView<bf16> heads(qkv.data(), {m, kQkv}), acts(act.data(), {m, kWidth});
    const MatrixView<bf16> both(gate_up.data(), {m, 2 * kWidth});
    const auto x_in = constant(x, m, kHidden, kHidden),
               n_in = constant(normed, m, kHidden, kHidden);
    const auto q_in = constant(qkv, m, kQ, kQkv), act_in = constant(act, m, kWidth, kWidth);
    const VectorView<const bf16> scale(norm.data(), {kHidden});
    const auto weight = [&](int layer, std::int64_t first, std::int64_t rows, std::int64_t k) {
      return MatrixView<const bf16>(weights.data() + layer * kPerLayer + first, {rows, k});
    };
    const auto w_qkv = [&](int i) { return weight(i, 0, kQkv, kHidden); };
    const auto w_o = [&](int i) { return weight(i, kQkv * kHidden, kHidden, kQ); };
    constexpr std::int64_t kGateUp = kQkv * kHidden + kHidden * kQ;
    const auto w_gate_up = [&](int i) { return weight(i, kGateUp, 2 * kWidth, kHidden); };
    const auto w_down = [&](int i) {
      return weight(i, kGateUp + 2 * kWidth * kHidden, kHidden, kWidth);
    };
    const auto layer = [](const auto& in, const auto& w, const auto& out, bool adds) {
      return cuda::DenseLayer<bf16>{.x = in, .weight = w, .y = out, .accumulate = adds};
    };
    const auto run = [&](const cuda::DenseLayer<bf16>& of, int tiles,
                         NextStart start = NextStart::at_once) {
      static_cast<void>(cuda::small_m_linear(of, tiles, context, start));
    };
    const auto composed = [&](int i) {
      cuda::rms_norm(RmsNormArgs<bf16>{.x = x_in, .weight = scale, .out = ns}, context);
      run(layer(n_in, w_qkv(i), heads, false), 4);
      run(layer(q_in, w_o(i), xs, true), 1);
      cuda::rms_norm(RmsNormArgs<bf16>{.x = x_in, .weight = scale, .out = ns}, context);
      run(layer(n_in, w_gate_up(i), both, false), 6);
      cuda::silu_mul(
          SiluMulArgs<bf16>{.gate_up = constant(gate_up, m, 2 * kWidth, 2 * kWidth), .out = acts},
          context);
      run(layer(act_in, w_down(i), xs, true), 1);
    };
    const InputNorm<bf16> ahead{scale, 1e-6f};
    const auto fused = [&](NextStart start) {
      return [&, start](int i) {
        auto qkv = layer(x_in, w_qkv(i), heads, false),
             mlp = layer(x_in, w_gate_up(i), acts, false);
        qkv.norm = mlp.norm = ahead;
        mlp.gated = true;
        run(qkv, 4, start);
        run(layer(q_in, w_o(i), xs, true), 1, start);
        run(mlp, 6, start);
        run(layer(act_in, w_down(i), xs, true), 1, start);
      };
    };
    const std::string rows = " M=" + std::to_string(m);
    const double bytes = 2. * kPerLayer, flop = bytes * double(m);
    report.add("layer, a kernel each" + rows, time_in_graph(context, composed, kLayers), bytes,
               flop);
    report.add("layer, fused" + rows, time_in_graph(context, fused(NextStart::at_once), kLayers),
               bytes, flop);
    report.add("layer, fused, successors wait" + rows,
               time_in_graph(context, fused(NextStart::after_wait), kLayers), bytes, flop);
  }

  void run_all() {
    for (auto* buffer : {&weights, &norm, &x, &qkv, &act})
      cuda::detail::fill_noise(buffer->data(), std::int64_t(buffer->size()), context);
    for (const std::int64_t m : {1, 2, 4, 8, 16}) run(m);
  }
};

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  nanovllm::bench::Bench bench;
  bench.run_all();
  if (argc > 1) bench.report.write(argv[1]);
}
