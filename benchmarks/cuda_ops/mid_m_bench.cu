// Dense layers with their norms and SwiGLU on 17 to 64 rows, in the shapes of Qwen3-0.6B and 8B,
// without attention, qk-norm and RoPE: today's kernels, as start-up tunes them, against every form of
// `mid_m_linear`; first each op over all layers, then whole chains of four with the fastest forms.
// Arguments: JSON file (or -), rows ... (17 24 32 48 64 if there are none).

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/elementwise/rowwise.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"

namespace nanovllm::bench {
namespace {

using cuda::NextStart;
using Matrix = cuda::DeviceMatrix<bf16>;

struct Shape {
  const char* name;
  std::int64_t hidden, q, qkv, width;
  int layers;
};

constexpr std::int64_t kMostRows = 64;

struct Bench {
  const Shape& shape;
  Report& report;
  cuda::Stream stream;
  cuda::Context context = cuda::Context::on(stream.get());
  cuda::DenseEngine<cuda::DeviceArchitectures> engine;
  cuda::TensorMaps maps;
  std::vector<Matrix> qkv, o, gate_up, down;
  cuda::DeviceBuffer<bf16> norm, x, normed, heads, both, act;

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  Bench(const Shape& shape_in, Report& report_in)
      : shape(shape_in),
        report(report_in),
        norm(size(shape.hidden)),
        x(size(kMostRows * shape.hidden)),
        normed(size(kMostRows * shape.hidden)),
        heads(size(kMostRows * shape.qkv)),
        both(size(kMostRows * 2 * shape.width)),
        act(size(kMostRows * shape.width)) {
    for (int i = 0; i < shape.layers; ++i) {
      qkv.emplace_back(shape.qkv, shape.hidden);
      o.emplace_back(shape.hidden, shape.q);
      gate_up.emplace_back(2 * shape.width, shape.hidden);
      down.emplace_back(shape.hidden, shape.width);
      for (Matrix* matrix : {&qkv.back(), &o.back(), &gate_up.back(), &down.back()})
        cuda::detail::fill_noise(matrix->data(), matrix->rows() * matrix->cols(), context);
    }
    for (auto* buffer : {&norm, &x, &normed, &heads, &both, &act})
      cuda::detail::fill_noise(buffer->data(), std::int64_t(buffer->size()), context);
  }

  [[nodiscard]] const Matrix& turn(const std::vector<Matrix>& all, int i) const {
    return all[static_cast<std::size_t>(i) % all.size()];
  }

  /// A matrix of the buffer's first rows: `cols` of `stride` columns.
  static MatrixView<bf16> rows_of(cuda::DeviceBuffer<bf16>& from, std::int64_t m, std::int64_t cols,
                                  std::int64_t stride) {
    return {from.data(), {m, cols}, {stride, 1}};
  }
  static MatrixView<const bf16> constant(const MatrixView<bf16>& view) {
    return {view.data, view.extents, view.strides};
  }

  void tune(std::int64_t m) {
    const auto tune_one = [&](const std::vector<Matrix>& all, bool accumulate) {
      std::vector<const Matrix*> pointers;
      for (const Matrix& matrix : all) pointers.push_back(&matrix);
      const std::int64_t counts[] = {m};
      cuda::DenseTuner(engine, context).tune_linear<bf16, bf16>(pointers, accumulate, counts);
    };
    tune_one(qkv, false), tune_one(o, true), tune_one(gate_up, false), tune_one(down, true);
  }

