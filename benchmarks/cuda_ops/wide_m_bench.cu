// A chain of decode layers of Qwen3-0.6B, or of 8B, on 65 to 256 rows, without attention, qk-norm and
// RoPE: the kernels for some hundred rows, each form by itself and the fastest in a chain, against a
// kernel each for norm, cuBLASLt's product and SwiGLU. Those run in half precision, for which the
// engine has cuBLASLt alone. Arguments: JSON file, and the shape if only one is wanted, 0.6B or 8B.

#include <limits>
#include <string>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/elementwise/rowwise.cuh"
#include "nanovllm/cuda/hopper/linear/wide_m/wide_m_linear.cuh"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"

namespace nanovllm::bench {
namespace {

using cuda::ProductKind;

struct Shape {
  const char* name;
  std::int64_t hidden, q, qkv, width;
  std::size_t layers;
};
constexpr Shape kShapes[] = {{"0.6B", 1024, 2048, 4096, 3072, 28},
                             {"8B", 4096, 4096, 6144, 12288, 3}};
constexpr std::int64_t kRows[] = {65, 96, 128, 192, 256};
constexpr std::int64_t kMostRows = 256;

template <class T>
struct Buffers {
  cuda::DeviceBuffer<T> norm, x, normed, qkv, gate_up, act;
  std::vector<cuda::DeviceMatrix<T>> w_qkv, w_o, w_gate_up, w_down;

  Buffers(const Shape& s, const cuda::Context& context)
      : norm(std::size_t(s.hidden)),
        x(std::size_t(kMostRows * s.hidden)),
        normed(std::size_t(kMostRows * s.hidden)),
        qkv(std::size_t(kMostRows * s.qkv)),
        gate_up(std::size_t(2 * kMostRows * s.width)),
        act(std::size_t(kMostRows * s.width)) {
    for (std::size_t i = 0; i < s.layers; ++i) {
      w_qkv.emplace_back(s.qkv, s.hidden), w_o.emplace_back(s.hidden, s.q);
      w_gate_up.emplace_back(2 * s.width, s.hidden), w_down.emplace_back(s.hidden, s.width);
    }
    for (auto* weights : {&w_qkv, &w_o, &w_gate_up, &w_down}) {
      for (auto& w : *weights) cuda::detail::fill_noise(w.data(), w.rows() * w.cols(), context);
    }
    for (auto* buffer : {&norm, &x, &normed, &qkv, &act})
      cuda::detail::fill_noise(buffer->data(), std::int64_t(buffer->size()), context);
  }
};

template <class T>
MatrixView<T> rows_of(cuda::DeviceBuffer<T>& from, std::int64_t m, std::int64_t cols,
                      std::int64_t stride = 0) {
  return {from.data(), {m, cols}, {stride == 0 ? cols : stride, 1}};
}

/// A kernel each: norm, product, SwiGLU.
class Parts {
 public:
  Parts(const Shape& s, const cuda::Context& context) : s_(s), b_(s, context), context_(context) {}

  void tune(std::int64_t m) {
    for (auto* weights : {&b_.w_qkv, &b_.w_o, &b_.w_gate_up, &b_.w_down}) {
      std::vector<const cuda::DeviceMatrix<half>*> all;
      for (const auto& w : *weights) all.push_back(&w);
      const bool accumulate = weights == &b_.w_o || weights == &b_.w_down;
      cuda::DenseTuner(engine_, context_).tune_linear<half, half>(all, accumulate, std::vector{m});
    }
  }

  void qkv(std::int64_t m, int i) {
    norm(m);
    product(rows_of(b_.normed, m, s_.hidden), b_.w_qkv, i, rows_of(b_.qkv, m, s_.qkv), false);
  }
  void o(std::int64_t m, int i) {
    product(rows_of(b_.qkv, m, s_.q, s_.qkv), b_.w_o, i, rows_of(b_.x, m, s_.hidden), true);
  }
  void gate_up(std::int64_t m, int i) {
    norm(m);
    product(rows_of(b_.normed, m, s_.hidden), b_.w_gate_up, i, rows_of(b_.gate_up, m, 2 * s_.width),
            false);
    cuda::silu_mul(SiluMulArgs<half>{.gate_up = rows_of(b_.gate_up, m, 2 * s_.width),
                                     .out = rows_of(b_.act, m, s_.width)},
                   context_);
  }
  void down(std::int64_t m, int i) {
    product(rows_of(b_.act, m, s_.width), b_.w_down, i, rows_of(b_.x, m, s_.hidden), true);
  }

 private:
  void norm(std::int64_t m) {
    cuda::rms_norm(RmsNormArgs<half>{.x = rows_of(b_.x, m, s_.hidden),
                                     .weight = {b_.norm.data(), {s_.hidden}},
                                     .out = rows_of(b_.normed, m, s_.hidden)},
                   context_);
  }
  void product(MatrixView<half> x, std::vector<cuda::DeviceMatrix<half>>& weights, int i,
               MatrixView<half> y, bool accumulate) {
    engine_.run<half, half>(
        {.x = x, .weight = &weights[std::size_t(i) % s_.layers], .y = y, .accumulate = accumulate},
        context_);
  }

