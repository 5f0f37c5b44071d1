#pragma once
/// Ranks that are threads of this process and share its memory.

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/row_exchange.hpp"

namespace nanovllm {

namespace detail {

/// A reusable barrier around what the ranks do together. After `abort()` no rank enters, and every
/// rank that waits to enter throws. Ranks that have entered leave together, so that none frees
/// memory that another one reads.
class AbortableBarrier {
 public:
  explicit AbortableBarrier(int num_ranks) : num_ranks_(num_ranks) {}

  /// Waits until all ranks are here. Either all enter or none does.
  void enter() {
    std::unique_lock lock(mutex_);
    throw_if_aborted();
    const std::uint64_t mine = arrive();
    changed_.wait(lock, [&] { return generation_ != mine || aborted_; });
    if (generation_ == mine) throw_if_aborted();
  }

  /// Waits until all ranks that have entered are here.
  void leave() {
    std::unique_lock lock(mutex_);
    const std::uint64_t mine = arrive();
    changed_.wait(lock, [&] { return generation_ != mine; });
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  /// Returns the generation that ends when all have arrived.
  std::uint64_t arrive() {
    const std::uint64_t mine = generation_;
    if (++num_arrived_ == num_ranks_) {
      num_arrived_ = 0;
      ++generation_;
      changed_.notify_all();
    }
    return mine;
  }

  void throw_if_aborted() const {
    check<Error>(!aborted_, "thread group: another rank failed and left the group");
  }

  const int num_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_arrived_ = 0;
  std::uint64_t generation_ = 0;
  bool aborted_ = false;
};

}  // namespace detail

/// One end of a group of threads. Each reduction is split over the ranks: rank r sums the r-th
/// share of everybody's rows and writes the result to all, so that every rank reads the same bits.
class ThreadGroup {
 public:
  static constexpr bool kRankOrder = true;

  /// Throws ConfigError unless `num_ranks` ≥ 1.
  static std::vector<ThreadGroup> make(int num_ranks) {
    check<ConfigError>(num_ranks >= 1, "tensor_parallel must be >= 1, got ", num_ranks);
    auto shared = std::make_shared<Shared>(num_ranks);
    std::vector<ThreadGroup> ranks;
    for (int rank = 0; rank < num_ranks; ++rank) ranks.push_back(ThreadGroup(shared, rank));
    return ranks;
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(shared_->parts.size()); }

  /// See CommunicatorLike. Throws Error when the group was aborted.
  template <class T>
  void all_reduce(MatrixView<T> x) {
    if (size() == 1) return;
    meet({x.data, x.strides[0]}, [&] {
      // Shares are cut over all elements, so that a single row is split too.
      const std::int64_t width = x.extent(1);
      const std::int64_t total = x.extent(0) * width;
      for (std::int64_t i = total * rank_ / size(); i < total * (rank_ + 1) / size(); ++i) {
        const std::int64_t row = i / width, column = i % width;
        const T sum = sum_at<T>(row, column);
        for (const Part& part : shared_->parts) *part.template at<T>(row, column) = sum;
      }
    });
  }

  /// See CommunicatorLike. Throws Error when the group was aborted.
  template <class T>
  void all_gather_columns(MatrixView<const T> part, MatrixView<T> whole) {
    const std::int64_t width = part.extent(1);
    check_shape("all_gather_columns", "whole", whole, {part.extent(0), size() * width});
    meet({const_cast<T*>(part.data), part.strides[0]}, [&] {
      for (int rank = 0; rank < size(); ++rank) {
        for (std::int64_t row = 0; row < part.extent(0); ++row)
          std::copy_n(part_of(rank).template at<T>(row, 0), width, whole.at(row, rank * width));
      }
    });
  }

  // See CollectivesLike. They throw ShapeError, and Error when the group was aborted.

