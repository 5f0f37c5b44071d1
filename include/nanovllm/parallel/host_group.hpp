#pragma once
/// Ranks on CPUs: threads of this process, or one rank each of several processes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/process_group.hpp"
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

  void abort() { processes_->fail("cannot go on"); }

 private:
  static constexpr auto kTag = ProcessGroup::Tag::reduce;

  template <class T>
  static void copy_rows(MatrixView<const T> from, MatrixView<T> to) {
    for (std::int64_t row = 0; row < from.extent(0); ++row)
      std::copy_n(from.at(row), from.extent(1), to.at(row));
  }

  template <class T>
  void receive(int from, std::span<T> out) {
    processes_->receive(from, kTag, std::as_writable_bytes(out));
  }

  /// Everybody's part goes to rank 0, which has them by now and sends the whole back.
  template <class T>
  void exchange(std::span<T> part, std::span<T> whole) {
    if (rank() == 0) return processes_->broadcast(kTag, std::as_bytes(whole));
    processes_->send(0, kTag, std::as_bytes(part));
    receive(0, whole);
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
  void abort() {
    std::visit([](auto& end) { end.abort(); }, end_);
  }

 private:
  template <class End>
  explicit HostGroup(End end) : end_(std::move(end)) {}

  std::variant<ThreadGroup, detail::TcpGroup> end_;
};

static_assert(CommunicatorLike<HostGroup> && kRankOrder<HostGroup>);

}  // namespace nanovllm
