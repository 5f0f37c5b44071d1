#pragma once
/// Which sequence has which slot of TokenMarks, and what the slot knows of its tokens.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace nanovllm {

/// The host's book of the slots. A slot that a sequence has marked all its tokens in stays right by
/// itself: what a step draws for it is marked on the device. Any other is filled from the tokens
/// that the host has: of a sequence that is new, was forked or computed again, or whose slot
/// another one has taken meanwhile. There are as many slots as a step has rows, so that one which
/// the step does not use can always be taken, and none has to be given back.
class MarkSlots {
 public:
  struct Place {
    std::int32_t slot = 0;
    bool is_current = false;  ///< it knows all tokens before the one to be drawn
  };

  explicit MarkSlots(std::int64_t num_slots) : slots_(static_cast<std::size_t>(num_slots)) {}

  /// Whether `owner` has a slot that knows its first `num_tokens` tokens.
  [[nodiscard]] bool is_current(std::uint64_t owner, std::optional<std::int32_t> hint,
                                std::int32_t num_tokens) const {
    if (!hint) return false;
    const Slot& slot = at(*hint);
    return slot.owner == owner && slot.num_tokens == num_tokens;
  }

  /// The slot in which `owner` draws its token number `num_tokens` in this step, after which the
  /// slot knows that one, too. Changes `hint`, which is the owner's to keep.
  /// @param owner  not 0, and no other sequence's, ever.
  [[nodiscard]] Place take(std::uint64_t owner, std::optional<std::int32_t>& hint,
                           std::int32_t num_tokens) {
    const bool current = is_current(owner, hint, num_tokens);
    if (!hint || at(*hint).owner != owner) hint = unused();
    slots_[static_cast<std::size_t>(*hint)] = {
        .owner = owner, .num_tokens = num_tokens + 1, .step = step_};
    return {*hint, current};
  }

  /// Another step begins.
  void begin_step() { ++step_; }

  /// Nothing is known of what the slots have.
  void forget() {
    for (Slot& slot : slots_) slot.num_tokens.reset();
  }

 private:
  struct Slot {
    std::uint64_t owner = 0;
    std::optional<std::int32_t> num_tokens{};
    std::uint64_t step = 0;  // that used it last
  };

  [[nodiscard]] const Slot& at(std::int32_t slot) const {
    return slots_[static_cast<std::size_t>(slot)];
  }

  /// The slot that was not used for the longest time.
  [[nodiscard]] std::int32_t unused() const {
    std::size_t oldest = 0;
    for (std::size_t i = 1; i < slots_.size(); ++i) {
      if (slots_[i].step < slots_[oldest].step) oldest = i;
    }
    return static_cast<std::int32_t>(oldest);
  }

  std::vector<Slot> slots_;
  std::uint64_t step_ = 0;
};

}  // namespace nanovllm
