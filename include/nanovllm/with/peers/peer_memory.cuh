#pragma once
/// Tensor-parallel ranks on GPUs that reach each other's memory.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/nccl.cuh"
#include "nanovllm/with/peers/buffers.cuh"
#include "nanovllm/with/peers/copied_sums.cuh"
#include "nanovllm/with/peers/exchange.cuh"
#include "nanovllm/with/peers/options.hpp"
#include "nanovllm/with/peers/peer_group.cuh"
#include "nanovllm/with/peers/peer_table.cuh"
#include "nanovllm/with/peers/sum.cuh"
#include "nanovllm/with/peers/sums_in_halves.hpp"

namespace nanovllm {

/// One end of a group of GPUs whose kernels write into each other's memory: over NVLink or PCIe, of
/// ranks in threads, or in processes of one machine. Sums of up to `PeerOptions::max_bytes` go this
/// way, and columns that are gathered; large ones of two ranks are made beside products, if the
/// caller asks for that; other sums, and small ones where it is faster, go through NCCL, as do
/// calls that move rows. Which way is faster is measured in `attach`, and all ranks decide alike.
/// Where two GPUs do not reach each other, or are of different machines, or there are more than
/// eight, or one of them has another such group of this process (`WaitsForPeers`), or
/// `PeerOptions::max_bytes` is 0, NCCL has all calls (`reaches_peers`).
///
/// Calls are enqueued on the backend's stream and can be captured in graphs, as kernels alone. Sums
/// through peers are in rank order in float32, rounded once, which is `kRankOrder`'s; NCCL's may be
/// others where there are more than two ranks, and so `kRankOrder` is not promised.
///
/// A kernel does not wait longer than `PeerOptions::limit`: then it ends the group. Later calls
/// throw, and `throw_if_late` does.
class PeerMemory {
 public:
  static constexpr bool kRankOrder = false;
  static constexpr bool kOnDevice = true;
  using Options = PeerOptions;
  template <class Context>
  using Sums = SumsInHalves<Context>;

  /// The ends of a group of threads. Throws ConfigError unless `num_ranks` ≥ 1. The ends are joined
  /// by `attach`.
  static std::vector<PeerMemory> make(int num_ranks, const PeerOptions& options = {}) {
    validate(options);
    std::vector<Nccl> ends = Nccl::make(num_ranks);
    const auto group = std::make_shared<peer::Group>(num_ranks, num_ranks, options);
    std::vector<PeerMemory> out;
    for (Nccl& end : ends) out.push_back(PeerMemory(group, std::move(end)));
    return out;
  }

  /// This process's end of a group with one rank a process. All of them call this.
  /// @tparam Processes  ProcessGroup, or what has its `rank`, `size` and `share`.
  template <class Processes>
  static PeerMemory join(const std::shared_ptr<Processes>& processes,
                         const PeerOptions& options = {}) {
    validate(options);
    return {std::make_shared<peer::Group>(processes->size(), 1, options), Nccl::join(processes)};
  }

  /// Joins the group with the device of `backend`, which must be current, and its stream. All ranks
  /// call this at the same time.
  template <class Backend>
  void attach(const Backend& backend) {
    context_ = backend.context();
    nccl_.attach(backend);
    if (size() == 1 || group_->options().max_bytes == 0) return;
    link_ = std::make_unique<peer::Link>(group_, nccl_, context_);
    if (!reaches_peers()) return;
    table_ = group_->options().measures
                 ? peer::measure(nccl_, *group_, link_->view(), context_)
                 : peer::PeerTable::by_rule(size(), group_->options().max_bytes);
  }

  /// See Nccl.
  [[nodiscard]] std::unique_lock<std::recursive_timed_mutex> hold() const { return nccl_.hold(); }

  [[nodiscard]] int rank() const { return nccl_.rank(); }
  [[nodiscard]] int size() const { return nccl_.size(); }
  /// Whether the ranks reach each other's memory, once they are joined.
  [[nodiscard]] bool reaches_peers() const { return link_ != nullptr && link_->reaches_peers(); }
  /// The way of a sum of so many bytes.
  [[nodiscard]] peer::Way way_of(std::int64_t bytes) const {
    return reaches_peers() ? table_.at(bytes) : peer::Way::nccl;
  }

