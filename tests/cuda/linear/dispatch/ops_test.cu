#include "nanovllm/cuda/linear/dispatch/engine.cuh"

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"

namespace nanovllm::test {
namespace {

using DenseEngine = cuda::DenseEngine<cuda::DeviceArchitectures>;
using cuda::DeviceMatrix;

/// Operands of a layer, on the device and on the host.
template <class T, class Out = T>
struct Layer {
  std::int64_t m, n, k, x_stride, y_stride, x_offset;
  bool accumulate;
  GpuArray<T> x;
  std::vector<T> w;
  DeviceMatrix<T> weight;
  std::vector<Out> old_y;  ///< poison where y must not be read
  GpuArray<Out> y;

  /// Rows of x and y are `x_pad` and `y_pad` elements longer than they need to be; x begins
  /// `x_shift` elements after an aligned place.
  Layer(std::int64_t m_in, std::int64_t n_in, std::int64_t k_in, bool add = false,
        std::int64_t x_pad = 0, std::int64_t y_pad = 0, std::int64_t x_shift = 0)
      : m(m_in),
        n(n_in),
        k(k_in),
        x_stride(k + x_pad),
        y_stride(n + y_pad),
        x_offset(x_shift),
        accumulate(add),
        x(GpuArray<T>::random(static_cast<std::size_t>(m * x_stride + x_shift), 1)),
        w(GpuArray<T>::random(static_cast<std::size_t>(n * k), 2, -1, 1).host),
        weight(n, k),
        y(static_cast<std::size_t>(m * y_stride)) {
    weight.set_rows(0, MatrixView<const T>(w.data(), {n, k}));
    if (accumulate) {
      const auto old = GpuArray<Out>::random(y.size(), 3);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) y.host[i * y_stride + j] = old.host[i * y_stride + j];
      }
      y.upload();
    }
    old_y = y.host;
  }

  [[nodiscard]] MatrixView<const T> x_view() {
    return {x.data() + x_offset, {m, k}, {x_stride, 1}};
  }
  [[nodiscard]] MatrixView<Out> y_view() { return {y.data(), {m, n}, {y_stride, 1}}; }
  [[nodiscard]] LinearArgs<T, DeviceMatrix<T>, Out> args() {
    return {.x = x_view(), .weight = &weight, .y = y_view(), .accumulate = accumulate};
  }

  void reset() {
    y.host = old_y;
    y.upload();
  }

  /// Compares y with a float64 product; y's padding and guards must be untouched. `twice` allows
  /// what cuBLASLt does with an old y in 16 bits: the product is rounded, then the sum.
  void check(bool twice = false) {
    y.download();
    REQUIRE(y.guards_intact());
    std::int64_t wrong = 0, touched = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (std::int64_t c = 0; c < k; ++c) {
          const double term = static_cast<double>(float(x.host[i * x_stride + x_offset + c])) *
                              static_cast<double>(float(w[j * k + c]));
          sum += term;
          size += std::abs(term);
        }
        const double product = sum;
        if (accumulate) {
          const double old = float(old_y[i * y_stride + j]);
          sum += old;
          size += std::abs(old);
        }
        const double got = float(y.host[i * y_stride + j]);
        double bound = 1.5 * (kUnit<Out> * std::abs(sum) + 4 * 0x1p-24 * std::sqrt(k + 1.) * size);
        if (accumulate && twice) bound += 1.5 * kUnit<Out> * std::abs(product);
        if (!(std::abs(got - sum) <= bound)) ++wrong;
      }
      for (std::int64_t j = n; j < y_stride; ++j) {
        if (std::memcmp(&y.host[i * y_stride + j], &old_y[i * y_stride + j], sizeof(Out)) != 0)
          ++touched;
      }
    }
    CHECK(wrong == 0);
    CHECK(touched == 0);
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T, class Out = T>
void check_shape(DenseEngine& engine, const Gpu& gpu, Layer<T, Out> layer) {
  CAPTURE(layer.m, layer.n, layer.k, layer.x_stride, layer.y_stride, layer.x_offset,
          layer.accumulate, sizeof(T), sizeof(Out));
  cuda::linear(layer.args(), engine, gpu.context);
  gpu.sync();
  layer.check(true);
}

}  // namespace

