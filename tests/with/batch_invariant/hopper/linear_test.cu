// Dense layers in one order: against float64, and rows against themselves among other rows.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/with/batch_invariant/linear/engine.cuh"

namespace nanovllm::test {
namespace {

using cuda::BatchInvariantBlock;
using cuda::BatchInvariantLinear;
using cuda::DeviceMatrix;

/// x of `m` rows, W [n, k], and a y for each call.
template <class T, class Out = T>
struct Layer {
  std::int64_t m, n, k;
  GpuArray<T> x;
  std::vector<T> w;
  DeviceMatrix<T> weight;

  Layer(std::int64_t m_in, std::int64_t n_in, std::int64_t k_in)
      : m(m_in),
        n(n_in),
        k(k_in),
        x(GpuArray<T>::random(static_cast<std::size_t>(m * k), 1)),
        w(GpuArray<T>::random(static_cast<std::size_t>(n * k), 2, -1, 1).host),
        weight(n, k) {
    weight.set_rows(0, MatrixView<const T>(w.data(), {n, k}));
  }

  [[nodiscard]] LinearArgs<T, DeviceMatrix<T>, Out> args(GpuArray<Out>& y, std::int64_t first,
                                                         std::int64_t count) {
    return {.x = MatrixView<const T>(x.data() + first * k, {count, k}),
            .weight = &weight,
            .y = MatrixView<Out>(y.data(), {count, n})};
  }

  /// Rows [first, first + count) by themselves, by a block of this shape.
  std::vector<Out> rows(BatchInvariantBlock block, std::int64_t first, std::int64_t count,
                        cuda::TensorMaps& maps, Gpu& gpu, bool accumulate = false) {
    GpuArray<Out> y(static_cast<std::size_t>(count * n));
    if (accumulate) {
      for (Out& value : y.host) value = Out(1.5f);
      y.upload();
    }
    const auto a = args(y, first, count);
    cuda::batch_invariant_linear(a.x, weight.view(), a.y, accumulate, block, maps, gpu.context);
    gpu.sync();
    y.download();
    REQUIRE(y.guards_intact());
    return y.host;
  }

