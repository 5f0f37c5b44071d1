#pragma once
/// What the ranks of a row-wise collective compare before they move rows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm::detail {

/// One rank's side of a call: the rows that it sends to each rank and receives from each.
class RowExchange {
 public:
  /// Nothing is known yet: fits everything.
  RowExchange() = default;

  /// The rows of `part` to and from each rank; `whole` has as many of each.
  template <class A, class B>
  static RowExchange even(const char* call, int size, MatrixView<A> part, MatrixView<B> whole) {
    RowExchange out(call, size, part.extent(1));
    std::fill(out.numbers.begin() + 1, out.numbers.end(), part.extent(0));
    out.check_own([&] {
      check_shape(call, "whole", whole, {size * part.extent(0), part.extent(1)});
    });
    return out;
  }

  /// `send_rows[r]` rows of `from` to rank r and `receive_rows[r]` rows of `to` from it.
  template <class A, class B>
  static RowExchange uneven(int size, MatrixView<A> from, std::span<const int> send_rows,
                            MatrixView<B> to, std::span<const int> receive_rows) {
    RowExchange out("all_to_all", size, from.extent(1));
    out.check_own([&] {
      check_shape("all_to_all", "from", from, {out.set(1, "send_rows", send_rows), -1});
      check_shape("all_to_all", "to", to,
                  {out.set(1 + size, "receive_rows", receive_rows), from.extent(1)});
    });
    return out;
  }

  [[nodiscard]] int size() const { return static_cast<int>(numbers.size() / 2); }
  [[nodiscard]] std::int64_t width() const { return numbers[0]; }
  [[nodiscard]] std::int64_t sent_to(int rank) const {
    return numbers[1 + static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::int64_t received_from(int rank) const { return sent_to(size() + rank); }
  /// The rows that are sent to the ranks below `rank`.
  [[nodiscard]] std::int64_t sent_before(int rank) const {
    return std::accumulate(numbers.begin() + 1, numbers.begin() + 1 + rank, std::int64_t{0});
  }

  /// Takes what `check_operands` throws as `error`, unless there is one.
  template <class Check>
  void check_own(const Check& check_operands) {
    if (!error.empty()) return;
    try {
      check_operands();
    } catch (const ShapeError& wrong) {
      error = wrong.what();
    }
  }

  const char* call = "";
  std::vector<std::int64_t> numbers;  ///< the width, rows sent by rank, rows received by rank
  std::string error;                  ///< what is wrong with the rank's own operands, or empty

 private:
  RowExchange(const char* call_in, int size, std::int64_t width)
      : call(call_in), numbers(1 + 2 * static_cast<std::size_t>(size)) {
    numbers[0] = width;
  }

  /// Takes the rows by rank as the numbers from `first` on. Returns their sum.
  std::int64_t set(int first, const char* name, std::span<const int> rows) {
    check_shape("all_to_all", name,
                VectorView<const int>(rows.data(), {static_cast<std::int64_t>(rows.size())}),
                {size()});
    std::int64_t sum = 0;
    for (const int count : rows) {
      check<ShapeError>(count >= 0, "all_to_all: '", name, "' must be >= 0, got ", count);
      sum += count;
    }
    std::copy(rows.begin(), rows.end(), numbers.begin() + first);
    return sum;
  }
};

/// Throws ShapeError, the same on every rank, unless all `sides`, by rank, fit each other.
inline void check_agreement(std::span<const RowExchange> sides) {
  const auto known = [&](std::size_t rank) { return !sides[rank].numbers.empty(); };
  for (std::size_t rank = 0; rank < sides.size(); ++rank)
    check<ShapeError>(sides[rank].error.empty(), "rank ", rank, ": ", sides[rank].error);
  for (std::size_t from = 0; from < sides.size(); ++from) {
    for (std::size_t to = 0; known(from) && to < sides.size(); ++to) {
      if (!known(to)) continue;
      const std::int64_t sent[] = {sides[from].sent_to(static_cast<int>(to)), sides[from].width()};
      const std::int64_t expected[] = {sides[to].received_from(static_cast<int>(from)),
                                       sides[to].width()};
      check<ShapeError>(std::ranges::equal(sent, expected), sides[to].call, ": rank ", to,
                        " expected ", shape_string(expected, 2), " of rank ", from, ", got ",
                        shape_string(sent, 2));
    }
  }
}

/// Copies rows; nothing when `to` is the same memory.
template <class T>
void copy_rows(MatrixView<const T> from, MatrixView<T> to) {
  if (from.data == to.data) return;
  for (std::int64_t row = 0; row < from.extent(0); ++row)
    std::copy_n(from.at(row), from.extent(1), to.at(row));
}

}  // namespace nanovllm::detail