TEST_CASE("a DeviceMatrix holds what set_rows gave it") {
  if (!has_gpu()) return;
  const auto rows = GpuArray<bf16>::random(5 * 9, 4).host;
  DeviceMatrix<bf16> matrix(5, 7);
  matrix.set_rows(0, MatrixView<const bf16>(rows.data(), {2, 7}, {9, 1}));
  matrix.set_rows(2, MatrixView<const bf16>(rows.data() + 18, {3, 7}, {9, 1}));
  std::vector<bf16> back(35);
  cuda::check_cuda(cudaMemcpy(back.data(), matrix.data(), 70, cudaMemcpyDeviceToHost),
                   "cudaMemcpy");
  for (int r = 0; r < 5; ++r) {
    for (int c = 0; c < 7; ++c) CHECK(back[r * 7 + c].bits == rows[r * 9 + c].bits);
  }
  CHECK(matrix.size_bytes() == 70);
  CHECK_THROWS_AS(matrix.set_rows(4, MatrixView<const bf16>(rows.data(), {2, 7})), ShapeError);
  CHECK_THROWS_AS(matrix.set_rows(0, MatrixView<const bf16>(rows.data(), {2, 6})), ShapeError);
  CHECK_THROWS_AS(DeviceMatrix<float>(-1, 2), ShapeError);
}

TEST_CASE("linear equals a float64 product for any number of rows") {
  if (!has_gpu()) return;
  const Gpu gpu;
  DenseEngine engine;
  for (const int m : {1, 2, 3, 7, 8, 9, 16, 17, 32, 33, 100, 257}) {
    check_shape(engine, gpu, Layer<bf16>(m, 136, 520));
    check_shape(engine, gpu, Layer<bf16, float>(m, 65, 64));
    check_shape(engine, gpu, Layer<half>(m, 72, 264));
    check_shape(engine, gpu, Layer<float>(m, 136, 520));
  }
  for (const int m : {1, 5, 16, 20}) {
    check_shape(engine, gpu, Layer<bf16>(m, 300, 3072));
    check_shape(engine, gpu, Layer<bf16, float>(m, 1000, 1024, true));
    check_shape(engine, gpu, Layer<half, float>(m, 24, 5000, true));
  }
}

TEST_CASE("linear takes any width, stride and alignment, and adds to y when asked") {
  if (!has_gpu()) return;
  const Gpu gpu;
  DenseEngine engine;
  for (const bool add : {false, true}) {
    for (const int m : {1, 3, 8, 16, 31, 70}) {
      check_shape(engine, gpu, Layer<bf16>(m, 128, 256, add, 8, 24));
      check_shape(engine, gpu, Layer<bf16>(m, 77, 200, add, 16, 3));
      check_shape(engine, gpu, Layer<bf16>(m, 33, 37, add));
      check_shape(engine, gpu, Layer<bf16>(m, 64, 128, add, 1, 0));
      check_shape(engine, gpu, Layer<bf16>(m, 64, 128, add, 0, 0, 1));
      check_shape(engine, gpu, Layer<half>(m, 33, 68, add, 3, 1));
      check_shape(engine, gpu, Layer<float>(m, 33, 37, add, 1, 2, 1));
      check_shape(engine, gpu, Layer<float>(m, 64, 100, add, 4, 4));
      check_shape(engine, gpu, Layer<bf16, float>(m, 15, 24, add, 8, 1));
    }
  }
  check_shape(engine, gpu, Layer<bf16>(1, 1, 1));
  check_shape(engine, gpu, Layer<float>(2, 1, 3, true));
}

TEST_CASE("linear with nothing to do") {
  if (!has_gpu()) return;
  const Gpu gpu;
  DenseEngine engine;
  check_shape(engine, gpu, Layer<bf16>(0, 16, 16));
  check_shape(engine, gpu, Layer<bf16>(3, 0, 16));
  check_shape(engine, gpu, Layer<bf16, float>(3, 16, 0, false, 8, 5));  // an empty sum
  check_shape(engine, gpu, Layer<bf16, float>(3, 16, 0, true, 8, 5));
}

