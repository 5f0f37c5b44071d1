#pragma once
/// How many tokens a step drafts: as many as give most tokens a second.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "nanovllm/with/speculation/config.hpp"

namespace nanovllm {

/// How well one request's drafts do, averaged over its last steps.
class Acceptance {
 public:
  /// A step checked `drafted` of `asked` tokens, and `accepted` of them were drawn.
  /// @param refused  whether a token was drawn in the place of another that was drafted.
  void add(std::int32_t asked, std::int32_t drafted, std::int32_t accepted, bool refused) {
    num_right_ = num_right_ * kKept + accepted;
    num_tried_ = num_tried_ * kKept + accepted + (refused ? 1 : 0);
    num_drafted_ = num_drafted_ * kKept + drafted;
    num_asked_ = num_asked_ * kKept + asked;
  }

  /// How likely a drafted token is drawn if all before it were, in [0, 1].
  /// @param before  what is taken for a request without steps: `kPriorWeight` tokens of it.
  [[nodiscard]] double rate(double before) const {
    return (num_right_ + kPriorWeight * before) / (num_tried_ + kPriorWeight);
  }
  /// Drafted tokens a token that was asked for, in [0, 1].
  [[nodiscard]] double share(double before) const {
    return (num_drafted_ + kPriorWeight * before) / (num_asked_ + kPriorWeight);
  }

 private:
  static constexpr double kKept = 0.9, kPriorWeight = 4;
  double num_right_ = 0, num_tried_ = 0, num_drafted_ = 0, num_asked_ = 0;
};

/// Seconds of a step as a function of its rows, averaged over steps that were measured, and between
/// two of them a line. The first step of so many rows does not count: it may load kernels and
/// record a graph.
class StepSeconds {
 public:
  void add(std::int64_t rows, double seconds) {
    Point& point = points_[place_of(rows)];
    if (!std::exchange(point.is_tried, true)) return;
    const double weight = point.rows == 0 ? 1 : kNewWeight;
    // One step that was disturbed must not count for ten.
    if (point.rows > 0) seconds = std::min(seconds, 4 * point.seconds);
    point.seconds += weight * (seconds - point.seconds);
    point.rows += weight * (static_cast<double>(rows) - point.rows);
  }

  /// Beyond what was measured, the time of the nearest that was: more rows than were ever tried are
  /// taken to cost nothing, until they are tried. Unset if nothing was measured.
  /// @param less  if set: a time for fewer rows, where none of fewer was measured.
  [[nodiscard]] std::optional<double> at(double rows, std::optional<double> less = {},
                                         double less_rows = 0) const {
    const Point *below = nullptr, *above = nullptr;
    for (const Point& point : points_) {
      if (point.rows == 0) continue;
      if (point.rows <= rows) below = &point;
      if (point.rows >= rows && above == nullptr) above = &point;
    }
    const Point given{less_rows, less.value_or(0)};
    if (below == nullptr && less) below = &given;
    if (below == nullptr && above == nullptr) return {};
    if (above == nullptr || below == above) return below->seconds;
    if (below == nullptr || above->rows <= below->rows) return above->seconds;
    const double part = (rows - below->rows) / (above->rows - below->rows);
    return below->seconds + part * (above->seconds - below->seconds);
  }

  /// Whether a step of half to twice as many rows was measured.
  [[nodiscard]] bool knows(double rows) const {
    return std::ranges::any_of(points_, [&](const Point& point) {
      return point.rows > 0 && point.rows >= rows / 2 && point.rows <= rows * 2;
    });
  }

 private:
  struct Point {
    double rows = 0;  ///< average; 0: none
    double seconds = 0;
    bool is_tried = false;
  };
  static constexpr double kNewWeight = 0.2;

  /// 1 to 16 rows have a place each, more have four a doubling.
  [[nodiscard]] static std::size_t place_of(std::int64_t rows) {
    if (rows <= 16) return static_cast<std::size_t>(std::max<std::int64_t>(rows, 1) - 1);
    const auto place =
        16 + static_cast<std::size_t>(4 * (std::log2(static_cast<double>(rows)) - 4));
    return std::min(place, kNumPlaces - 1);
  }

