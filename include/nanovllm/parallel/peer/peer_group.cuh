#pragma once
/// The memory of a group of peers, and how each rank gets to that of the others.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/parallel/nccl.cuh"
#include "nanovllm/parallel/peer/peer_view.cuh"

namespace nanovllm {

/// Settings of `PeerMemory`; the same on all ranks.
struct PeerOptions {
  /// Of a rank's part in a sum; larger ones are NCCL's. A rank has twice as much memory for each
  /// rank of the group.
  std::int64_t max_bytes = std::int64_t{4} << 20;
  /// Seconds that a kernel waits for another rank before it ends the group.
  double limit = 60;
  /// Whether the ways of a sum are timed when ranks are joined, or chosen by a rule.
  bool measures = true;
  /// Of a sum. Fewer are for several groups that use the same devices at the same time: kernels of
  /// all of them, with one that stands by behind each, must have room.
  unsigned max_blocks = 1u << 20;
};

namespace peer {

/// What the ranks of this process share. Buffers are freed when no rank uses any of them.
class Group {
 public:
  Group(int size, int num_ends, const PeerOptions& options_in)
      : size_(size), is_one_process_(num_ends == size), options_(options_in), buffers_(size) {}

  [[nodiscard]] int size() const { return size_; }
  /// Whether all ranks are threads of this process.
  [[nodiscard]] bool is_one_process() const { return is_one_process_; }
  [[nodiscard]] const PeerOptions& options() const { return options_; }

  /// The word that ends the group for kernels. Throws CudaError without memory for it.
  [[nodiscard]] volatile std::uint32_t* ending() {
    const std::lock_guard lock(mutex_);
    if (ending_.data() == nullptr) {
      cuda::PinnedBuffer<std::uint32_t> word(1);
      *word.data() = is_aborted_ ? kAborted : kGoesOn;
      ending_ = std::move(word);
    }
    return ending_.data();
  }

  /// Memory of `rank`, on the current device, which no other rank has written yet.
  [[nodiscard]] std::byte* make_buffer(int rank, std::size_t bytes) {
    cuda::DeviceBuffer<std::byte> buffer(bytes);
    cuda::check_cuda(cudaMemset(buffer.data(), 0xff, bytes), "cudaMemset");
    cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const std::lock_guard lock(mutex_);
    auto& place = buffers_[static_cast<std::size_t>(rank)];
    place = std::move(buffer);
    return place.data();
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    if (auto* const word = static_cast<volatile std::uint32_t*>(ending_.data());
        word != nullptr && *word == kGoesOn)
      *word = kAborted;
  }

  /// Throws CudaError when the group has ended.
  void check_alive(int rank) const {
    throw_if_late(rank);
    const std::lock_guard lock(mutex_);
    check<CudaError>(!is_aborted_, "PeerMemory: rank ", rank,
                     ": another rank failed and the group was aborted");
  }

  /// Throws CudaError when it was a kernel that ended it.
  void throw_if_late(int rank) const {
    const std::lock_guard lock(mutex_);
    const auto* const word = static_cast<const volatile std::uint32_t*>(ending_.data());
    check<CudaError>(word == nullptr || *word != kLate, "PeerMemory: rank ", rank,
                     ": another rank failed to come within ",
                     static_cast<std::int64_t>(1e3 * options_.limit), " ms");
  }

 private:
  const int size_;
  const bool is_one_process_;
  const PeerOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  cuda::PinnedBuffer<std::uint32_t> ending_;
  std::vector<cuda::DeviceBuffer<std::byte>> buffers_;  // by rank, those of this process
  bool is_aborted_ = false;
};

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

/// One rank's way to the memory of all others. While it lives so do their buffers.
class Link {
 public:
  /// Joins the ranks, or finds that some pair of them cannot reach each other. All ranks call this
  /// at the same time, with the device of `context` current.
  Link(std::shared_ptr<Group> group, Nccl& nccl, const cuda::Context& context)
      : group_(std::move(group)), device_(context.device) {
    if (nccl.size() > kMaxRanks) return;
    view_.rank = nccl.rank();
    view_.size = nccl.size();
    const bool is_ready = prepare();
    const std::vector<Greeting> all = exchange_values(nccl, context, *group_, greeting_);
    bool reaches = is_ready;
    for (int r = 0; r < nccl.size() && reaches; ++r) reaches = reach(r, all);
    static_cast<void>(cudaGetLastError());  // of what is not there
    reaches_ = true;
    for (const int other : exchange_values(nccl, context, *group_, reaches ? 1 : 0))
      reaches_ = reaches_ && other == 1;
  }
  /// Waits for the device: kernels may be using the memory of others.
  ~Link() {
    int previous = 0;
    static_cast<void>(cudaGetDevice(&previous));
    static_cast<void>(cudaSetDevice(device_));
    static_cast<void>(cudaDeviceSynchronize());
    for (void* const buffer : opened_) static_cast<void>(cudaIpcCloseMemHandle(buffer));
    static_cast<void>(cudaSetDevice(previous));
    static_cast<void>(cudaGetLastError());
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Whether all ranks reach each other; else there is no view.
  [[nodiscard]] bool reaches_peers() const { return reaches_; }
  [[nodiscard]] const View& view() const { return view_; }
  [[nodiscard]] std::int64_t max_vectors() const { return view_.vectors_of_a_rank; }

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

  /// Makes what this rank has itself; returns false where there is no memory for it.
  bool prepare() {
    const PeerOptions& options = group_->options();
    view_.vectors_of_a_rank = static_cast<std::uint32_t>(options.max_bytes / 16);
    view_.limit = static_cast<unsigned long long>(options.limit * 1e9);
    greeting_.device = device_;
    greeting_.machine = this_machine();
    try {
      view_.ending = group_->ending();
      state_ = cuda::DeviceBuffer<State>(1);
      cuda::check_cuda(cudaMemset(state_.data(), 0, sizeof(State)), "cudaMemset");
      view_.state = state_.data();
      greeting_.buffer = group_->make_buffer(view_.rank, view_.buffer_bytes());
      if (!group_->is_one_process()) {
        cuda::check_cuda(cudaIpcGetMemHandle(&greeting_.handle, greeting_.buffer),
                         "cudaIpcGetMemHandle");
      }
      greeting_.is_ready = true;
    } catch (const CudaError&) {
      return false;
    }
    return true;
  }

  /// Finds the buffer of rank r.
  bool reach(int r, const std::vector<Greeting>& all) {
    const Greeting& other = all[static_cast<std::size_t>(r)];
    if (!other.is_ready) return false;
    std::byte*& place = view_.buffers[r];
    place = other.buffer;
    if (r == view_.rank) return true;
    if (group_->is_one_process()) {
      int can = 0;
      if (cudaDeviceCanAccessPeer(&can, device_, other.device) != cudaSuccess || can == 0)
        return false;
      const cudaError_t status = cudaDeviceEnablePeerAccess(other.device, 0);
      return status == cudaSuccess || status == cudaErrorPeerAccessAlreadyEnabled;
    }
    if (greeting_.machine == 0 || other.machine != greeting_.machine) return false;
    void* opened = nullptr;
    if (cudaIpcOpenMemHandle(&opened, other.handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
      return false;
    opened_.push_back(opened);
    place = static_cast<std::byte*>(opened);
    return true;
  }

  std::shared_ptr<Group> group_;
  int device_;
  Greeting greeting_{};
  View view_{};
  cuda::DeviceBuffer<State> state_;
  std::vector<void*> opened_;  // of other processes
  bool reaches_ = false;
};

}  // namespace peer

}  // namespace nanovllm