TEST_CASE("linear refuses operands that do not fit") {
  if (!has_gpu()) return;
  const Gpu gpu;
  DenseEngine engine;
  Layer<bf16> layer(4, 16, 32);
  auto args = layer.args();
  args.weight = nullptr;
  CHECK_THROWS_AS(cuda::linear(args, engine, gpu.context), ShapeError);
  args = layer.args();
  args.x.extents[1] = 24;
  CHECK_THROWS_AS(cuda::linear(args, engine, gpu.context), ShapeError);
  args = layer.args();
  args.y.extents[0] = 3;
  CHECK_THROWS_AS(cuda::linear(args, engine, gpu.context), ShapeError);
}

TEMPLATE_TEST_CASE(
    "the kernel for few rows sums in one order, whatever its tiles and the other rows", "", bf16,
    half) {
  if (!has_gpu()) return;
  using T = TestType;
  const Gpu gpu;
  for (const bool add : {false, true}) {
    Layer<T, float> all(16, 75, 1544, add);
    const auto run = [&](std::int64_t begin, std::int64_t end, int tiles) {
      REQUIRE(
          cuda::small_m_registers(cuda::DenseLayer<T, float>{.x = all.x_view().slice(begin, end),
                                                             .weight = all.weight.view(),
                                                             .y = all.y_view().slice(begin, end),
                                                             .accumulate = add},
                                  tiles, gpu.context));
    };
    run(0, 16, 1);
    gpu.sync();
    all.check();
    const std::vector<float> expected = all.y.host;
    for (const int tiles : cuda::kSmallMTiles) {
      for (const int rows : {1, 3, 8, 11, 16}) {
        CAPTURE(tiles, rows, add);
        all.reset();
        for (int begin = 0; begin < 16; begin += rows)
          run(begin, std::min(begin + rows, 16), tiles);
        gpu.sync();
        all.y.download();
        CHECK(same_bits(all.y.host, expected));
        CHECK(all.y.guards_intact());
      }
    }
  }
  Layer<T> layer(8, 16, 32);
  CHECK_FALSE(cuda::small_m_linear(cuda::layer_of(layer.args()), 3, gpu.context));
  CHECK_FALSE(cuda::small_m_registers(cuda::layer_of(layer.args()), 3, gpu.context));
}

TEST_CASE("kernels that are compiled for some rows of x refuse more") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const auto check_most = [&]<class Out>(Out, std::int64_t most, const auto& run) {
    CAPTURE(most);
    Layer<bf16, Out> enough(most, 64, 512), more(most + 1, 64, 512);
    CHECK(run(enough));
    gpu.sync();
    enough.check();
    CHECK_FALSE(run(more));
    gpu.sync();
    more.y.download();
    CHECK(same_bits(more.y.host, more.old_y));
  };
  check_most(bf16(), cuda::kMaxSmallMRows, [&](auto& layer) {
    return cuda::small_m_linear(cuda::layer_of(layer.args()), 2, gpu.context);
  });
  const auto by_registers = [&](auto& layer) {
    return cuda::small_m_registers(cuda::layer_of(layer.args()), 2, gpu.context);
  };
  check_most(bf16(), cuda::kMaxSmallMRows, by_registers);
  check_most(float(), cuda::kMaxSmallMRows, by_registers);
}

TEST_CASE("a shape that has run before asks cuBLASLt and the driver nothing more") {
  if (!has_gpu()) return;
  const Gpu gpu;
  DenseEngine engine;
  Layer<bf16> odd(300, 33, 37), even(300, 264, 512, true), single(300, 1, 5);
  const DeviceMatrix<bf16>* const weights[] = {&even.weight};
  cuda::DenseTuner(engine, gpu.context).tune_linear<bf16, bf16>(weights, true, cuda::kRowBuckets);
  std::vector<bf16> first;
  for (const int pass : {0, 1}) {
    CAPTURE(pass);
    const std::int64_t heuristics = engine.num_heuristics(), maps = engine.num_tensor_maps();
    std::vector<bf16> all;
    for (Layer<bf16>* layer : {&odd, &even, &single}) {
      for (const int rows : {1, 7, 9, 15, 33, 65, 100, 129, 257, 299, 300}) {
        layer->reset();
        auto args = layer->args();
        args.x = args.x.slice(0, rows);
        args.y = args.y.slice(0, rows);
        cuda::linear(args, engine, gpu.context);
        gpu.sync();
        layer->y.download();
        all.insert(all.end(), layer->y.host.begin(), layer->y.host.end());
      }
    }
    if (pass == 0) {
      first = all;
    } else {
      CHECK(engine.num_heuristics() == heuristics);
      CHECK(engine.num_tensor_maps() == maps);
      CHECK(same_bits(all, first));
    }
  }
}