  static constexpr std::size_t kNumPlaces = 64;
  std::array<Point, kNumPlaces> points_{};
};

/// Chooses the length. A step of n sequences that asks for k tokens of each gives
///
///     Σ 1 + share · (a + a² + … + aᵏ)    tokens, and computes    Σ 1 + share · k    rows
///
/// with a sequence's own rate `a` and share. Steps that draft and steps that do not are measured
/// apart: those that do not may be planned while another is computed, and have no drafter to wait
/// for. Now and then a step does what it would not, so that both are known as they are.
class DraftLength {
 public:
  /// @param max       most tokens, in [1, SpeculativeConfig::kMaxTokens].
  /// @param adaptive  false: it is `max` always.
  DraftLength(std::int32_t max, bool adaptive) : max_(max), adaptive_(adaptive) {}

  /// @param sequences  those that may be drafted for.
  /// @param num_others  sequences that get one token each in any case.
  /// @param num_rows    most rows of the step.
  [[nodiscard]] std::int32_t choose(std::span<const Acceptance* const> sequences,
                                    std::size_t num_others, std::int32_t num_rows) const {
    const auto room = num_rows - static_cast<std::int32_t>(sequences.size() + num_others);
    if (sequences.empty() || room <= 0) return 0;
    // Where there is not a row for each, some get one.
    const std::int32_t most =
        std::clamp(room / static_cast<std::int32_t>(sequences.size()), 1, max_);
    if (!adaptive_) return most;
    const auto num_plain = static_cast<double>(sequences.size() + num_others);
    if (!plain_.knows(num_plain)) return 0;
    const std::int32_t best = best_of(sequences, num_plain, most);
    if (num_since_probe_ < probe_after_) return best;
    return was_drafting_ ? 0 : std::max(best, 1);
  }

  /// A step that asked for `length` tokens of each sequence is done. It may have been chosen before
  /// the one before it was done, and so before the time to probe.
  void count(std::int32_t length) {
    const bool is_drafting = length > 0;
    ++num_since_probe_;
    if (is_drafting == was_drafting_) return;
    if (num_since_probe_ > probe_after_) {
      num_since_probe_ = 0;
      probe_after_ = std::min(2 * probe_after_, kMostBetween);
    } else {
      was_drafting_ = is_drafting;
      num_since_probe_ = 0;
      probe_after_ = kLeastBetween;
    }
  }

  /// That step took so long, of decodes alone.
  void measure(std::int32_t length, std::int64_t rows, double seconds) {
    (length > 0 ? drafting_ : plain_).add(rows, seconds);
  }

  /// Steps of all requests, which say what is to be expected of a new one.
  [[nodiscard]] Acceptance& all() { return all_; }

 private:
  static constexpr std::int32_t kLeastBetween = 16, kMostBetween = 256;

  [[nodiscard]] std::int32_t best_of(std::span<const Acceptance* const> sequences, double num_plain,
                                     std::int32_t most) const {
    const double rate = all_.rate(0.7), share = all_.share(1);
    std::array<double, SpeculativeConfig::kMaxTokens + 1> more{};  // tokens than the one before
    double drafted = 0;                                            // of one token each
    for (const Acceptance* one : sequences) {
      const double a = one->rate(rate), own = one->share(share);
      drafted += own;
      double likely = own;
      for (std::int32_t k = 1; k <= most; ++k) more[static_cast<std::size_t>(k)] += likely *= a;
    }
    const std::optional<double> plain = plain_.at(num_plain);
    double best = num_plain / *plain, tokens = num_plain;
    std::int32_t length = 0;
    for (std::int32_t k = 1; k <= most; ++k) {
      tokens += more[static_cast<std::size_t>(k)];
      const double speed = tokens / *drafting_.at(num_plain + k * drafted, plain, num_plain);
      if (speed > best) best = speed, length = k;
    }
    return length;
  }

  std::int32_t max_;
  bool adaptive_;
  StepSeconds plain_, drafting_;
  Acceptance all_;
  bool was_drafting_ = false;
  std::int32_t num_since_probe_ = 0;
  std::int32_t probe_after_ = kLeastBetween;
};

}  // namespace nanovllm
