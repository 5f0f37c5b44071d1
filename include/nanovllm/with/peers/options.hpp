#pragma once
/// Settings of sums through the memory of peers, for the host compiler as well.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace nanovllm {

/// Settings of `PeerMemory`, one of `EngineConfig::extras`: how ranks add through the memory of
/// peers where that is the policy's Communicator, as in `CudaFullPolicy`. Other communicators do
/// not read them. Of several engines of a process with a device in common, only the first adds
/// through the memory of peers.
struct PeerOptions {
  /// Of a rank's part in a sum, a power of two from 8 KiB to 4 MiB; larger ones are NCCL's, or
  /// overlapped (below). A rank has twice as much memory for each rank of the group. 0: NCCL has
  /// all calls, and no memory is taken.
  std::int64_t max_bytes = std::int64_t{4} << 20;
  /// Seconds that a kernel waits for another rank before it ends the group. In an engine it is at
  /// least `EngineConfig::step_timeout`, if that is set.
  double limit = 60;
  /// Whether the ways of a sum are timed when ranks are joined, or chosen by a rule.
  bool measures = true;
  /// Of two ranks, sums after dense layers, of at least so many bytes and not in graphs, are made
  /// in two halves, each beside the products of the other (copied_sums.cuh). A rank takes
  /// twice the bytes of the largest such sum when there is one.
  std::int64_t min_overlapped_bytes = std::int64_t{16} << 20;

  /// A step may take so many seconds.
  void allow_step(double seconds) {
    constexpr double kMost = 1e8;  // a limit is below 1e9
    limit = std::max(limit, std::min(seconds, kMost));
  }
  /// See Extras.
  [[nodiscard]] std::vector<std::pair<const char*, std::int64_t>> shared() const {
    return {{"PeerOptions::max_bytes", max_bytes},
            {"PeerOptions::measures", measures},
            {"PeerOptions::min_overlapped_bytes", min_overlapped_bytes}};
  }
};

}  // namespace nanovllm
