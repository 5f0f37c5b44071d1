#pragma once
/// A buffer of every rank of a group of peers, how each rank gets to those of the others, and what
/// its kernels see of that.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_claim.hpp"
#include "nanovllm/parallel/nccl.cuh"
#include "nanovllm/with/peers/peer_group.cuh"
#include "nanovllm/with/peers/peer_view.cuh"

namespace nanovllm::peer {

/// `mine` of all ranks, in rank order. All ranks call this at the same time.
template <class T>
[[nodiscard]] std::vector<T> exchange_values(Nccl& nccl, const cuda::Context& context,
                                             const Group& group, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto size = static_cast<std::int64_t>(sizeof(T)), ranks = std::int64_t{nccl.size()};
  cuda::DeviceBuffer<std::int8_t> part(sizeof(T)), whole(sizeof(T) * nccl.size());
  cuda::check_cuda(
      cudaMemcpyAsync(part.data(), &mine, sizeof(T), cudaMemcpyHostToDevice, context.stream),
      "cudaMemcpyAsync");
  nccl.all_gather(MatrixView<const std::int8_t>(part.data(), {1, size}),
                  MatrixView<std::int8_t>(whole.data(), {ranks, size}));
  std::vector<T> out(static_cast<std::size_t>(ranks));
  cuda::check_cuda(cudaMemcpyAsync(out.data(), whole.data(), whole.size(), cudaMemcpyDeviceToHost,
                                   context.stream),
                   "cudaMemcpyAsync");
  cuda::check_cuda(cudaStreamSynchronize(context.stream), "cudaStreamSynchronize");
  group.check_alive(nccl.rank());  // else what came is garbage
  return out;
}

/// One rank's way to a buffer of every rank. While it lives so do the buffers.
class Buffers {
 public:
  /// Joins the ranks, or finds that one of them has no memory, or wants none (`bytes` is 0), or
  /// that a pair of them cannot reach each other. All ranks call this at the same time, with the
  /// device of `context` current.
  Buffers(std::shared_ptr<Group> group, Nccl& nccl, const cuda::Context& context, std::size_t bytes)
      : group_(std::move(group)), device_(context.device), rank_(nccl.rank()) {
    if (nccl.size() > kMaxRanks) return;
    const Greeting mine = greeting(bytes);
    const std::vector<Greeting> all = exchange_values(nccl, context, *group_, mine);
    bool reaches = true;
    for (int r = 0; r < nccl.size() && reaches; ++r)
      reaches = reach(r, mine, all[static_cast<std::size_t>(r)]);
    static_cast<void>(cudaGetLastError());  // of what is not there
    reaches_ = true;
    for (const int other : exchange_values(nccl, context, *group_, reaches ? 1 : 0))
      reaches_ = reaches_ && other == 1;
  }
  /// Waits for the device: work of it may be using the memory of others.
  ~Buffers() {
    int previous = 0;
    static_cast<void>(cudaGetDevice(&previous));
    static_cast<void>(cudaSetDevice(device_));
    static_cast<void>(cudaDeviceSynchronize());
    for (void* const buffer : opened_) static_cast<void>(cudaIpcCloseMemHandle(buffer));
    static_cast<void>(cudaSetDevice(previous));
    static_cast<void>(cudaGetLastError());
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  /// Whether all ranks reach each other; else there are no buffers.
  [[nodiscard]] bool reach_peers() const { return reaches_; }
  /// That of rank r, as this rank's device reaches it.
  [[nodiscard]] std::byte* of(int r) const { return buffers_[r]; }

 private:
  /// What ranks tell each other.
  struct Greeting {
    std::byte* buffer;
    cudaIpcMemHandle_t handle;
    std::uint64_t machine;
    int device;
    bool is_ready;
  };

  /// A number that the processes of a machine have in common, 0 if it is unknown.
  [[nodiscard]] static std::uint64_t this_machine() {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    return file >> id ? std::hash<std::string>{}(id) : 0;
  }

  /// Makes the buffer of this rank. It is not ready if there is no memory for it, or none wanted.
  [[nodiscard]] Greeting greeting(std::size_t bytes) {
    Greeting out{};
    out.device = device_;
    out.machine = this_machine();
    if (bytes == 0) return out;
    try {
      out.buffer = group_->make_buffer(bytes);
      if (!group_->is_one_process())
        cuda::check_cuda(cudaIpcGetMemHandle(&out.handle, out.buffer), "cudaIpcGetMemHandle");
      out.is_ready = true;
    } catch (const CudaError&) {  // the others are told
    }
    return out;
  }

  /// Finds the buffer of rank r.
  bool reach(int r, const Greeting& mine, const Greeting& other) {
    if (!mine.is_ready || !other.is_ready) return false;
    std::byte*& place = buffers_[r];
    place = other.buffer;
    if (r == rank_) return true;
    if (group_->is_one_process()) {
      int can = 0;
      if (cudaDeviceCanAccessPeer(&can, device_, other.device) != cudaSuccess || can == 0)
        return false;
      const cudaError_t status = cudaDeviceEnablePeerAccess(other.device, 0);
      return status == cudaSuccess || status == cudaErrorPeerAccessAlreadyEnabled;
    }
    if (mine.machine == 0 || other.machine != mine.machine) return false;
    void* opened = nullptr;
    if (cudaIpcOpenMemHandle(&opened, other.handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
      return false;
    opened_.push_back(opened);
    place = static_cast<std::byte*>(opened);
    return true;
  }

  std::shared_ptr<Group> group_;
  int device_;
  int rank_;
  std::byte* buffers_[kMaxRanks] = {};
  std::vector<void*> opened_;  // of other processes
  bool reaches_ = false;
};

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
