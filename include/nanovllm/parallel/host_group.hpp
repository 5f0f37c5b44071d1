#pragma once
/// Ranks on CPUs: threads of this process, or one rank each of several processes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/process_group.hpp"
#include "nanovllm/parallel/row_exchange.hpp"
#include "nanovllm/parallel/thread_group.hpp"

namespace nanovllm {

namespace detail {

/// One process's end of a group that talks through TCP connections to rank 0, which adds up and
/// puts together for all. Made for correctness: the time of a step grows with the ranks.
class TcpGroup {
 public:
  explicit TcpGroup(std::shared_ptr<ProcessGroup> processes) : processes_(std::move(processes)) {}

  [[nodiscard]] int rank() const { return processes_->rank(); }
  [[nodiscard]] int size() const { return processes_->size(); }

  /// See CommunicatorLike. Throws Error when the group has failed.
  template <class T>
  void all_reduce(MatrixView<T> x) {
    if (size() == 1) return;
    const auto count = static_cast<std::size_t>(x.size());
    std::vector<T> values(count);
    copy_rows(MatrixView<const T>(x), MatrixView<T>(values.data(), x.extents));
    if (rank() == 0) {
      std::vector<float> sums(count);  // zeros: a sum of -0 is +0, as in ThreadGroup
      for (int from = 0; from < size(); ++from) {
        if (from > 0) receive(from, std::span(values));
        for (std::size_t i = 0; i < count; ++i) sums[i] += static_cast<float>(values[i]);
      }
      std::transform(sums.begin(), sums.end(), values.begin(),
                     [](float sum) { return static_cast<T>(sum); });
    }
    exchange(std::span(values), std::span(values));
    copy_rows(MatrixView<const T>(values.data(), x.extents), x);
  }

  /// See CommunicatorLike. Throws Error when the group has failed.
  template <class T>
  void all_gather_columns(MatrixView<const T> part, MatrixView<T> whole) {
    const std::int64_t rows = part.extent(0), width = part.extent(1);
    check_shape("all_gather_columns", "whole", whole, {rows, size() * width});
    std::vector<T> mine(static_cast<std::size_t>(part.size()));
    std::vector<T> all(static_cast<std::size_t>(whole.size()));
    const MatrixView<T> out(all.data(), whole.extents);
    const auto place = [&](int from) {
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(mine.data() + row * width, width, out.at(row, from * width));
    };
    copy_rows(part, MatrixView<T>(mine.data(), part.extents));
    place(rank());
    for (int from = 1; rank() == 0 && from < size(); ++from) {
      receive(from, std::span(mine));
      place(from);
    }
    exchange(std::span(mine), std::span(all));
    copy_rows(MatrixView<const T>(out), whole);
  }

  // See CollectivesLike. They throw ShapeError, and Error when the group has failed.

  template <class T>
  void all_gather(MatrixView<const T> part, MatrixView<T> whole) {
    const auto side = RowExchange::even("all_gather", size(), part, whole);
    std::vector<T> copies;
    for (int rank = 0; rank < size(); ++rank) append_rows(part, copies);
    exchange_rows(side, std::move(copies), whole);
  }

  template <class T>
  void reduce_scatter(MatrixView<const T> whole, MatrixView<T> part) {
    static_cast<void>(agree(RowExchange::even("reduce_scatter", size(), part, whole)));
    std::vector<T> sums;
    append_rows(whole, sums);
    const MatrixView<T> summed(sums.data(), whole.extents);
    all_reduce(summed);
    const std::int64_t rows = part.extent(0);
    copy_rows(MatrixView<const T>(summed.slice(rank() * rows, (rank() + 1) * rows)), part);
  }

  template <class T>
  void all_to_all(MatrixView<const T> from, std::span<const int> send_rows, MatrixView<T> to,
                  std::span<const int> receive_rows) {
    std::vector<T> rows;
    append_rows(from, rows);
    exchange_rows(RowExchange::uneven(size(), from, send_rows, to, receive_rows), std::move(rows),
                  to);
  }

  void abort() { processes_->fail("cannot go on"); }

 private:
  static constexpr auto kTag = ProcessGroup::Tag::reduce;

  template <class T>
  static void append_rows(MatrixView<const T> from, std::vector<T>& to) {
    for (std::int64_t row = 0; row < from.extent(0); ++row)
      to.insert(to.end(), from.at(row), from.at(row) + from.extent(1));
  }

  template <class T>
  void send(int to, std::span<const T> values) {
    processes_->send(to, kTag, std::as_bytes(values));
  }

  template <class T>
  void receive(int from, std::span<T> out) {
    processes_->receive(from, kTag, std::as_writable_bytes(out));
  }

  /// Everybody's part goes to rank 0, which has them by now and sends the whole back.
  template <class T>
  void exchange(std::span<T> part, std::span<T> whole) {
    if (rank() == 0) return processes_->broadcast(kTag, std::as_bytes(whole));
    send(0, std::span<const T>(part));
    receive(0, whole);
  }

