#pragma once
/// Times the ways of a sum over ranks with a norm after it.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"
#include "nanovllm/parallel/nccl.cuh"
#include "nanovllm/with/peers/buffers.cuh"
#include "nanovllm/with/peers/peer_group.cuh"
#include "nanovllm/with/peers/peer_table.cuh"
#include "nanovllm/with/peers/sum.cuh"

namespace nanovllm::peer {

/// Microseconds of one `work()`, of several in a graph.
template <class Work>
[[nodiscard]] float time_in_graph(const Nccl& nccl, const cuda::Context& context,
                                  const Work& work) {
  constexpr int kCalls = 20, kReplays = 3;
  work();  // what is made at the first use
  cuda::check_cuda(cudaStreamSynchronize(context.stream), "cudaStreamSynchronize");
  const cuda::Graph graph = cuda::Graph::capture(context.stream, [&] {
    for (int i = 0; i < kCalls; ++i) work();
  });
  cuda::Event begin(true), end(true);
  float best = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kReplays; ++i) {
    {
      const auto held = nccl.hold();
      begin.record(context.stream);
      graph.launch(context.stream);
      end.record(context.stream);
    }
    end.synchronize();
    if (i > 0) best = std::min(best, 1e3f * end.milliseconds_since(begin) / kCalls);
  }
  return best;
}

/// The table of the slowest rank's times, which is the same on all ranks. All ranks call this at
/// the same time, and it takes a fraction of a second. A template, so that only programs that call
/// it have its kernels.
template <Element T = bf16>
[[nodiscard]] PeerTable measure(Nccl& nccl, const Group& group, const View& view,
                                const cuda::Context& context) {
  constexpr std::int64_t kWidth = 4096;
  constexpr float kNever = std::numeric_limits<float>::infinity();
  const std::int64_t max_bytes = group.options().max_bytes;
  constexpr auto kMost =
      static_cast<std::size_t>(PeerTable::bytes(PeerTable::kNumSizes - 1)) / sizeof(T);
  cuda::DeviceBuffer<T> sums(kMost), residuals(kMost), weights(kWidth);
  for (auto* const buffer : {&sums, &residuals, &weights}) {
    cuda::check_cuda(cudaMemsetAsync(buffer->data(), 0, buffer->size_bytes(), context.stream),
                     "cudaMemsetAsync");
  }
  PeerTable::Times times;
  for (auto& way : times) way.fill(kNever);
  for (int i = 0; i < PeerTable::kNumSizes && PeerTable::bytes(i) <= max_bytes; ++i) {
    const std::int64_t rows = PeerTable::bytes(i) / (std::int64_t{sizeof(T)} * kWidth);
    const MatrixView<T> x(sums.data(), {rows, kWidth}), residual(residuals.data(), x.extents);
    const VectorView<const T> weight(weights.data(), {kWidth});
    const auto at = [&](Way way) -> float& {
      return times[static_cast<std::size_t>(way)][static_cast<std::size_t>(i)];
    };
    const auto time_shots = [&](Shots shots) {
      return time_in_graph(nccl, context, [&] {
        all_reduce_add_norm(view, {.shots = shots}, x, residual, weight, 1e-6f, x, context);
      });
    };
    at(Way::one_shot) = time_shots(Shots::one);
    if (view.size > 2) at(Way::two_shot) = time_shots(Shots::two);
    at(Way::nccl) = time_in_graph(nccl, context, [&] {
      nccl.all_reduce(x);
      cuda::add_rms_norm(
          AddRmsNormArgs<T>{.x = x, .residual = residual, .weight = weight, .eps = 1e-6f, .out = x},
          context);
    });
  }
  for (const PeerTable::Times& other : exchange_values(nccl, context, group, times)) {
    for (std::size_t way = 0; way < times.size(); ++way) {
      for (std::size_t i = 0; i < times[way].size(); ++i)
        times[way][i] = std::max(times[way][i], other[way][i]);
    }
  }
  return PeerTable::by_time(times, max_bytes);
}

}  // namespace nanovllm::peer
