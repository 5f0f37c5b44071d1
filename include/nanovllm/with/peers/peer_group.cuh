#pragma once
/// What the ranks of a group of peers have in common: settings, memory, and how it ends.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/with/peers/options.hpp"
#include "nanovllm/with/peers/peer_view.cuh"

namespace nanovllm::peer {

/// What the ranks of this process share. Buffers are freed when all ranks have let go of it.
class Group {
 public:
  Group(int size, int num_ends, const PeerOptions& options_in)
      : size_(size), is_one_process_(num_ends == size), options_(options_in) {}

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

  /// Memory of a rank of this process, on the current device, which no other rank has written yet:
  /// all bits are 1. Throws CudaError without memory for it.
  [[nodiscard]] std::byte* make_buffer(std::size_t bytes) {
    cuda::DeviceBuffer<std::byte> buffer(bytes);
    cuda::check_cuda(cudaMemset(buffer.data(), 0xff, bytes), "cudaMemset");
    cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const std::lock_guard lock(mutex_);
    return buffers_.emplace_back(std::move(buffer)).data();
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
  std::vector<cuda::DeviceBuffer<std::byte>> buffers_;
  bool is_aborted_ = false;
};

}  // namespace nanovllm::peer
