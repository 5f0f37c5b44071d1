#pragma once
/// Ranks on CPUs: threads of this process, or one rank each of several processes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/row_exchange.hpp"
#include "nanovllm/parallel/thread_group.hpp"
#include "nanovllm/with/mpi/process_group.hpp"

namespace nanovllm {

namespace detail {

/// One process's end of a group that communicates through MPI. MPI_Allreduce may add in any order,
/// so the parts are gathered, and every rank adds them in the order of the ranks.
class MpiEnd {
 public:
  explicit MpiEnd(std::shared_ptr<ProcessGroup> processes) : processes_(std::move(processes)) {}

  [[nodiscard]] int rank() const { return processes_->rank(); }
  [[nodiscard]] int size() const { return processes_->size(); }

  /// See CommunicatorLike.
  template <class T>
  void all_reduce(MatrixView<T> x) {
    if (size() == 1) return;
    std::vector<T> values = dense<T>(x);
    std::vector<T> parts(std::min(values.size(), kPiece) * static_cast<std::size_t>(size()));
    for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
      const std::span<T> piece =
          std::span(values).subspan(begin, std::min(kPiece, values.size() - begin));
      gather<T>(piece, parts);
      for (std::size_t i = 0; i < piece.size(); ++i) {
        float sum = 0.f;  // a sum of -0 is +0, as in ThreadGroup
        for (std::size_t r = 0; r < static_cast<std::size_t>(size()); ++r)
          sum += static_cast<float>(parts[r * piece.size() + i]);
        piece[i] = static_cast<T>(sum);
      }
    }
    copy_rows(MatrixView<const T>(values.data(), x.extents), x);
  }

  /// See CommunicatorLike.
  template <class T>
  void all_gather_columns(MatrixView<const T> part, MatrixView<T> whole) {
    const std::int64_t rows = part.extent(0), width = part.extent(1);
    check_shape("all_gather_columns", "whole", whole, {rows, size() * width});
    std::vector<T> all(static_cast<std::size_t>(whole.size()));
    gather<T>(dense<T>(part), all);
    const T* from = all.data();
    for (int rank = 0; rank < size(); ++rank) {
      for (std::int64_t row = 0; row < rows; ++row, from += width)
        std::copy_n(from, width, whole.at(row, rank * width));
    }
  }

  // See CollectivesLike. They throw ShapeError.

  template <class T>
  void all_gather(MatrixView<const T> part, MatrixView<T> whole) {
    agree(RowExchange::even("all_gather", size(), part, whole));
    std::vector<T> all(static_cast<std::size_t>(whole.size()));
    gather<T>(dense<T>(part), all);
    copy_rows(MatrixView<const T>(all.data(), whole.extents), whole);
  }

  template <class T>
  void reduce_scatter(MatrixView<const T> whole, MatrixView<T> part) {
    agree(RowExchange::even("reduce_scatter", size(), part, whole));
    std::vector<T> sums = dense<T>(whole);
    const MatrixView<T> summed(sums.data(), whole.extents);
    all_reduce(summed);
    const std::int64_t rows = part.extent(0);
    copy_rows(MatrixView<const T>(summed.slice(rank() * rows, (rank() + 1) * rows)), part);
  }

  template <class T>
  void all_to_all(MatrixView<const T> from, std::span<const int> send_rows, MatrixView<T> to,
                  std::span<const int> receive_rows) {
    agree(RowExchange::uneven(size(), from, send_rows, to, receive_rows));
    const std::vector<T> sent = dense<T>(from);
    std::vector<T> received(static_cast<std::size_t>(to.size()));
    std::vector<int> send_begins(send_rows.size()), receive_begins(receive_rows.size());
    std::exclusive_scan(send_rows.begin(), send_rows.end(), send_begins.begin(), 0);
    std::exclusive_scan(receive_rows.begin(), receive_rows.end(), receive_begins.begin(), 0);
    MPI_Datatype row = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(static_cast<int>(from.extent(1) * std::int64_t{sizeof(T)}), MPI_BYTE, &row);
    MPI_Type_commit(&row);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ialltoallv(sent.data(), send_rows.data(), send_begins.data(), row, received.data(),
                   receive_rows.data(), receive_begins.data(), row, processes_->comm(), &request);
    processes_->wait(request);
    MPI_Type_free(&row);
    copy_rows(MatrixView<const T>(received.data(), to.extents), to);
  }

  void abort() { processes_->fail("its part of a step was given up"); }

 private:
  static constexpr std::size_t kPiece = 1 << 16;  ///< elements of a rank that are summed at a time

  template <class T>
  [[nodiscard]] static std::vector<T> dense(MatrixView<const T> x) {
    std::vector<T> out(static_cast<std::size_t>(x.size()));
    copy_rows(x, MatrixView<T>(out.data(), x.extents));
    return out;
  }

  /// `all` becomes the parts of all ranks, of one length, by rank.
  template <class T>
  void gather(std::span<const T> part, std::span<T> all) {
    processes_->gather(std::as_bytes(part), std::as_writable_bytes(all));
  }

  /// Throws ShapeError on all ranks unless their sides fit.
  void agree(const RowExchange& mine) {
    std::vector<std::byte> bytes(mine.numbers.size() * sizeof(std::int64_t) + mine.error.size());
    const std::size_t begin = bytes.size() - mine.error.size();
    std::memcpy(bytes.data(), mine.numbers.data(), begin);
    std::memcpy(bytes.data() + begin, mine.error.data(), mine.error.size());
    std::vector<RowExchange> sides;
    for (const std::vector<std::byte>& of_rank : processes_->gather(bytes)) {
      RowExchange& side = sides.emplace_back(mine);
      std::memcpy(side.numbers.data(), of_rank.data(), begin);
      side.error.assign(reinterpret_cast<const char*>(of_rank.data()) + begin,
                        of_rank.size() - begin);
    }
    check_agreement(sides);
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

  /// This process's end of a group with one rank a process. Its `abort` ends all of them.
  static HostGroup join(std::shared_ptr<ProcessGroup> processes) {
    return HostGroup(detail::MpiEnd(std::move(processes)));
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

  std::variant<ThreadGroup, detail::MpiEnd> end_;
};

static_assert(CollectivesLike<HostGroup> && kRankOrder<HostGroup>);

}  // namespace nanovllm
