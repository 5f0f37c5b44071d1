// `launch`: the limit of dynamic shared memory.

#include <cstdint>
#include <thread>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::test {

namespace {

/// Writes the last word of its dynamic shared memory, of `words` words, to `out`.
template <int kUnused>
__global__ void last_word_kernel(std::uint32_t* out, std::uint32_t words) {
  extern __shared__ std::uint32_t dynamic_words[];
  cuda::grid_dependency_wait();
  dynamic_words[words - 1] = 41 + words;
  *out = dynamic_words[words - 1];
}

std::size_t allowed_bytes(const void* kernel) {
  cudaFuncAttributes attributes{};
  cuda::check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  return static_cast<std::size_t>(attributes.maxDynamicSharedSizeBytes);
}

template <int kKernel>
void launch_with(const Gpu& gpu, GpuArray<std::uint32_t>& out, std::uint32_t bytes) {
  cuda::launch(last_word_kernel<kKernel>, {.grid = 1, .block = 1, .shared_bytes = bytes},
               gpu.context, out.data(), bytes / 4);
  gpu.sync();
  out.download();
  CHECK(out.host[0] == 41 + bytes / 4);
}

}  // namespace

TEST_CASE("launch sets the limit of shared memory again only when a kernel asks for more") {
  if (!has_gpu()) return;
  const Gpu gpu;
  GpuArray<std::uint32_t> out(1);
  const auto* const kernel = reinterpret_cast<const void*>(last_word_kernel<0>);
  launch_with<0>(gpu, out, 1024);
  launch_with<0>(gpu, out, 60 * 1024);
  CHECK(allowed_bytes(kernel) == 60 * 1024);
  launch_with<0>(gpu, out, 96 * 1024);
  launch_with<0>(gpu, out, 64 * 1024);  // set to what each launch asks for, this would lower it
  CHECK(allowed_bytes(kernel) == 96 * 1024);
  CHECK_FALSE(cuda::detail::allow_shared_bytes(kernel, gpu.context.device, 96 * 1024));
  const std::size_t too_much = gpu.context.max_shared_bytes + 1024;
  for (int i = 0; i < 2; ++i)  // what was refused is not remembered
    CHECK_THROWS_AS(cuda::detail::allow_shared_bytes(kernel, gpu.context.device, too_much),
                    CudaError);
  launch_with<0>(gpu, out, 96 * 1024);
}

TEST_CASE("launch sets the limit of shared memory on every device, from any thread") {
  if (!has_gpu()) return;
  int count = 0;
  cuda::check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  std::vector<std::uint32_t> results(static_cast<std::size_t>(4 * count));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4 * count; ++i) {
    threads.emplace_back([&, i] {
      const cuda::DeviceGuard guard(i % count);
      const Gpu gpu;
      cuda::DeviceBuffer<std::uint32_t> out(1);
      for (std::uint32_t bytes = 50 * 1024; bytes <= 96 * 1024; bytes += 2048)
        cuda::launch(last_word_kernel<1>, {.grid = 1, .block = 1, .shared_bytes = bytes},
                     gpu.context, out.data(), bytes / 4);
      gpu.sync();
      cuda::check_cuda(
          cudaMemcpy(&results[static_cast<std::size_t>(i)], out.data(), 4, cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::uint32_t result : results) CHECK(result == 41 + 96 * 1024 / 4);
}

}  // namespace nanovllm::test
