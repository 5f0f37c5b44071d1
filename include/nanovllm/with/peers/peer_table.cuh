#pragma once
/// Which way a sum over ranks takes, by its size.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

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

}  // namespace nanovllm::peer
