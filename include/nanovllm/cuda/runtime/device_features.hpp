#pragma once
/// What kernels are chosen by: facts about a device, and about the program's code for it. For the
/// host; nothing here needs CUDA.

#include <cstddef>

namespace nanovllm::cuda {

/// Read once a stream, by `Context::on`.
struct DeviceFeatures {
  int compute_capability = 0;  ///< 10 · major + minor
  int num_sms = 0;
  std::size_t l2_bytes = 0;
  std::size_t max_shared_bytes = 0;  ///< dynamic shared memory a block may ask for
  /// Whether the program's code for this device waits for the kernels ahead of it by itself, so
  /// that kernels may be started before those have ended. Code for 8.x that the driver translated
  /// does not.
  bool can_overlap = false;
  bool has_clusters = false;  ///< that code may also be launched in clusters
  /// The compute capability whose own instructions that code has: 90 where it was compiled for
  /// sm_90a; 0 where it keeps to what later devices have, too.
  int native_code = 0;
};

}  // namespace nanovllm::cuda
