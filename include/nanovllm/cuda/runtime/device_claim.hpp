#pragma once
/// What only one owner may do on a device at a time. For the host; nothing here needs CUDA.

#include <mutex>
#include <set>
#include <utility>

namespace nanovllm::cuda {

/// To run kernels whose blocks wait for blocks behind them. All blocks of such a kernel must be on
/// the device together: two of them at once, on two streams, could each hold multiprocessors that
/// the other waits for.
struct WaitsForLaterBlocks {};
/// To run kernels that wait for kernels of other devices, and may fill this one meanwhile. Of two
/// such pairs each could have filled one device, and wait for a place on the other.
struct WaitsForPeers {};

/// A right, one of the above. Who has no claim runs kernels without such waits, or NCCL's, which
/// take few multiprocessors. Within this process; movable.
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
    static std::mutex of_all;
    return of_all;
  }
  static std::set<int>& taken() {
    static std::set<int> devices;
    return devices;
  }

  int device_ = -1;
};

}  // namespace nanovllm::cuda