  void run(std::int64_t m) {
    tune(m);
    const auto xs = rows_of(x, m, shape.hidden, shape.hidden);
    const auto ns = rows_of(normed, m, shape.hidden, shape.hidden);
    const auto hs = rows_of(heads, m, shape.qkv, shape.qkv);
    const auto qs = rows_of(heads, m, shape.q, shape.qkv);
    const auto gs = rows_of(both, m, 2 * shape.width, 2 * shape.width);
    const auto as = rows_of(act, m, shape.width, shape.width);
    const VectorView<const bf16> scale(norm.data(), {shape.hidden});
    const InputNorm<bf16> ahead{scale, 1e-6f};
    const auto linear = [&](const MatrixView<bf16>& in, const Matrix& weight,
                            const MatrixView<bf16>& out, bool accumulate) {
      engine.run(
          LinearArgs<bf16, Matrix>{
              .x = constant(in), .weight = &weight, .y = out, .accumulate = accumulate},
          context);
    };
    const auto apply_norm = [&] {
      cuda::rms_norm(RmsNormArgs<bf16>{.x = constant(xs), .weight = scale, .out = ns}, context);
    };
    struct Op {
      const char* name;
      std::int64_t elements;
      std::function<void(int)> parts;
      std::function<bool(int, int, NextStart)> fused;
      cuda::ProductKind kind;
      int best = 0;
    };
    const auto mid = [&](const MatrixView<bf16>& in, bool has_norm, const std::vector<Matrix>& all,
                         const MatrixView<bf16>& out, bool accumulate, bool gated) {
      return [=, this, &all](int i, int variant, NextStart trigger) {
        return cuda::mid_m_linear(
            cuda::DenseLayer<bf16>{.x = constant(in),
                                   .norm = has_norm ? ahead : InputNorm<bf16>{},
                                   .weight = turn(all, i).view(),
                                   .y = out,
                                   .accumulate = accumulate,
                                   .gated = gated},
            variant, maps, context, trigger);
      };
    };
    Op ops[] = {
        {"qkv", shape.qkv * shape.hidden,
         [&](int i) { apply_norm(), linear(ns, turn(qkv, i), hs, false); },
         mid(xs, true, qkv, hs, false, false), cuda::ProductKind::normed},
        {"o", shape.hidden * shape.q, [&](int i) { linear(qs, turn(o, i), xs, true); },
         mid(qs, false, o, xs, true, false), cuda::ProductKind::plain},
        {"gate_up", 2 * shape.width * shape.hidden,
         [&](int i) {
           apply_norm(), linear(ns, turn(gate_up, i), gs, false);
           cuda::silu_mul(SiluMulArgs<bf16>{.gate_up = constant(gs), .out = as}, context);
         },
         mid(xs, true, gate_up, as, false, true), cuda::ProductKind::gated},
        {"down", shape.hidden * shape.width, [&](int i) { linear(as, turn(down, i), xs, true); },
         mid(as, false, down, xs, true, false), cuda::ProductKind::plain}};
    const std::string suffix = std::string(" ") + shape.name + " M=" + std::to_string(m);
    double sum = 0;
    for (Op& op : ops) {
      const double bytes = 2. * double(op.elements), flop = bytes * double(m);
      sum += bytes;
      report.add(op.name + std::string(", parts") + suffix,
                 time_in_graph(context, op.parts, shape.layers, 10), bytes, flop);
      double best = 1e30;
      for (int variant = 0; variant < cuda::kMidMForms.size(op.kind); ++variant) {
        if (!op.fused(0, variant, NextStart::after_wait)) continue;
        const Timing timing = time_in_graph(
            context, [&](int i) { (void)op.fused(i, variant, NextStart::after_wait); },
            shape.layers, 10);
        const cuda::MidMVariant form = cuda::kMidMForms.at(op.kind, variant);
        report.add(op.name + std::string(", mid ") + std::to_string(form.rows) + " / " +
                       std::to_string(form.split) + " / " + std::to_string(form.panels) + suffix,
                   timing, bytes, flop);
        if (timing.median_us < best) best = timing.median_us, op.best = variant;
      }
    }
    const auto chain = [&](bool fused, NextStart of_fused, NextStart of_plain) {
      return [&ops, fused, of_fused, of_plain](int i) {
        for (Op& op : ops) {
          const bool is_plain = &op == &ops[1] || &op == &ops[3];
          if (fused)
            (void)op.fused(i, op.best, is_plain ? of_plain : of_fused);
          else
            op.parts(i);
        }
      };
    };
    const auto add_chain = [&](const std::string& name, const auto& run_layer) {
      report.add("layer, " + name + suffix, time_in_graph(context, run_layer, shape.layers, 20),
                 sum, sum * double(m));
    };
    constexpr auto kAtOnce = NextStart::at_once, kAfterWait = NextStart::after_wait;
    add_chain("parts", chain(false, {}, {}));
    add_chain("mid, at once", chain(true, kAtOnce, kAtOnce));
    add_chain("mid, after wait", chain(true, kAfterWait, kAfterWait));
    add_chain("mid, o and down at once", chain(true, kAfterWait, kAtOnce));
    add_chain("parts again", chain(false, {}, {}));
  }
};

constexpr Shape kShapes[] = {{"0.6B", 1024, 2048, 4096, 3072, 28},
                             {"8B", 4096, 4096, 6144, 12288, 4}};

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  using namespace nanovllm::bench;
  std::vector<std::int64_t> rows;
  for (int i = 2; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
  if (rows.empty()) rows = {17, 24, 32, 48, 64};
  Report report;
  for (const Shape& shape : kShapes) {
    Bench bench(shape, report);
    for (const std::int64_t m : rows) bench.run(m);
  }
  if (argc > 1 && std::string(argv[1]) != "-") report.write(argv[1]);
}