  double exact(std::int64_t i, std::int64_t j, double* size) {
    double sum = 0;
    *size = 0;
    for (std::int64_t c = 0; c < k; ++c) {
      const double term = static_cast<double>(float(x.host[static_cast<std::size_t>(i * k + c)])) *
                          static_cast<double>(float(w[static_cast<std::size_t>(j * k + c)]));
      sum += term;
      *size += std::abs(term);
    }
    return sum;
  }
};

template <class Out>
bool same_bits(const std::vector<Out>& all, std::int64_t first, const std::vector<Out>& part,
               std::int64_t n) {
  return std::memcmp(all.data() + first * n, part.data(), part.size() * sizeof(Out)) == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("every block gives the product", "[batch_invariant]", bf16, half) {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 40, 8},
                                {7, 130, 64},
                                {33, 64, 200},
                                {130, 257, 1032},
                                {65, 100, 320},
                                {260, 100, 72}}) {
    Layer<TestType> layer(m, n, k);
    for (const BatchInvariantBlock block : cuda::kBatchInvariantBlocks) {
      INFO(m << " x " << n << " x " << k << ", block " << block.rows << " x " << block.tokens
             << " x " << block.panels);
      for (const bool accumulate : {false, true}) {
        const auto y = layer.rows(block, 0, m, maps, gpu, accumulate);
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            double size = 0;
            const double product = layer.exact(i, j, &size);
            const double exact = product + (accumulate ? 1.5 : 0.);
            // What is added is rounded before.
            const double rounded = std::abs(exact) + (accumulate ? 1.01 * std::abs(product) : 0.);
            const double bound = kUnit<TestType> * rounded +
                                 std::sqrt(static_cast<double>(k)) * 0x1p-21 * size + 1e-30;
            const double got = static_cast<float>(y[static_cast<std::size_t>(i * n + j)]);
            if (!(std::abs(got - exact) <= bound)) ++wrong;
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("a row has the same bits in any number of rows, at any place, in any block",
          "[batch_invariant]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  constexpr std::int64_t kRows = 1000;
  for (const auto& [n, k] :
       {std::array<std::int64_t, 2>{1024, 3072}, {136, 1032}, {136, 320}, {4096, 1024}}) {
    // float32 results show every bit of the sums.
    Layer<bf16, float> layer(kRows, n, k);
    const auto all = layer.rows(cuda::kBatchInvariantReference, 0, kRows, maps, gpu);
    for (const BatchInvariantBlock block : cuda::kBatchInvariantBlocks) {
      INFO(n << " x " << k << ", block " << block.rows << " x " << block.tokens << " x "
             << block.panels);
      CHECK(same_bits(all, 0, layer.rows(block, 0, kRows, maps, gpu), n));
      for (const std::int64_t m : {1, 2, 3, 7, 8, 16, 17, 63, 64, 65, 128, 200, 256}) {
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{5}, kRows - m}) {
          if (!same_bits(all, first, layer.rows(block, first, m, maps, gpu), n))
            FAIL_CHECK(m << " rows from row " << first);
        }
      }
    }
  }
}

TEST_CASE("another order of summation does not pass for this one", "[batch_invariant]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  // With K split the two halves of the probe cancel exactly; it must show.
  BatchInvariantLinear engine;
  cuda::BlasHandle handle;
  constexpr std::int64_t kM = 64, kN = 1024, kK = 4096;
  cuda::BlasProduct product({.m = kM,
                             .n = kN,
                             .k = kK,
                             .x_stride = kK,
                             .y_stride = kN,
                             .in = CUDA_R_16BF,
                             .out = CUDA_R_16BF,
                             .accumulate = false,
                             .alignment = 16});
  int split = 0, told = 0;
  for (const cuda::BlasAlgorithm& algorithm :
       product.heuristics(handle, 16, cuda::kBlasWorkspaceBytes, true)) {
    std::int32_t splits = 1;
    std::size_t written = 0;
    cuda::check_cublas(
        cublasLtMatmulAlgoConfigGetAttribute(&algorithm.value, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                             &splits, sizeof splits, &written),
        "cublasLtMatmulAlgoConfigGetAttribute");
    if (splits <= 1) continue;
    ++split;
    told += engine.count_differences<bf16, bf16>({.is_blas = true, .algorithm = algorithm}, kM, kN,
                                                 kK, gpu.context) > kM * kN / 4;
  }
  INFO(split << " algorithms with a split K, " << told << " told apart");
  CHECK(split > 0);
  CHECK(told == split);
}

TEST_CASE("what is tuned keeps the order, for all numbers of rows", "[batch_invariant]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  constexpr std::int64_t kRows = 1100;
  const auto check_type = [&]<class Out>(Out, std::int64_t n, std::int64_t k) {
    Layer<bf16, Out> layer(kRows, n, k);
    cuda::TensorMaps maps;
    const auto all = layer.rows(cuda::kBatchInvariantReference, 0, kRows, maps, gpu);
    for (const bool tunes : {false, true}) {
      BatchInvariantLinear engine;
      const DeviceMatrix<bf16>* const weights[] = {&layer.weight};
      if (tunes) {
        engine.tune<bf16, Out>(weights, false, cuda::kRowBuckets, gpu.context,
                               std::chrono::seconds(10));
        std::cout << n << " x " << k << ": cuBLASLt was chosen for " << engine.tally().blas
                  << " of " << engine.tally().all << " buckets\n";
      }
      for (const std::int64_t m : {1,  2,  3,  7,   8,   9,   16,  17,  31,  33,   48,
                                   63, 64, 65, 100, 128, 200, 256, 300, 500, 1000, 1100}) {
        GpuArray<Out> y(static_cast<std::size_t>(m * n));
        engine.run(layer.args(y, kRows - m, m), gpu.context);
        gpu.sync();
        y.download();
        REQUIRE(y.guards_intact());
        if (!same_bits(all, kRows - m, y.host, n)) FAIL_CHECK(n << " x " << k << ", rows " << m);
      }
    }
  };
  check_type(bf16{}, 1024, 2048);
  check_type(bf16{}, 6144, 1024);
  check_type(bf16{}, 200, 520);
  check_type(float{}, 4096, 1024);
}

TEST_CASE("a K that is no multiple of 8 has an order of its own", "[batch_invariant]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  BatchInvariantLinear engine;
  Layer<bf16> layer(70, 33, 70);
  const auto rows_of = [&](std::int64_t first, std::int64_t count) {
    GpuArray<bf16> y(static_cast<std::size_t>(count * layer.n));
    engine.run(layer.args(y, first, count), gpu.context);
    gpu.sync();
    y.download();
    REQUIRE(y.guards_intact());
    return y.host;
  };
  const auto all = rows_of(0, 70);
  for (std::int64_t i = 0; i < 70; ++i) CHECK(same_bits(all, i, rows_of(i, 1), layer.n));
  double size = 0;
  const double exact = layer.exact(69, 32, &size);
  CHECK(std::abs(static_cast<float>(all.back()) - exact) <= 0x1p-8 * std::abs(exact) + 1e-5 * size);
}

TEST_CASE("products added to rows have the bits of a product and add_rms_norm's sum",
          "[batch_invariant]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  constexpr std::int64_t kRows = 70, kOut = 96;
  cuda::TensorMaps maps;
  for (const std::int64_t k : {192, 1000, 2048, 201}) {
    Layer<bf16> layer(kRows, kOut, k);
    BatchInvariantLinear engine;
    GpuArray<bf16> product(kRows * kOut);
    engine.run(layer.args(product, 0, kRows), gpu.context);
    gpu.sync();
    product.download();
    const auto old = GpuArray<bf16>::random(kRows * kOut, 9, -30, 30).host;
    for (const bool tunes : {false, true}) {
      const DeviceMatrix<bf16>* const weights[] = {&layer.weight};
      const std::int64_t buckets[] = {1, 8, 16, 32, 64, 128};
      if (tunes)
        engine.tune<bf16, bf16>(weights, true, buckets, gpu.context, std::chrono::seconds(3));
      for (const std::int64_t m : {1, 8, 9, 16, 31, 33, 64, 65, 70}) {
        GpuArray<bf16> y(static_cast<std::size_t>(m * kOut));
        std::copy_n(old.begin(), y.host.size(), y.host.begin());
        y.upload();
        auto args = layer.args(y, 0, m);
        args.accumulate = true;
        engine.run(args, gpu.context);
        gpu.sync();
        y.download();
        REQUIRE(y.guards_intact());
        std::int64_t wrong = 0;
        for (std::size_t i = 0; i < y.host.size(); ++i)
          wrong += float(y.host[i]) != float(bf16(float(old[i]) + float(product.host[i])));
        INFO(m << " rows, K " << k << (tunes ? ", tuned" : ""));
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("rows that are not 16-byte aligned are refused", "[batch_invariant]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  BatchInvariantLinear engine;
  Layer<bf16> layer(4, 16, 16);
  GpuArray<bf16> y(64);
  auto args = layer.args(y, 0, 2);
  args.x.data += 1;
  CHECK_THROWS_AS(engine.run(args, gpu.context), ShapeError);
}

}  // namespace nanovllm::test
