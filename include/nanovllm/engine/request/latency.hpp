#pragma once
/// How long requests and tokens take: percentiles from histograms of fixed size.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nanovllm {

/// Of times in seconds: the least time that 50, 90 or 99 of a hundred did not exceed, within 1/32
/// of it, or within a microsecond where that is more. 0 while there are none. Times of 2^14 seconds
/// (four and a half hours) and more count as that.
struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};

/// Counts of times in buckets of equal relative width: 16 for each doubling, 4368 bytes. Adding is
/// O(1), allocates nothing and takes no lock. One thread adds at a time; any may read meanwhile, or
/// make a copy.
class LatencyHistogram {
 public:
  LatencyHistogram() = default;
  LatencyHistogram(const LatencyHistogram& other) noexcept { *this = other; }
  LatencyHistogram& operator=(const LatencyHistogram& other) noexcept {
    for (std::size_t i = 0; i < buckets_.size(); ++i) set(i, other.get(i));
    set_sum(other.sum());
    return *this;
  }

  /// What was added after `earlier`, a copy of this one.
  [[nodiscard]] LatencyHistogram operator-(const LatencyHistogram& earlier) const noexcept {
    LatencyHistogram out;
    for (std::size_t i = 0; i < buckets_.size(); ++i) out.set(i, get(i) - earlier.get(i));
    out.set_sum(sum() - earlier.sum());
    return out;
  }

  void add(double seconds, std::int64_t count = 1) noexcept {
    const std::size_t i = index(seconds);
    set(i, get(i) + count);
    // What is not a time counts as none; 'not less' would let NaN pass.
    const double time = seconds > 0 ? std::min(seconds, double{kMost}) : 0.0;
    set_sum(sum() + time * static_cast<double>(count));
  }

  /// Times added.
  [[nodiscard]] std::int64_t count() const noexcept {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) sum += get(i);
    return sum;
  }

  /// Of the times added, to a double's precision. Read while another thread adds, it may be of a
  /// moment before or after the counts.
  [[nodiscard]] double sum() const noexcept { return sum_.load(std::memory_order_relaxed); }

  /// For each of `bounds`, in seconds and rising, the number of times that are certainly not above
  /// it, and after them the number of all. A bound may be amid a bucket, whose times then are not
  /// counted: they are within 1/16 below it, or within a microsecond where that is more.
  [[nodiscard]] std::vector<std::int64_t> cumulative(std::span<const double> bounds) const {
    std::vector<std::int64_t> out;
    out.reserve(bounds.size() + 1);
    std::size_t i = 0;
    std::int64_t sum = 0;
    for (const double bound : bounds) {
      // A bucket is below its upper edge, which is where the next one begins. The last has none.
      for (; i < kNumBuckets && lower_edge(i + 1) <= bound; ++i) sum += get(i);
      out.push_back(sum);
    }
    for (; i < buckets_.size(); ++i) sum += get(i);
    out.push_back(sum);
    return out;
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
  void set_sum(double sum) noexcept { sum_.store(sum, std::memory_order_relaxed); }

  /// Where a bucket begins, from 1 on.
  [[nodiscard]] static double lower_edge(std::size_t index) noexcept {
    return std::bit_cast<float>((static_cast<std::uint32_t>(index - 1) + kFirst) << kShift);
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
  std::atomic<double> sum_{0};
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