TEST_CASE("float32 rows do not depend on other rows") {
  if (!has_gpu()) return;
  const Gpu gpu;
  DenseEngine engine;
  Layer<float> all(300, 192, 1024);
  cuda::linear(all.args(), engine, gpu.context);
  gpu.sync();
  all.check();
  const std::vector<float> expected = all.y.host;
  for (const int rows : {1, 2, 7, 64, 65, 129}) {
    CAPTURE(rows);
    all.reset();
    for (int begin = 0; begin < 300; begin += rows) {
      auto args = all.args();
      args.x = args.x.slice(begin, std::min(begin + rows, 300));
      args.y = args.y.slice(begin, std::min(begin + rows, 300));
      cuda::linear(args, engine, gpu.context);
    }
    gpu.sync();
    all.y.download();
    CHECK(same_bits(all.y.host, expected));
  }
}

TEST_CASE("a tuned linear is right, and its choice holds for all rows of a bucket") {
  if (!has_gpu()) return;
  const Gpu gpu;
  DenseEngine engine;
  for (const bool add : {false, true}) {
    Layer<bf16> first(1, 264, 512), second(1, 264, 512);
    const DeviceMatrix<bf16>* const weights[] = {&first.weight, &second.weight};
    const std::int64_t counts[] = {0, 1, 5, 16, 30, 64, 200, 1000};
    cuda::DenseTuner tuner(engine, gpu.context);
    tuner.tune_linear<bf16, bf16>(weights, add, counts);
    tuner.tune_linear<bf16, float>(weights, add, counts, std::chrono::milliseconds(1));
    for (const int m : {1, 6, 7, 8, 16, 29, 32, 50, 64, 130, 256, 700}) {
      check_shape(engine, gpu, Layer<bf16>(m, 264, 512, add));
      check_shape(engine, gpu, Layer<bf16, float>(m, 264, 512, add));
    }
  }
  const DeviceMatrix<bf16> a(8, 16), b(8, 8);
  const DeviceMatrix<bf16>* const weights[] = {&a, &b};
  const std::int64_t counts[] = {1};
  cuda::DenseTuner tuner(engine, gpu.context);
  CHECK_THROWS_AS((tuner.tune_linear<bf16, bf16>(weights, false, counts)), ShapeError);
  CHECK_THROWS_AS((tuner.tune_linear<bf16, bf16>({}, false, counts)), ShapeError);
}

TEST_CASE("linear repeats itself bit for bit, also from a graph") {
  if (!has_gpu()) return;
  const Gpu gpu;
  DenseEngine engine;
  for (const int m : {1, 8, 16, 32, 300}) {
    CAPTURE(m);
    // A chain, so that kernels overlap: y1 = x · W1ᵀ, then y2 += y1 · W2ᵀ.
    Layer<bf16> one(m, 1024, 520), two(m, 512, 1024, true);
    const auto run = [&] {
      cuda::linear(one.args(), engine, gpu.context);
      auto args = two.args();
      args.x = MatrixView<const bf16>(one.y_view());
      cuda::linear(args, engine, gpu.context);
    };
    const auto outputs = [&] {
      gpu.sync();
      one.y.download();
      two.y.download();
      std::vector<bf16> out = one.y.host;
      out.insert(out.end(), two.y.host.begin(), two.y.host.end());
      one.reset();
      two.reset();
      return out;
    };
    run();
    const std::vector<bf16> expected = outputs();
    const cuda::Graph graph = cuda::Graph::capture(gpu.stream.get(), run);
    int different = 0;
    for (int i = 0; i < 50; ++i) {
      if (i % 5 == 0) {
        run();
      } else {
        graph.launch(gpu.stream.get());
      }
      different += !same_bits(outputs(), expected);
    }
    CHECK(different == 0);
  }
}

}  // namespace nanovllm::test
