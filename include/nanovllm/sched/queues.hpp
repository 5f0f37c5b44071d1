#pragma once
/// The queue of the sequences that wait.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

/// Sequences in the order of `goes_before`, which is that of their arrival unless the scheduling
/// policy has another. They are linked through themselves: nothing is allocated and nothing throws.
/// A range of `Sequence*`. A sequence is in at most one queue.
class WaitingQueue {
 public:
  class Iterator {
   public:
    using iterator_concept = std::forward_iterator_tag;
    using iterator_category = std::input_iterator_tag;
    using value_type = Sequence*;
    using difference_type = std::ptrdiff_t;
    using reference = Sequence*;
    using pointer = void;

    Iterator() = default;
    explicit Iterator(Sequence* at) : at_(at) {}
    Sequence* operator*() const { return at_; }
    Iterator& operator++() {
      at_ = at_->later_waiting;
      return *this;
    }
    Iterator operator++(int) { return Iterator(std::exchange(at_, at_->later_waiting)); }
    friend bool operator==(Iterator, Iterator) = default;

   private:
    Sequence* at_ = nullptr;
  };

  WaitingQueue() = default;
  WaitingQueue(WaitingQueue&& other) noexcept
      : first_(std::exchange(other.first_, nullptr)),
        last_(std::exchange(other.last_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  WaitingQueue& operator=(WaitingQueue&&) = delete;

  [[nodiscard]] Iterator begin() const { return Iterator(first_); }
  [[nodiscard]] Iterator end() const { return Iterator(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] Sequence* front() const { return first_; }  ///< null if empty
  [[nodiscard]] Sequence* back() const { return last_; }    ///< null if empty

  /// Puts `s`, which is in no queue, after those that go before it. O(1) if it goes last of all,
  /// else O(n), where n are those before it or those after it, whichever are fewer.
  void insert(Sequence& s) noexcept {
    Sequence* later = nullptr;
    if (last_ != nullptr && goes_before(s, *last_)) later = find_later(s);
    s.later_waiting = later;
    s.earlier_waiting = later == nullptr ? last_ : later->earlier_waiting;
    (s.earlier_waiting == nullptr ? first_ : s.earlier_waiting->later_waiting) = &s;
    (later == nullptr ? last_ : later->earlier_waiting) = &s;
    ++size_;
  }

  /// Takes out `s`, which is in this queue. O(1).
  void erase(Sequence& s) noexcept {
    (s.earlier_waiting == nullptr ? first_ : s.earlier_waiting->later_waiting) = s.later_waiting;
    (s.later_waiting == nullptr ? last_ : s.later_waiting->earlier_waiting) = s.earlier_waiting;
    s.earlier_waiting = s.later_waiting = nullptr;
    --size_;
  }

  /// Throws Error naming the broken invariant. O(size).
  void check_invariants() const {
    std::size_t count = 0;
    const Sequence* before = nullptr;
    for (const Sequence* s : *this) {
      check(++count <= size_, "waiting queue: more sequences are linked than its size, ", size_);
      check(s->earlier_waiting == before, "waiting queue: request ", s->id,
            " is not its predecessor's successor");
      check(before == nullptr || goes_before(*before, *s), "waiting queue: request ", s->id,
            " waits out of order");
      before = s;
    }
    check(count == size_ && last_ == before, "waiting queue: ", count,
          " sequences are linked, but its size is ", size_);
  }

 private:
  /// The first that goes after `s`, if the last does. Looks from both ends at once.
  [[nodiscard]] Sequence* find_later(const Sequence& s) const noexcept {
    Sequence* front = first_;
    Sequence* back = last_;
    while (goes_before(*front, s)) {
      front = front->later_waiting;
      if (goes_before(*back->earlier_waiting, s)) return back;
      back = back->earlier_waiting;
    }
    return front;
  }

  Sequence* first_ = nullptr;
  Sequence* last_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace nanovllm
