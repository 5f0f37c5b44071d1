#pragma once
/// What a GPU can do at most, measured.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"
#include "program.hpp"

namespace engine_bench {

/// Sums `size` vectors, so that each is read once.
__global__ static void __launch_bounds__(512)
    read_kernel(const uint4* from, std::int64_t size, std::uint32_t* sink) {
  nv::cuda::grid_dependency_wait();
  std::uint32_t sum = 0;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < size; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = from[i + j * stride];
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < size; i += stride) sum += from[i].x;
  if (sum == 0x12345678u) *sink = sum;  // the compiler cannot know that this is rare
}

/// The rates of one device, times the number of ranks: reading 2 GiB, and products of 8192 ³ in
/// the element type, through cuBLASLt.
class CudaProber {
 public:
  CudaProber(const ProbeOptions& options, nv::DType dtype)
      : num_ranks_(options.num_ranks), dtype_(dtype) {}

  Ceilings operator()() {
    const double ranks = num_ranks_;
    return {ranks * read_rate(),
            ranks * (dtype_ == nv::DType::float32 ? product_rate<float>(2048)
                                                  : product_rate<nv::bf16>(8192))};
  }

 private:
  /// Seconds of the fastest of `repeats` runs, after one that does not count.
  template <class Run>
  double best_seconds(const Run& run, int repeats) {
    nv::cuda::Event begin(true), end(true);
    double best = 1e30;
    for (int i = 0; i <= repeats; ++i) {
      begin.record(stream_.get());
      run();
      end.record(stream_.get());
      end.synchronize();
      if (i > 0) best = std::min(best, 1e-3 * static_cast<double>(end.milliseconds_since(begin)));
    }
    return best;
  }

  double read_rate() {
    constexpr std::int64_t kBytes = std::int64_t{2} << 30;
    const nv::cuda::DeviceBuffer<uint4> data(kBytes / 16);
    nv::cuda::DeviceBuffer<std::uint32_t> sink(1);
    const nv::cuda::LaunchConfig config{
        .grid = static_cast<unsigned>(context_.num_sms * 4), .block = 512, .overlap = false};
    const double seconds = best_seconds(
        [&] {
          nv::cuda::launch(read_kernel, config, context_, data.data(), kBytes / 16, sink.data());
        },
        5);
    return static_cast<double>(kBytes) / seconds;
  }

  template <class T>
  double product_rate(std::int64_t n) {
    nv::cuda::DeviceMatrix<T> weight(n, n);
    nv::cuda::DeviceBuffer<T> x(static_cast<std::size_t>(n * n)), y(x.size());
    nv::cuda::detail::fill_noise(weight.data(), n * n, context_);
    nv::cuda::detail::fill_noise(x.data(), n * n, context_);
    const double seconds = best_seconds(
        [&] {
          nv::cuda::linear(
              nv::LinearArgs<T, nv::cuda::DeviceMatrix<T>>{.x = nv::MatrixView<T>(x.data(), {n, n}),
                                                           .weight = &weight,
                                                           .y = {y.data(), {n, n}}},
              linear_, context_);
        },
        5);
    const auto size = static_cast<double>(n);
    return 2 * size * size * size / seconds;
  }

  int num_ranks_;
  nv::DType dtype_;
  nv::cuda::Stream stream_;
  nv::cuda::Context context_ = nv::cuda::Context::on(stream_.get());
  nv::cuda::DenseEngine<nv::cuda::DeviceArchitectures> linear_;
};

}  // namespace engine_bench
