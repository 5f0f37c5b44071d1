#pragma once
/// What only one owner may do on a device at a time. For the host; nothing here needs CUDA.

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

namespace nanovllm::cuda {

/// The right to run kernels whose blocks wait for blocks after them. All blocks of such a kernel
/// must be on the device together: two of them at once, on two streams, could each hold
/// multiprocessors that the other waits for.
struct WaitsForLaterBlocks {};
/// The right to run kernels that wait for kernels of other devices and may fill this device
/// meanwhile. If two groups of devices had it, one could fill the first device and the other the
/// second, and each would wait for room on the device that the other fills.
struct WaitsForPeers {};

/// The claim to a right, one of the above. An owner without it uses kernels that do not wait, or
/// NCCL's, which wait but take few multiprocessors. Within this process; movable.
template <class Right>
class DeviceClaim {
 public:
  /// None.
  DeviceClaim() = default;
  /// Takes the claim of CUDA device `device`, or none, if somebody has it.
  explicit DeviceClaim(int device) {
    const std::lock_guard lock(mutex());
    if (taken().insert(device).second) device_ = device;
  }
  ~DeviceClaim() {
    if (device_ < 0) return;
    const std::lock_guard lock(mutex());
    taken().erase(device_);
  }
  DeviceClaim(DeviceClaim&& other) noexcept : device_(std::exchange(other.device_, -1)) {}
  DeviceClaim& operator=(DeviceClaim&& other) noexcept {
    std::swap(device_, other.device_);
    return *this;
  }

  explicit operator bool() const { return device_ >= 0; }

 private:
  static std::mutex& mutex() {
    static auto* const of_all = new std::mutex;  // never destroyed: a claim may end after main
    return *of_all;
  }
  static std::set<int>& taken() {
    static auto* const devices = new std::set<int>;
    return *devices;
  }

  int device_ = -1;
};

/// A group of devices of this process whose kernels wait for each other; counted while it lives.
/// While several groups live, kernels with `WaitsForLaterBlocks` must not run. Such a kernel of
/// group A may need a multiprocessor of device 0 that a kernel of group B holds. B's kernel may
/// wait for its peer on device 1, and device 1 may be full of A's kernels, which wait for device 0.
/// Communicators whose kernels wait for other devices have one.
class WaitingGroup {
 public:
  WaitingGroup() { ++num_alive_; }
  ~WaitingGroup() { --num_alive_; }
  WaitingGroup(const WaitingGroup&) = delete;
  WaitingGroup& operator=(const WaitingGroup&) = delete;

  [[nodiscard]] static int num_alive() { return num_alive_; }

 private:
  static inline std::atomic<int> num_alive_ = 0;
};

}  // namespace nanovllm::cuda