  /// See CommunicatorLike. Of sums that do not fit into the memory of peers, rows must follow each
  /// other without gaps, or fit in it one by one. Throws CudaError when the group has ended.
  template <class T>
  void all_reduce(MatrixView<T> x) {
    if (size() == 1 || x.empty()) return;
    group_->check_alive(rank());
    if constexpr (Element<T>) {
      const peer::Way way = way_of(16 * peer::num_vectors(x));
      const bool is_dense = x.strides[0] == x.extent(1) || x.extent(0) == 1;
      if (way != peer::Way::nccl) return peer::all_reduce(link_->view(), launch(way), x, context_);
      if (!is_dense && reaches_peers() && rows_of_a_call<T>(x.extent(1)) > 0) {
        return in_parts<T>(x.extent(0), x.extent(1), [&](std::int64_t begin, std::int64_t end) {
          peer::all_reduce(link_->view(), launch(peer::Way::one_shot), x.slice(begin, end),
                           context_);
        });
      }
    }
    nccl_.all_reduce(x);
  }

  /// x becomes the sum over all ranks; and then, if this returns true, residual += x, rounded, and
  /// out = RMSNorm of the residual times `weight`, as the op `add_rms_norm` does, with its bits. If
  /// it returns false the norm is left to the caller. If it returns true, what x holds is not
  /// specified, unless it is `out`. Operands of all ranks are aligned alike.
  template <Element T>
  [[nodiscard]] bool all_reduce_add_norm(MatrixView<T> x, MatrixView<T> residual,
                                         VectorView<const T> weight, float eps, MatrixView<T> out) {
    if (size() == 1) return false;
    const peer::Way way = way_of(16 * peer::num_vectors(x));
    if (way == peer::Way::nccl || !peer::fits_norm(x, residual, weight, out)) {
      all_reduce(x);
      return false;
    }
    group_->check_alive(rank());
    peer::all_reduce_add_norm(link_->view(), launch(way), x, residual, weight, eps, out, context_);
    return true;
  }

  // Sums beside other ops, see OverlapsSums and copied_sums.cuh. Not to be captured.

  /// Whether sums of such rows are to be made in parts: if there are two ranks, from
  /// `PeerOptions::min_overlapped_bytes` on, and not in graphs.
  template <Element T>
  [[nodiscard]] bool overlaps_sum(const MatrixView<T>& x) const {
    if (size() != 2 || !reaches_peers() || x.strides[0] != x.extent(1) ||
        x.size() * std::int64_t{sizeof(T)} < group_->options().min_overlapped_bytes ||
        !peer::fits_norm(x, x, VectorView<const T>(x.data, {x.extent(1)}), x))
      return false;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda::check_cuda(cudaStreamIsCapturing(context_.stream, &status), "cudaStreamIsCapturing");
    return status == cudaStreamCaptureStatusNone;
  }
  /// The first call takes memory for sums of `max_rows` such rows. Throws CudaError when the group
  /// has ended, or a rank has not that memory, and ShapeError for a larger sum.
  template <Element T>
  void begin_sum(MatrixView<T> x, std::int64_t max_rows) {
    group_->check_alive(rank());
    if (sums_ == nullptr) {
      const auto bytes = static_cast<std::size_t>(max_rows * x.extent(1)) * sizeof(T);
      sums_ = std::make_unique<peer::CopiedSums>(group_, nccl_, context_, bytes);
    }
    sums_->begin(MatrixView<const T>(x));
  }
  template <Element T>
  void finish_sum_add_norm(MatrixView<T> x, MatrixView<T> residual, VectorView<const T> weight,
                           float eps, MatrixView<T> out) {
    group_->check_alive(rank());
    check<ShapeError>(sums_ != nullptr, "finish_sum_add_norm: a sum must have begun");
    sums_->finish_add_norm(link_->view(), x, residual, weight, eps, out);
  }