  Shape s_;
  Buffers<half> b_;
  cuda::Context context_;
  cuda::DenseEngine<cuda::DeviceArchitectures> engine_;
};

/// The kernels for some hundred rows.
class Wide {
 public:
  Wide(const Shape& s, const cuda::Context& context) : s_(s), b_(s, context), context_(context) {}

  bool run(int op, std::int64_t m, int i, int variant) {
    const auto weight = [&](auto& w) { return w[std::size_t(i) % s_.layers].view(); };
    const InputNorm<bf16> norm{VectorView<const bf16>(b_.norm.data(), {s_.hidden}), 1e-6f};
    const MatrixView<bf16> x = rows_of(b_.x, m, s_.hidden);
    cuda::DenseLayer<bf16> layer;
    switch (op) {
      case 0:
        layer = {.x = x, .norm = norm, .weight = weight(b_.w_qkv), .y = rows_of(b_.qkv, m, s_.qkv)};
        break;
      case 1:
        layer = {.x = rows_of(b_.qkv, m, s_.q, s_.qkv), .weight = weight(b_.w_o), .y = x};
        break;
      case 2:
        layer = {.x = x,
                 .norm = norm,
                 .weight = weight(b_.w_gate_up),
                 .y = rows_of(b_.act, m, s_.width)};
        layer.gated = true;
        break;
      default: layer = {.x = rows_of(b_.act, m, s_.width), .weight = weight(b_.w_down), .y = x};
    }
    layer.accumulate = op % 2 == 1;
    return cuda::wide_m_linear(layer, variant, maps_, context_);
  }

  static ProductKind kind(int op) {
    return op == 0 ? ProductKind::normed : op == 2 ? ProductKind::gated : ProductKind::plain;
  }

 private:
  Shape s_;
  Buffers<bf16> b_;
  cuda::Context context_;
  cuda::TensorMaps maps_;
};

void run_shape(const Shape& s, const cuda::Context& context, Report& report) {
  Parts parts(s, context);
  Wide wide(s, context);
  const int calls = static_cast<int>(s.layers) * (s.layers < 10 ? 2 : 1);
  const std::int64_t of_op[] = {s.qkv * s.hidden, s.hidden * s.q, 2 * s.width * s.hidden,
                                s.hidden * s.width};
  const char* const names[] = {"norm, qkv", "o", "norm, gate_up, SwiGLU", "down"};
  for (const std::int64_t m : kRows) {
    parts.tune(m);
    const std::string where = std::string(" ") + s.name + " M=" + std::to_string(m);
    void (Parts::*const ops[])(std::int64_t, int) = {&Parts::qkv, &Parts::o, &Parts::gate_up,
                                                     &Parts::down};
    int best[4] = {};
    for (int op = 0; op < 4; ++op) {
      const double bytes = 2. * double(of_op[op]), flop = bytes * double(m);
      const auto add = [&](const std::string& name, const std::function<void(int)>& run) {
        const Timing timing = time_in_graph(context, run, calls, 10);
        report.add(names[op] + name + where, timing, bytes, flop);
        return timing.median_us;
      };
      add(", parts", [&](int i) { (parts.*ops[op])(m, i); });
      double least = std::numeric_limits<double>::infinity();
      for (int variant = 0; variant < cuda::kWideMForms.size(Wide::kind(op)); ++variant) {
        const cuda::WideMBlock b = cuda::kWideMForms.at(Wide::kind(op), variant);
        if (!wide.run(op, m, 0, variant)) continue;
        const double us = add(", wide " + std::to_string(b.rows) + " / " + std::to_string(b.split) +
                                  " / " + std::to_string(b.stages),
                              [&](int i) { static_cast<void>(wide.run(op, m, i, variant)); });
        if (us < least) least = us, best[op] = variant;
      }
    }
    const double bytes = 2. * double(of_op[0] + of_op[1] + of_op[2] + of_op[3]);
    for (int turn = 0; turn < 2; ++turn) {
      report.add("layer, parts" + where,
                 time_in_graph(
                     context,
                     [&](int i) {
                       for (const auto op : ops) (parts.*op)(m, i);
                     },
                     calls, 10),
                 bytes, bytes * double(m));
      report.add("layer, wide" + where,
                 time_in_graph(
                     context,
                     [&](int i) {
                       for (int op = 0; op < 4; ++op)
                         static_cast<void>(wide.run(op, m, i, best[op]));
                     },
                     calls, 10),
                 bytes, bytes * double(m));
    }
  }
}

}  // namespace

void run_all(const char* path, const std::string& only) {
  const cuda::Stream stream;
  const cuda::Context context = cuda::Context::on(stream.get());
  Report report;
  for (const Shape& shape : kShapes) {
    if (only.empty() || only == shape.name) run_shape(shape, context, report);
  }
  if (path != nullptr) report.write(path);
}

}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  nanovllm::bench::run_all(argc > 1 ? argv[1] : nullptr, argc > 2 ? argv[2] : "");
}
