#pragma once
/// Which way a sum over ranks takes, by its size, and the times of a sum with a norm after it that
/// decide it.

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
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
#include "nanovllm/with/peers/sum.cuh"

namespace nanovllm::peer {

/// How a sum over ranks is made.
enum class Way : std::uint8_t {
  one_shot,  ///< every rank sends its part to all others
  two_shot,  ///< through the rank that owns a part
  nccl,      ///< through NCCL
};
inline constexpr int kNumWays = 3;

/// A way for each size: 8 KiB, 16 KiB, … 4 MiB, and NCCL above. A size in between takes the way of
/// the next larger one.
class PeerTable {
 public:
  static constexpr int kNumSizes = 10;
  /// Microseconds by way and size; infinite where a way is not there.
  using Times = std::array<std::array<float, kNumSizes>, kNumWays>;

  /// Bytes of a size.
  [[nodiscard]] static constexpr std::int64_t bytes(int size) { return std::int64_t{8192} << size; }

  /// Without measurements: two ranks send in one shot whatever fits in `max_bytes`, more ranks what
  /// takes little longer than a way through the links does.
  [[nodiscard]] static PeerTable by_rule(int num_ranks, std::int64_t max_bytes) {
    const std::int64_t one_shot = num_ranks <= 2   ? max_bytes
                                  : num_ranks <= 4 ? std::int64_t{512} * 1024
                                                   : std::int64_t{256} * 1024;
    PeerTable out;
    for (int i = 0; i < kNumSizes; ++i) {
      if (bytes(i) > max_bytes) continue;
      out.ways_[static_cast<std::size_t>(i)] = bytes(i) <= one_shot ? Way::one_shot : Way::two_shot;
    }
    return out;
  }

  /// The fastest way for each size that fits in `max_bytes`. NCCL has to be faster by a twentieth:
  /// the other ways have one order of additions.
  [[nodiscard]] static PeerTable by_time(const Times& times, std::int64_t max_bytes) {
    PeerTable out;
    for (int i = 0; i < kNumSizes; ++i) {
      if (bytes(i) > max_bytes) continue;
      const auto at = [&](Way way) {
        return times[static_cast<std::size_t>(way)][static_cast<std::size_t>(i)];
      };
      const Way own = at(Way::one_shot) <= at(Way::two_shot) ? Way::one_shot : Way::two_shot;
      out.ways_[static_cast<std::size_t>(i)] = at(Way::nccl) < 0.95f * at(own) ? Way::nccl : own;
    }
    return out;
  }

  [[nodiscard]] Way at(std::int64_t num_bytes) const {
    for (int i = 0; i < kNumSizes; ++i) {
      if (num_bytes <= bytes(i)) return ways_[static_cast<std::size_t>(i)];
    }
    return Way::nccl;
  }

 private:
  std::array<Way, kNumSizes> ways_{Way::nccl, Way::nccl, Way::nccl, Way::nccl, Way::nccl,
                                   Way::nccl, Way::nccl, Way::nccl, Way::nccl, Way::nccl};
};

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
