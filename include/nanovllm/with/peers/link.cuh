#pragma once
/// How the kernels of one rank get to what the group has for them.

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_claim.hpp"
#include "nanovllm/parallel/nccl.cuh"
#include "nanovllm/with/peers/buffers.cuh"
#include "nanovllm/with/peers/peer_group.cuh"
#include "nanovllm/with/peers/peer_view.cuh"

namespace nanovllm::peer {

/// The `View` of one rank, and what it shows.
class Link {
 public:
  /// Joins the ranks, or finds that some pair of them cannot reach each other, or that a device has
  /// another group of peers. All ranks call this at the same time, with the device of `context`
  /// current. Throws CudaError without memory for a few words.
  Link(const std::shared_ptr<Group>& group, Nccl& nccl, const cuda::Context& context)
      : claim_(context.device) {
    const PeerOptions& options = group->options();
    state_ = cuda::DeviceBuffer<State>(1);
    cuda::check_cuda(cudaMemset(state_.data(), 0, sizeof(State)), "cudaMemset");
    view_ = {.buffers = {},
             .state = state_.data(),
             .ending = group->ending(),
             .limit = static_cast<unsigned long long>(options.limit * 1e9),
             .vectors_of_a_rank = static_cast<std::uint32_t>(options.max_bytes / 16),
             .rank = nccl.rank(),
             .size = nccl.size()};
    buffers_.emplace(group, nccl, context, claim_ ? view_.buffer_bytes() : 0);
    if (!reaches_peers()) claim_ = {};
    for (int r = 0; r < view_.size && reaches_peers(); ++r) view_.buffers[r] = buffers_->of(r);
  }

  /// Whether all ranks reach each other; else kernels must not use the view.
  [[nodiscard]] bool reaches_peers() const { return buffers_->reach_peers(); }
  [[nodiscard]] const View& view() const { return view_; }
  [[nodiscard]] std::int64_t max_vectors() const { return view_.vectors_of_a_rank; }

 private:
  cuda::DeviceClaim<cuda::WaitsForPeers> claim_;  // first, so destroyed last: no kernel waits
  View view_{};
  cuda::DeviceBuffer<State> state_;
  std::optional<Buffers> buffers_;  // last: its end waits for kernels that use the state
};

}  // namespace nanovllm::peer
