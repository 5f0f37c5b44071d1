// The dense layers of Qwen3-0.6B, one by one and as the sequence that a step of the model runs.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ceilings.hpp"
#include "nanovllm/cpu/linear/linear.hpp"
#include "options.hpp"

namespace {

using namespace nanovllm;
using cpu::AlignedBuffer;
using cpu::PackedMatrix;

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

/// All weights of the model, each a matrix of its own: larger than the caches together.
template <class T>
struct Weights {
  std::vector<PackedMatrix<T>> matrices;  ///< the layers' four each, then lm_head
  std::int64_t num_elements = 0;

  Weights() {
    for (int layer = 0; layer < kNumLayers; ++layer) {
      for (const Shape& shape : kLayer) add(shape);
    }
    add(kHead);
  }

  void add(const Shape& shape) {
    constexpr std::int64_t kRows = 512;
    PackedMatrix<T>& matrix = matrices.emplace_back(shape.rows, shape.cols);
    AlignedBuffer<T> rows(kRows * shape.cols);
    fill(rows.data(), rows.size(), 0.05f);
    for (std::int64_t row = 0; row < shape.rows; row += kRows) {
      const std::int64_t count = std::min(kRows, shape.rows - row);
      matrix.set_rows(row, MatrixView<const T>(rows.data(), {count, shape.cols}));
    }
    num_elements += shape.rows * shape.cols;
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

  void apply(const PackedMatrix<T>& weight, std::int64_t n) {
    const MatrixView<const T> in(x.data(), {n, weight.cols()});
    if (weight.rows() == kHead.rows) {
      cpu::linear(
          LinearArgs<T, PackedMatrix<T>, float>{
              .x = in, .weight = &weight, .y = {logits.data(), {n, weight.rows()}}},
          cpu_ops::context());
    } else {
      cpu::linear(
          LinearArgs<T, PackedMatrix<T>>{
              .x = in, .weight = &weight, .y = {y.data(), {n, weight.rows()}}},
          cpu_ops::context());
    }
  }

  static Activations& get() {
    static Activations instance;
    return instance;
  }
};

/// Reports against memory for few rows and against arithmetic for many.
template <class T, class Body>
void report(benchmark::State& state, std::int64_t elements, std::int64_t n, const Body& body) {
  if (n <= 32) {
    cpu_ops::measure(
        state, static_cast<double>(elements) * sizeof(T), "GB/s",
        [] { return cpu_ops::read_bandwidth(cpu_ops::context()); }, body);
  } else {
    cpu_ops::measure(
        state, 2.0 * static_cast<double>(elements * n), "GFLOP/s",
        [] { return cpu_ops::arithmetic_rate(cpu_ops::context(), kDType<T>); }, body);
  }
}

/// Every matrix of one kind, once. The kinds other than lm_head fit a large last-level cache.
template <class T>
void one_kind(benchmark::State& state, Shape shape, std::int64_t n) {
  std::int64_t elements = 0;
  std::vector<const PackedMatrix<T>*> matrices;
  for (const PackedMatrix<T>& matrix : Weights<T>::get().matrices) {
    if (matrix.rows() != shape.rows || matrix.cols() != shape.cols) continue;
    matrices.push_back(&matrix);
    elements += shape.rows * shape.cols;
  }
  report<T>(state, elements, n, [&] {
    for (const PackedMatrix<T>* matrix : matrices) Activations<T>::get().apply(*matrix, n);
  });
}

/// Every matrix of the model, once, as a step of the model does; logits of at most 32 rows.
template <class T>
void whole_step(benchmark::State& state, std::int64_t n) {
  const Weights<T>& weights = Weights<T>::get();
  const std::int64_t head = n <= 32 ? kHead.rows * kHead.cols : 0;
  const std::int64_t elements = weights.num_elements - kHead.rows * kHead.cols + head;
  report<T>(state, elements, n, [&] {
    for (const PackedMatrix<T>& matrix : weights.matrices) {
      if (matrix.rows() != kHead.rows || head != 0) Activations<T>::get().apply(matrix, n);
    }
  });
}

template <class T>
void register_all() {
  const std::string prefix = "linear/" + std::string(name(kDType<T>)) + "/";
  const auto add = [](const std::string& label, auto function) {
    benchmark::RegisterBenchmark(label.c_str(), function)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (std::int64_t n : {1, 8, 32, 512}) {
    const std::string rows = "/n:" + std::to_string(n);
    for (const Shape& shape : kLayer) {
      add(prefix + shape.name + rows,
          [shape, n](benchmark::State& state) { one_kind<T>(state, shape, n); });
    }
    if (n <= 32) {
      add(prefix + kHead.name + rows,
          [n](benchmark::State& state) { one_kind<T>(state, kHead, n); });
    }
    add(prefix + "step" + rows, [n](benchmark::State& state) { whole_step<T>(state, n); });
  }
}

[[maybe_unused]] const bool registered = (register_all<bf16>(), register_all<float>(), true);

}  // namespace
