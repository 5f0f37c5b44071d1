// The dense layers of Qwen3-0.6B, one by one and as the sequence that a step of the model runs.
// GB/s are of all bytes of the weights, scales among them; the ceiling of GFLOP/s with weights in
// integers is that of bf16.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ceilings.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/ops/weight_format.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"
#include "options.hpp"

namespace {

using namespace nanovllm;
using cpu::AlignedBuffer;

struct Shape {
  const char* name;
  std::int64_t rows, cols;
};
constexpr Shape kLayer[] = {
    {"qkv", 4096, 1024}, {"o", 1024, 2048}, {"gate_up", 6144, 1024}, {"down", 1024, 3072}};
constexpr Shape kHead = {"lm_head", 151936, 1024};
constexpr int kNumLayers = 28;
constexpr std::int64_t kMaxRows = 512, kMaxCols = 3072, kMaxOutputs = 6144;

/// Uniform in [-scale, scale), the same in every run.
template <class T>
void fill(T* out, std::int64_t size, float scale) {
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (std::int64_t i = 0; i < size; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<T>(
        scale * (static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f));
  }
}

template <class Matrix>
Matrix make(const Shape& shape) {
  using T = bf16;
  constexpr std::int64_t kRows = 512;
  Matrix matrix(shape.rows, shape.cols);
  AlignedBuffer<T> rows(kRows * shape.cols);
  fill(rows.data(), rows.size(), 0.05f);
  for (std::int64_t row = 0; row < shape.rows; row += kRows) {
    const std::int64_t count = std::min(kRows, shape.rows - row);
    const MatrixView<const T> view(rows.data(), {count, shape.cols});
    if constexpr (requires { typename Matrix::value_type; }) {
      AlignedBuffer<typename Matrix::value_type> copy(count * shape.cols);
      std::copy_n(rows.data(), copy.size(), copy.data());
      matrix.set_rows(
          row, MatrixView<const typename Matrix::value_type>(copy.data(), {count, shape.cols}));
    } else {
      matrix.set_rows(row, view);
    }
  }
  return matrix;
}

/// All weights of the model in format `F`, each a matrix of its own: larger than the caches
/// together.
template <class F>
struct Weights {
  using Dense = MatrixOf<CpuBackend, F>;
  using Head = MatrixOf<CpuBackend, F, MatrixRole::vocabulary>;

  std::vector<Dense> layers;  ///< four each
  Head head = make<Head>(kHead);

  Weights() {
    for (int layer = 0; layer < kNumLayers; ++layer) {
      for (const Shape& shape : kLayer) layers.push_back(make<Dense>(shape));
    }
  }

  static const Weights& get() {
    static const Weights instance;
    return instance;
  }
};

/// Inputs and outputs for up to kMaxRows rows.
template <class T>
struct Activations {
  AlignedBuffer<T> x{kMaxRows * kMaxCols};
  AlignedBuffer<T> y{kMaxRows * kMaxOutputs};
  AlignedBuffer<float> logits{kMaxRows * kHead.rows};

  Activations() { fill(x.data(), x.size(), 1.0f); }

  template <class Matrix>
  void apply(const Matrix& weight, std::int64_t n) {
    const MatrixView<const T> in(x.data(), {n, weight.cols()});
    if (weight.rows() == kHead.rows) {
      cpu::linear(
          LinearArgs<T, Matrix, float>{
              .x = in, .weight = &weight, .y = {logits.data(), {n, weight.rows()}}},
          cpu_ops::context());
    } else {
      cpu::linear(
          LinearArgs<T, Matrix>{.x = in, .weight = &weight, .y = {y.data(), {n, weight.rows()}}},
          cpu_ops::context());
    }
  }

  static Activations& get() {
    static Activations instance;
    return instance;
  }
};

/// Elements and bytes that are read.
struct Read {
  std::int64_t elements = 0, bytes = 0;

  template <class Matrix>
  void add(const Matrix& matrix) {
    elements += matrix.rows() * matrix.cols();
    bytes += matrix.size_bytes();
  }
};

/// Reports against memory for few rows and against arithmetic for many.
template <class T, class Body>
void report(benchmark::State& state, const Read& read, std::int64_t n, const Body& body) {
  if (n <= 32) {
    cpu_ops::measure(
        state, static_cast<double>(read.bytes), "GB/s",
        [] { return cpu_ops::read_bandwidth(cpu_ops::context()); }, body);
  } else {
    cpu_ops::measure(
        state, 2.0 * static_cast<double>(read.elements * n), "GFLOP/s",
        [] { return cpu_ops::arithmetic_rate(cpu_ops::context(), kDType<T>); }, body);
  }
}

/// Every matrix of one kind, once. The kinds other than lm_head fit a large last-level cache.
template <class F>
void one_kind(benchmark::State& state, Shape shape, std::int64_t n) {
  using T = WeightElement<F>;
  const Weights<F>& weights = Weights<F>::get();
  Read read;
  const auto is_wanted = [&](const auto& matrix) {
    return matrix.rows() == shape.rows && matrix.cols() == shape.cols;
  };
  for (const auto& matrix : weights.layers)
    if (is_wanted(matrix)) read.add(matrix);
  if (is_wanted(weights.head)) read.add(weights.head);
  report<T>(state, read, n, [&] {
    for (const auto& matrix : weights.layers)
      if (is_wanted(matrix)) Activations<T>::get().apply(matrix, n);
    if (is_wanted(weights.head)) Activations<T>::get().apply(weights.head, n);
  });
}

/// Every matrix of the model, once, as a step of the model does; logits of at most 32 rows.
template <class F>
void whole_step(benchmark::State& state, std::int64_t n) {
  using T = WeightElement<F>;
  const Weights<F>& weights = Weights<F>::get();
  const bool has_logits = n <= 32;
  Read read;
  for (const auto& matrix : weights.layers) read.add(matrix);
  if (has_logits) read.add(weights.head);
  report<T>(state, read, n, [&] {
    for (const auto& matrix : weights.layers) Activations<T>::get().apply(matrix, n);
    if (has_logits) Activations<T>::get().apply(weights.head, n);
  });
}

template <class F>
void register_all(const std::string& name) {
  const std::string prefix = "linear/" + name + "/";
  const auto add = [](const std::string& label, auto function) {
    benchmark::RegisterBenchmark(label.c_str(), function)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (std::int64_t n : {1, 8, 32, 512}) {
    const std::string rows = "/n:" + std::to_string(n);
    for (const Shape& shape : kLayer) {
      add(prefix + shape.name + rows,
          [shape, n](benchmark::State& state) { one_kind<F>(state, shape, n); });
    }
    if (n <= 32) {
      add(prefix + kHead.name + rows,
          [n](benchmark::State& state) { one_kind<F>(state, kHead, n); });
    }
    add(prefix + "step" + rows, [n](benchmark::State& state) { whole_step<F>(state, n); });
  }
}

[[maybe_unused]] const bool registered = [] {
  register_all<bf16>(std::string(name(kDType<bf16>)));
  register_all<float>(std::string(name(kDType<float>)));
  register_all<Int8Group32>("int8");
  register_all<Int4Group32>("int4");
  return true;
}();

}  // namespace