  /// See CommunicatorLike. Throws CudaError when the group has ended.
  template <class T>
  void all_gather_columns(MatrixView<const T> part, MatrixView<T> whole) {
    const std::int64_t rows = part.extent(0), width = part.extent(1);
    check_shape("all_gather_columns", "whole", whole, {rows, size() * width});
    group_->check_alive(rank());
    if constexpr (Element<T>) {
      if (reaches_peers() && rows_of_a_call<T>(width) > 0) {
        return in_parts<T>(rows, width, [&](std::int64_t begin, std::int64_t end) {
          peer::all_gather_columns(link_->view(), part.slice(begin, end), whole.slice(begin, end),
                                   context_);
        });
      }
    }
    nccl_.all_gather_columns(part, whole);
  }

  // See CollectivesLike and Nccl, which has these calls.

  template <class T>
  void all_gather(MatrixView<const T> part, MatrixView<T> whole) {
    nccl_.all_gather(part, whole);
  }
  template <class T>
  void reduce_scatter(MatrixView<const T> whole, MatrixView<T> part) {
    nccl_.reduce_scatter(whole, part);
  }
  template <class T>
  void all_to_all(MatrixView<const T> from, std::span<const int> send_rows, MatrixView<T> to,
                  std::span<const int> receive_rows) {
    nccl_.all_to_all(from, send_rows, to, receive_rows);
  }

  /// Ends the pending and later calls of all ranks of this process, graphs included, as Nccl's. A
  /// kernel that waits sees it within a few milliseconds.
  void abort() {
    group_->abort();
    nccl_.abort();
  }

  /// Throws CudaError if a rank was late beyond the limit. What was computed since is garbage.
  void throw_if_late() const { group_->throw_if_late(rank()); }

 private:
  PeerMemory(std::shared_ptr<peer::Group> group, Nccl nccl)
      : group_(std::move(group)), nccl_(std::move(nccl)) {}

  static void validate(const PeerOptions& options) {
    constexpr std::int64_t kLeast = peer::PeerTable::bytes(0);
    constexpr std::int64_t kMost = peer::PeerTable::bytes(peer::PeerTable::kNumSizes - 1);
    const std::int64_t bytes = options.max_bytes;
    const bool is_size = bytes >= kLeast && bytes <= kMost && (bytes & (bytes - 1)) == 0;
    check<ConfigError>(bytes == 0 || is_size,
                       "PeerOptions::max_bytes must be 0 or a power of two from ", kLeast, " to ",
                       kMost, ", got ", bytes);
    check<ConfigError>(options.limit > 0 && options.limit < 1e9,
                       "PeerOptions::limit must be above 0 and below 1e9 seconds, got ",
                       options.limit);
    check<ConfigError>(options.min_overlapped_bytes >= 1,
                       "PeerOptions::min_overlapped_bytes must be >= 1, got ",
                       options.min_overlapped_bytes);
  }

  [[nodiscard]] static peer::Launch launch(peer::Way way) {
    return {.shots = way == peer::Way::two_shot ? peer::Shots::two : peer::Shots::one};
  }

  /// Rows of `width` elements that fit in a slot.
  template <Element T>
  [[nodiscard]] std::int64_t rows_of_a_call(std::int64_t width) const {
    return width == 0 ? 0 : link_->max_vectors() / ceil_div(width, std::int64_t{cuda::kVecSize<T>});
  }

  /// Calls body(begin, end) for parts of the rows that fit in a slot.
  template <Element T, class Body>
  void in_parts(std::int64_t rows, std::int64_t width, const Body& body) const {
    const std::int64_t most = rows_of_a_call<T>(width);
    for (std::int64_t begin = 0; begin < rows; begin += most)
      body(begin, std::min(rows, begin + most));
  }

  std::shared_ptr<peer::Group> group_;
  Nccl nccl_;
  cuda::Context context_;
  peer::PeerTable table_;
  std::unique_ptr<peer::Link> link_;
  std::unique_ptr<peer::CopiedSums> sums_;  // once there is one
};

static_assert(CollectivesLike<PeerMemory>);

}  // namespace nanovllm