  void send_text(int to, const std::string& text) {
    const std::uint64_t length = text.size();
    send(to, std::span(&length, 1));
    send(to, std::span(text));
  }

  [[nodiscard]] std::string receive_text(int from) {
    std::uint64_t length = 0;
    receive(from, std::span(&length, 1));
    std::string text(length, '\0');
    receive(from, std::span(text));
    return text;
  }

  /// Throws ShapeError on all ranks unless their sides fit. Returns all sides on rank 0.
  [[nodiscard]] std::vector<RowExchange> agree(const RowExchange& mine) {
    std::vector<RowExchange> sides;
    std::string error;
    if (rank() == 0) {
      sides.assign(static_cast<std::size_t>(size()), mine);
      for (int from = 1; from < size(); ++from) {
        RowExchange& side = sides[static_cast<std::size_t>(from)];
        receive(from, std::span(side.numbers));
        side.error = receive_text(from);
      }
      try {
        check_agreement(sides);
      } catch (const ShapeError& wrong) {
        error = wrong.what();
      }
      for (int to = 1; to < size(); ++to) send_text(to, error);
    } else {
      send(0, std::span(mine.numbers));
      send_text(0, mine.error);
      error = receive_text(0);
    }
    check<ShapeError>(error.empty(), error);
    return sides;
  }

  /// Sends `rows`, those for rank 0 first, and receives `to`, by way of rank 0.
  template <class T>
  void exchange_rows(const RowExchange& mine, std::vector<T> rows, MatrixView<T> to) {
    const std::vector<RowExchange> sides = agree(mine);
    std::vector<T> arrived(static_cast<std::size_t>(to.size()));
    if (rank() > 0) {
      send(0, std::span<const T>(rows));
      receive(0, std::span(arrived));
    } else {
      std::vector<std::vector<T>> sent{std::move(rows)};
      for (int from = 1; from < size(); ++from) {
        const RowExchange& side = sides[static_cast<std::size_t>(from)];
        sent.emplace_back(static_cast<std::size_t>(side.sent_before(size()) * side.width()));
        receive(from, std::span(sent.back()));
      }
      for (int other = size() - 1; other >= 0; --other) {  // rank 0's own are the last
        arrived.clear();
        for (std::size_t from = 0; from < sent.size(); ++from) {
          const RowExchange& side = sides[from];
          const auto begin = sent[from].begin() + side.sent_before(other) * side.width();
          arrived.insert(arrived.end(), begin, begin + side.sent_to(other) * side.width());
        }
        if (other > 0) send(other, std::span<const T>(arrived));
      }
    }
    copy_rows(MatrixView<const T>(arrived.data(), to.extents), to);
  }

  std::shared_ptr<ProcessGroup> processes_;
};

}  // namespace detail

/// One end of a group of CPU ranks. The sums have the same bits either way.
class HostGroup {
 public:
  static constexpr bool kRankOrder = true;

  /// The ends of a group of threads. Throws ConfigError unless `num_ranks` ≥ 1.
  static std::vector<HostGroup> make(int num_ranks) {
    std::vector<HostGroup> out;
    for (ThreadGroup& end : ThreadGroup::make(num_ranks)) out.push_back(HostGroup(std::move(end)));
    return out;
  }

  /// This process's end of a group with one rank a process.
  static HostGroup join(std::shared_ptr<ProcessGroup> processes) {
    return HostGroup(detail::TcpGroup(std::move(processes)));
  }

  [[nodiscard]] int rank() const {
    return std::visit([](const auto& end) { return end.rank(); }, end_);
  }
  [[nodiscard]] int size() const {
    return std::visit([](const auto& end) { return end.size(); }, end_);
  }
  template <class T>
  void all_reduce(MatrixView<T> x) {
    std::visit([&](auto& end) { end.all_reduce(x); }, end_);
  }
  template <class T>
  void all_gather_columns(MatrixView<const T> part, MatrixView<T> whole) {
    std::visit([&](auto& end) { end.all_gather_columns(part, whole); }, end_);
  }
  template <class T>
  void all_gather(MatrixView<const T> part, MatrixView<T> whole) {
    std::visit([&](auto& end) { end.all_gather(part, whole); }, end_);
  }
  template <class T>
  void reduce_scatter(MatrixView<const T> whole, MatrixView<T> part) {
    std::visit([&](auto& end) { end.reduce_scatter(whole, part); }, end_);
  }
  template <class T>
  void all_to_all(MatrixView<const T> from, std::span<const int> send_rows, MatrixView<T> to,
                  std::span<const int> receive_rows) {
    std::visit([&](auto& end) { end.all_to_all(from, send_rows, to, receive_rows); }, end_);
  }
  void abort() {
    std::visit([](auto& end) { end.abort(); }, end_);
  }

 private:
  template <class End>
  explicit HostGroup(End end) : end_(std::move(end)) {}

  std::variant<ThreadGroup, detail::TcpGroup> end_;
};

static_assert(CollectivesLike<HostGroup> && kRankOrder<HostGroup>);

}  // namespace nanovllm
