#pragma once
/// The steps that are under way, at most two, and their errors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace nanovllm {

/// Steps take slots 0 and 1 alternately and end in the order in which they began.
class StepSlots {
 public:
  [[nodiscard]] int num_under_way() const { return static_cast<int>(num_begun_ - num_ended_); }
  /// The slot of the oldest step under way.
  [[nodiscard]] int oldest() const { return static_cast<int>(num_ended_ % 2); }
  /// The slot of the step that began last.
  [[nodiscard]] int newest() const { return static_cast<int>((num_begun_ + 1) % 2); }
  [[nodiscard]] std::exception_ptr& error(int slot) {
    return errors_[static_cast<std::size_t>(slot)];
  }

  /// A step begins; returns its slot. It has the error of the step before, if that is under way.
  int begin() {
    const auto slot = static_cast<int>(num_begun_ % 2);
    error(slot) = num_under_way() == 0 ? nullptr : error(1 - slot);
    ++num_begun_;
    return slot;
  }
  void end() { ++num_ended_; }

  /// None is under way any more.
  void drop_all() {
    errors_ = {};
    num_ended_ = num_begun_;
  }

 private:
  std::array<std::exception_ptr, 2> errors_;  // of the last two
  std::uint64_t num_begun_ = 0;
  std::uint64_t num_ended_ = 0;
};

}  // namespace nanovllm
