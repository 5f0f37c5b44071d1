// Rows of host memory that are copied, and what an error leaves of them.

#include "nanovllm/with/eight_bits/cuda/host_copies.cuh"

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "cuda/gpu_test.cuh"

namespace nanovllm::test {
namespace {

/// Bytes that allocations in the order of streams have on the current device.
std::uint64_t pool_bytes() {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  std::uint64_t bytes = 0;
  cuda::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  cuda::check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  cuda::check_cuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes),
                   "cudaMemPoolGetAttribute");
  return bytes;
}

}  // namespace

TEST_CASE("rows of host memory arrive with any strides") {
  if (!has_gpu()) return;
  const Gpu gpu;
  std::vector<std::int32_t> from(100);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::int32_t>(i);
  for (const std::int64_t rows : {1, 3}) {
    for (const std::int64_t from_stride : {7, 20}) {
      CAPTURE(rows, from_stride);
      std::vector<std::int32_t> got(static_cast<std::size_t>(7 * rows));
      cuda::HostCopies copies(gpu.context);
      const std::int32_t* const copy = copies.upload(from.data(), from_stride, 7, rows);
      cuda::check_cuda(cudaMemcpyAsync(got.data(), copy, got.size() * sizeof(got[0]),
                                       cudaMemcpyDeviceToHost, gpu.context.stream),
                       "cudaMemcpyAsync");
      copies.finish();
      cuda::check_cuda(cudaStreamSynchronize(gpu.context.stream), "cudaStreamSynchronize");
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < 7; ++j)
          CHECK(got[static_cast<std::size_t>(7 * i + j)] == i * from_stride + j);
    }
  }
}

TEST_CASE("an error leaves no copy under way, and no memory of one") {
  if (!has_gpu()) return;
  const Gpu gpu;
  constexpr std::int64_t kBytes = std::int64_t{1} << 28;
  void* rows = nullptr;  // page-locked: the call returns before they are read
  cuda::check_cuda(cudaMallocHost(&rows, kBytes), "cudaMallocHost");
  const std::uint64_t before = pool_bytes();
  const auto fail = [&] {
    cuda::HostCopies copies(gpu.context);
    const auto* const bytes = static_cast<const std::uint8_t*>(rows);
    for (int i = 0; i < 4; ++i) static_cast<void>(copies.upload(bytes, kBytes, kBytes, 1));
    throw std::runtime_error("a later call");
  };
  CHECK_THROWS_AS(fail(), std::runtime_error);
  CHECK(cudaStreamQuery(gpu.context.stream) == cudaSuccess);
  CHECK(pool_bytes() == before);
  cuda::check_cuda(cudaFreeHost(rows), "cudaFreeHost");
}

}  // namespace nanovllm::test
