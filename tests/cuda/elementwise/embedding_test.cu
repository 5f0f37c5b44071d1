#include "nanovllm/cuda/elementwise/rowwise.cuh"

#include "cuda/gpu_matrix.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"

namespace nanovllm::test {

namespace {

/// n integers that jump about in [low, high).
std::vector<std::int32_t> scattered(std::int64_t n, std::int64_t low, std::int64_t high) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<std::int32_t>(low + (i * 7919 + 3) % (high - low)));
  return out;
}

template <class T>
cuda::DeviceMatrix<T> device_copy(GpuMatrix<T>& dense, std::int64_t rows, std::int64_t cols) {
  cuda::DeviceMatrix<T> out(rows, cols);
  if (rows > 0 && cols > 0) out.set_rows(0, {&dense(0, 0), {rows, cols}});
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("embedding copies rows, and zeros for tokens of other shards", "[embedding]",
                   float, bf16) {
  if (!has_gpu()) return;
  using T = TestType;
  Gpu gpu;
  constexpr TokenId kFirst = 100;
  const std::int64_t vocab = 37;
  for (std::int64_t width : {1, 7, 8, 64, 100, 1000, 1024, 5120}) {
    auto rows = GpuMatrix<T>::random(vocab, width, 1);
    const auto table = device_copy(rows, vocab, width);
    for (std::int64_t n : {0, 1, 5, 300}) {
      for (const Placement& placement : kPlacements) {
        INFO(n << " x " << width << ", pad " << placement.pad << ", shift " << placement.shift);
        GpuArray<TokenId> tokens(scattered(n, kFirst - 5, kFirst + vocab + 5));
        GpuMatrix<T> out(n, width, placement);
        cuda::embedding(
            EmbeddingArgs<T, cuda::DeviceMatrix<T>>{
                {tokens.data(), {n}}, &table, kFirst, out.view()},
            gpu.context);
        gpu.sync();
        out.download();
        bool right = true;
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t row = tokens.host[static_cast<std::size_t>(i)] - kFirst;
          const bool mine = row >= 0 && row < vocab;
          for (std::int64_t j = 0; j < width; ++j)
            right = right && out.value(i, j) == (mine ? rows.value(row, j) : 0.);
        }
        REQUIRE(right);
        REQUIRE(out.surroundings_intact());
      }
    }
  }
}

TEMPLATE_TEST_CASE("gather_rows copies rows bit by bit", "[gather_rows]", float, bf16) {
  if (!has_gpu()) return;
  using T = TestType;
  Gpu gpu;
  const std::int64_t n = 23;
  for (std::int64_t width : {1, 7, 8, 64, 100, 1000, 1024, 5120}) {
    for (std::int64_t m : {0, 1, 5, 300}) {
      for (const Placement& placement : kPlacements) {
        INFO(m << " x " << width << ", pad " << placement.pad << ", shift " << placement.shift);
        auto x = GpuMatrix<T>::random(n, width, 2, placement);
        std::memset(static_cast<void*>(&x(n - 1, width - 1)), 0xab, sizeof(T));  // a NaN of its own
        x.upload();
        GpuArray<std::int32_t> rows(scattered(m, 0, n));
        GpuMatrix<T> out(m, width, placement);
        cuda::gather_rows(GatherRowsArgs<T>{x.view(), {rows.data(), {m}}, out.view()}, gpu.context);
        gpu.sync();
        out.download();
        bool right = true;
        for (std::int64_t i = 0; i < m; ++i)
          right = right && out.same_rows(x, i, 1, rows.host[static_cast<std::size_t>(i)]);
        REQUIRE(right);
        REQUIRE(out.surroundings_intact());
      }
    }
  }
}

TEST_CASE("embedding and gather_rows of many rows are right in every block", "[embedding]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const std::int64_t vocab = 61, width = 1032, n = 3001;
  auto rows = GpuMatrix<bf16>::random(vocab, width, 3);
  const auto table = device_copy(rows, vocab, width);
  GpuArray<TokenId> tokens(scattered(n, 0, vocab));
  GpuMatrix<bf16> embedded(n, width), gathered(n, width);
  cuda::embedding(
      EmbeddingArgs<bf16, cuda::DeviceMatrix<bf16>>{
          {tokens.data(), {n}}, &table, 0, embedded.view()},
      gpu.context);
  cuda::gather_rows(GatherRowsArgs<bf16>{rows.view(), {tokens.data(), {n}}, gathered.view()},
                    gpu.context);
  gpu.sync();
  embedded.download(), gathered.download();
  bool right = true;
  for (std::int64_t i = 0; i < n; ++i)
    right = right && embedded.same_rows(rows, i, 1, tokens.host[static_cast<std::size_t>(i)]);
  REQUIRE(right);
  REQUIRE(gathered.same_bits(embedded));
  REQUIRE(embedded.surroundings_intact());
  REQUIRE(gathered.surroundings_intact());
}

TEST_CASE("embedding and gather_rows refuse operands that do not fit", "[embedding]") {
  if (!has_gpu()) return;
  Gpu gpu;
  GpuMatrix<float> x(3, 4), out(2, 5);
  GpuArray<std::int32_t> rows(2);
  const cuda::DeviceMatrix<float> table(3, 4);
  CHECK_THROWS_AS(cuda::gather_rows(GatherRowsArgs<float>{x.view(), {rows.data(), {2}}, out.view()},
                                    gpu.context),
                  ShapeError);
  CHECK_THROWS_AS(cuda::embedding(
                      EmbeddingArgs<float, cuda::DeviceMatrix<float>>{
                          {rows.data(), {2}}, &table, 0, out.view()},
                      gpu.context),
                  ShapeError);
}

}  // namespace nanovllm::test