  template <class T>
  void all_gather(MatrixView<const T> part, MatrixView<T> whole) {
    const std::int64_t rows = part.extent(0);
    meet(detail::RowExchange::even("all_gather", size(), part, whole), part, [&] {
      for (int rank = 0; rank < size(); ++rank) {
        detail::copy_rows(part_of(rank).template rows<T>(0, rows, part.extent(1)),
                          whole.slice(rank * rows, (rank + 1) * rows));
      }
    });
  }

  template <class T>
  void reduce_scatter(MatrixView<const T> whole, MatrixView<T> part) {
    meet(detail::RowExchange::even("reduce_scatter", size(), part, whole), whole, [&] {
      if (size() == 1) return detail::copy_rows(whole, part);
      const std::int64_t begin = rank_ * part.extent(0);
      for (std::int64_t row = 0; row < part.extent(0); ++row) {
        for (std::int64_t column = 0; column < part.extent(1); ++column)
          *part.at(row, column) = sum_at<T>(begin + row, column);
      }
    });
  }

  template <class T>
  void all_to_all(MatrixView<const T> from, std::span<const int> send_rows, MatrixView<T> to,
                  std::span<const int> receive_rows) {
    meet(detail::RowExchange::uneven(size(), from, send_rows, to, receive_rows), from, [&] {
      std::int64_t row = 0;
      for (int rank = 0; rank < size(); ++rank) {
        const detail::RowExchange& side = shared_->sides[static_cast<std::size_t>(rank)];
        const std::int64_t count = side.sent_to(rank_);
        detail::copy_rows(
            part_of(rank).template rows<T>(side.sent_before(rank_), count, to.extent(1)),
            to.slice(row, row + count));
        row += count;
      }
    });
  }

  void abort() { shared_->barrier.abort(); }

 private:
  /// A rank's operand.
  struct Part {
    void* data = nullptr;
    std::int64_t row_stride = 0;

    template <class T>
    [[nodiscard]] T* at(std::int64_t row, std::int64_t column) const {
      return static_cast<T*>(data) + row * row_stride + column;
    }
    template <class T>
    [[nodiscard]] MatrixView<const T> rows(std::int64_t begin, std::int64_t count,
                                           std::int64_t width) const {
      return {at<T>(begin, 0), {count, width}, {row_stride, 1}};
    }
  };
  struct Shared {
    explicit Shared(int num_ranks)
        : barrier(num_ranks), parts(static_cast<std::size_t>(num_ranks)), sides(parts.size()) {}
    detail::AbortableBarrier barrier;
    // Of the call in progress; written before the barrier, read inside it.
    std::vector<Part> parts;
    std::vector<detail::RowExchange> sides;
  };

  ThreadGroup(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}

  [[nodiscard]] Part& part_of(int rank) const {
    return shared_->parts[static_cast<std::size_t>(rank)];
  }

  /// Runs `body` on every rank when the parts of all are known; returns, or throws what it throws,
  /// when all are done with them.
  template <class Body>
  void meet(const Part& mine, const Body& body) {
    part_of(rank_) = mine;
    shared_->barrier.enter();
    struct Leave {
      ~Leave() { barrier.leave(); }
      detail::AbortableBarrier& barrier;
    };
    const Leave leave{shared_->barrier};
    body();
  }

  /// The same if the sides of all ranks fit each other; throws ShapeError if not.
  template <class T, class Body>
  void meet(detail::RowExchange side, MatrixView<const T> mine, const Body& body) {
    shared_->sides[static_cast<std::size_t>(rank_)] = std::move(side);
    meet({const_cast<T*>(mine.data), mine.strides[0]}, [&] {
      detail::check_agreement(shared_->sides);
      body();
    });
  }

  /// The sum of an element of all parts in rank order, rounded once.
  template <class T>
  [[nodiscard]] T sum_at(std::int64_t row, std::int64_t column) const {
    float sum = 0.f;
    for (const Part& part : shared_->parts)
      sum += static_cast<float>(*part.template at<T>(row, column));
    return static_cast<T>(sum);
  }

  std::shared_ptr<Shared> shared_;
  int rank_ = 0;
};

static_assert(CollectivesLike<ThreadGroup> && kRankOrder<ThreadGroup>);

}  // namespace nanovllm
