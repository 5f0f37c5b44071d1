#pragma once
/// How long requests and tokens take: percentiles from histograms of fixed size.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace nanovllm {

/// Of times in seconds: the least time that 50, 90 or 99 of a hundred did not exceed, within 1/32
/// of it, or within a microsecond where that is more. 0 while there are none. Times of 2^14 seconds
/// (four and a half hours) and more count as that.
struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};

/// Counts of times in buckets of equal relative width: 16 for each doubling, 4360 bytes. Adding is
/// O(1), allocates nothing and takes no lock. One thread adds at a time; any may read meanwhile, or
/// make a copy.
class LatencyHistogram {
 public:
  LatencyHistogram() = default;
  LatencyHistogram(const LatencyHistogram& other) noexcept { *this = other; }
  LatencyHistogram& operator=(const LatencyHistogram& other) noexcept {
    for (std::size_t i = 0; i < buckets_.size(); ++i) set(i, other.get(i));
    return *this;
  }

  /// What was added behind `earlier`, a copy of this one.
  [[nodiscard]] LatencyHistogram operator-(const LatencyHistogram& earlier) const noexcept {
    LatencyHistogram out;
    for (std::size_t i = 0; i < buckets_.size(); ++i) out.set(i, get(i) - earlier.get(i));
    return out;
  }

  void add(double seconds, std::int64_t count = 1) noexcept {
    const std::size_t i = index(seconds);
    set(i, get(i) + count);
  }

  /// Times added.
  [[nodiscard]] std::int64_t count() const noexcept {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) sum += get(i);
    return sum;
  }

  [[nodiscard]] Percentiles percentiles() const noexcept {
    const std::int64_t all = count();
    if (all == 0) return {};
    return {quantile(all, 0.5), quantile(all, 0.9), quantile(all, 0.99)};
  }

 private:
  // A float's upper bits are its exponent and the first bits of its mantissa: 16 steps a doubling.
  static constexpr int kShift = 23 - 4;
  static constexpr float kLeast = 0x1p-20f, kMost = 0x1p14f;
  static constexpr std::uint32_t kFirst = std::bit_cast<std::uint32_t>(kLeast) >> kShift;
  static constexpr std::uint32_t kLast = std::bit_cast<std::uint32_t>(kMost) >> kShift;
  static constexpr std::size_t kNumBuckets = kLast - kFirst + 1;  // and one for what is less

  [[nodiscard]] static std::size_t index(double seconds) noexcept {
    const auto x = static_cast<float>(seconds);
    if (!(x >= kLeast)) return 0;
    return (std::bit_cast<std::uint32_t>(std::min(x, kMost)) >> kShift) - kFirst + 1;
  }
  [[nodiscard]] std::int64_t get(std::size_t index) const noexcept {
    return buckets_[index].load(std::memory_order_relaxed);
  }
  void set(std::size_t index, std::int64_t count) noexcept {
    buckets_[index].store(count, std::memory_order_relaxed);
  }
  /// The middle of a bucket.
  [[nodiscard]] static double value(std::size_t index) noexcept {
    if (index == 0) return 0;
    if (index == kNumBuckets) return kMost;
    const std::uint32_t bits = static_cast<std::uint32_t>(index - 1) + kFirst;
    return std::bit_cast<float>(bits << kShift | 1u << (kShift - 1));
  }

  /// The time of rank ⌈share · all⌉.
  [[nodiscard]] double quantile(std::int64_t all, double share) const noexcept {
    const double rank = std::ceil(share * static_cast<double>(all));
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      sum += get(i);
      if (static_cast<double>(sum) >= rank) return value(i);
    }
    return kMost;  // not reached: counts only grow
  }

  std::array<std::atomic<std::int64_t>, kNumBuckets + 1> buckets_{};
};

/// Of all requests of an engine since it was made, with or without callbacks. Of a stretch of time:
/// what there is at its end less what there was at its beginning (`Engine::latencies`), so that any
/// number of observers have stretches of their own.
struct Latencies {
  LatencyHistogram queue;        ///< from submission until first computed in a step
  LatencyHistogram first_token;  ///< from submission until the first token
  LatencyHistogram inter_token;  ///< between two tokens of a sequence
  LatencyHistogram end_to_end;   ///< from submission to the end, of those that ended by themselves

  [[nodiscard]] Latencies operator-(const Latencies& earlier) const noexcept {
    return {.queue = queue - earlier.queue,
            .first_token = first_token - earlier.first_token,
            .inter_token = inter_token - earlier.inter_token,
            .end_to_end = end_to_end - earlier.end_to_end};
  }
};

}  // namespace nanovllm
