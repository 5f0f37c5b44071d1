#pragma once
/// Ranks without communicators: buffers and streams on one device, or on several, and numbers that
/// every device can make for itself.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/spend_time.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"
#include "nanovllm/with/peers/sum.cuh"

namespace nanovllm::test {

/// Streams that share a queue of the device would wait for each other. Before the first call of
/// CUDA.
inline const int kManyQueues = ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

/// One rank, on the current device.
struct RigRank {
  explicit RigRank(std::size_t buffer_bytes) : buffer(buffer_bytes), state(1) {
    cuda::check_cuda(cudaMemset(buffer.data(), 0xff, buffer.size()), "cudaMemset");
    cuda::check_cuda(cudaMemset(state.data(), 0, sizeof(peer::State)), "cudaMemset");
    cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  Gpu gpu;
  cuda::DeviceBuffer<std::byte> buffer;
  cuda::DeviceBuffer<peer::State> state;
  peer::View view{};
};

/// A group of `size` ranks on the first `devices` devices, in turn. What it starts must be done
/// before it goes.
class PeerRig {
 public:
  /// Vectors of 16 bytes that a sum may have.
  static constexpr std::uint32_t kVectors = 1u << 16;

  /// @param groups  that use these devices at the same time
  /// @param limit   nanoseconds that a kernel waits
  explicit PeerRig(int size, int devices = 1, int groups = 1,
                   unsigned long long limit = 20'000'000'000ull)
      : ending_(1) {
    *ending_.data() = peer::kGoesOn;
    peer::View view{};
    view.ending = ending_.data();
    view.limit = limit;
    view.vectors_of_a_rank = kVectors;
    view.size = size;
    for (int r = 0; r < size; ++r) {
      const cuda::DeviceGuard guard(r % devices);
      ranks_.push_back(std::make_unique<RigRank>(view.buffer_bytes()));
    }
    for (int r = 0; r < size; ++r) view.buffers[r] = ranks_[r]->buffer.data();
    for (int a = 0; a < devices; ++a) {
      const cuda::DeviceGuard guard(a);
      for (int b = 0; b < devices; ++b) {
        if (a != b) static_cast<void>(cudaDeviceEnablePeerAccess(b, 0));
      }
      static_cast<void>(cudaGetLastError());  // it was enabled before
    }
    for (int r = 0; r < size; ++r) {
      view.rank = r;
      view.state = ranks_[r]->state.data();
      ranks_[r]->view = view;
    }
    // All ranks of a device run beside each other, each with one kernel and the next one.
    const int here = groups * ((size + devices - 1) / devices);
    if (here > 1) most_blocks_ = static_cast<unsigned>(ranks_[0]->gpu.context.num_sms / (2 * here));
  }
  ~PeerRig() {
    *ending() = peer::kAborted;
    for (auto& rank : ranks_) {
      if (cudaSetDevice(rank->gpu.context.device) == cudaSuccess)
        static_cast<void>(cudaDeviceSynchronize());
    }
    static_cast<void>(cudaSetDevice(0));
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] RigRank& operator[](int r) { return *ranks_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] volatile std::uint32_t* ending() { return ending_.data(); }
  [[nodiscard]] peer::Launch launch(peer::Shots shots) const { return {shots, most_blocks_}; }

  /// Calls body(rank) for every rank, with its device current; it enqueues and does not wait.
  template <class Body>
  void on_all(const Body& body) {
    for (auto& rank : ranks_) {
      const cuda::DeviceGuard guard(rank->gpu.context.device);
      body(*rank);
    }
  }
  void sync() {
    on_all([](RigRank& rank) { rank.gpu.sync(); });
  }

 private:
  cuda::PinnedBuffer<std::uint32_t> ending_;
  std::vector<std::unique_ptr<RigRank>> ranks_;
  unsigned most_blocks_ = 1u << 20;
};

/// A number in [-2, 2) that the arguments determine.
NANOVLLM_HD inline float number_of(std::uint32_t seed, std::uint32_t rank, std::uint32_t index) {
  std::uint32_t x = seed * 0x9e3779b9u + rank * 0x85ebca6bu + index * 0xc2b2ae35u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  x ^= x >> 16;
  return static_cast<float>(static_cast<std::int32_t>(x)) * 0x1p-30f;
}

}  // namespace nanovllm::test
