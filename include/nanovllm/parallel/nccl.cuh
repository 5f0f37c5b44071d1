#pragma once
/// Tensor-parallel ranks on several GPUs through NCCL: threads of one process, or one rank each of
/// several processes.
/// Measured: not by itself; 429 us for logits of 256 rows, gathered by NCCL and put side by side
/// (peer_sum_bench, cuda_tp2_h200.json).

#include <cuda_runtime.h>
#include <nccl.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/nccl_group.cuh"
#include "nanovllm/parallel/row_exchange.hpp"

namespace nanovllm {

namespace detail {

template <class T>
[[nodiscard]] constexpr ncclDataType_t nccl_type() {
  if constexpr (std::same_as<T, float>) {
    return ncclFloat32;
  } else if constexpr (std::same_as<T, half>) {
    return ncclFloat16;
  } else if constexpr (std::same_as<T, bf16>) {
    return ncclBfloat16;
  } else {
    static_assert(std::integral<T> && (sizeof(T) == 1 || sizeof(T) == 4 || sizeof(T) == 8));
    if (sizeof(T) == 1) return std::signed_integral<T> ? ncclInt8 : ncclUint8;
    if (sizeof(T) == 4) return std::signed_integral<T> ? ncclInt32 : ncclUint32;
    return std::signed_integral<T> ? ncclInt64 : ncclUint64;
  }
}

/// whole[row, rank · width + column] = parts[rank][row][column].
template <class T>
__global__ void __launch_bounds__(256)
    side_by_side_kernel(const T* parts, std::int64_t num_rows, std::int64_t width,
                        MatrixView<T> whole) {
  cuda::grid_dependency_wait();
  const std::int64_t row = blockIdx.y, rank = blockIdx.z;
  const T* from = parts + (rank * num_rows + row) * width;
  T* to = whole.data + row * whole.strides[0] + rank * width;
  for (std::int64_t i = blockIdx.x * 256 + threadIdx.x; i < width; i += gridDim.x * 256)
    to[i] = from[i];
}

}  // namespace detail

/// One end of a group of GPUs. Calls are enqueued on the backend's stream and can be captured in
/// graphs. Sums are NCCL's: of two ranks rounded once; of more, partial sums may be rounded on
/// their way, in an order that depends on the size. All ranks get the same bits.
///
/// Calls that move rows do not wait for other ranks to compare sizes; the first all_to_all waits
/// until the ranks are connected. The rank whose call is found not to fit aborts the group and
/// throws, and the other ranks of its process throw the same ShapeError, from the call that waits
/// or from their next call. Between processes nothing is compared, and a rank that throws
/// ends the job, as with any error.
class Nccl {
 public:
  static constexpr bool kRankOrder = false;
  static constexpr bool kOnDevice = true;

  /// The ends of a group of threads. Throws ConfigError unless `num_ranks` ≥ 1. The ends are joined
  /// by `attach`.
  static std::vector<Nccl> make(int num_ranks) {
    check<ConfigError>(num_ranks >= 1, "tensor_parallel must be >= 1, got ", num_ranks);
    auto group = std::make_shared<detail::NcclGroup>(num_ranks, 0, num_ranks);
    if (num_ranks > 1) {
      detail::prefer_cuda_malloc();
      detail::check_nccl(ncclGetUniqueId(&group->id), "ncclGetUniqueId");
    }
    std::vector<Nccl> out;
    for (int rank = 0; rank < num_ranks; ++rank) out.push_back(Nccl(group, rank));
    return out;
  }

  /// This process's end of a group with one rank a process. All of them call this.
  /// @tparam Processes  ProcessGroup, or what has its `rank`, `size` and `share`.
  template <class Processes>
  static Nccl join(const std::shared_ptr<Processes>& processes) {
    auto group = std::make_shared<detail::NcclGroup>(processes->size(), processes->rank(), 1);
    if (processes->rank() == 0 && processes->size() > 1)
      detail::check_nccl(ncclGetUniqueId(&group->id), "ncclGetUniqueId");
    processes->share(std::as_writable_bytes(std::span(&group->id, 1)));
    return Nccl(std::move(group), processes->rank());
  }

  Nccl(Nccl&&) = default;
  /// Both ends must be of groups that were aborted, or new.
  Nccl& operator=(Nccl&&) = default;
  /// Graphs that hold calls of this end must be gone.
  ~Nccl() {
    if (group_ == nullptr) return;
    const std::lock_guard lock(group_->mutex);
    if (group_->aborted) return;  // the group's thread has it
    if (ncclComm_t& comm = end().comm; comm != nullptr) {
      ncclCommDestroy(comm);
      comm = nullptr;
    }
  }

  /// Joins the group with the device of `backend`, which must be current, and its stream. All ranks
  /// call this at the same time.
  template <class Backend>
  void attach(const Backend& backend) {
    context_ = backend.context();
    if (size() == 1) return;
    ncclComm_t comm = nullptr;
    detail::check_nccl(ncclCommInitRank(&comm, size(), group_->id, rank_), "ncclCommInitRank");
    const std::lock_guard lock(group_->mutex);
    end().comm = comm;
    group_->changed.notify_all();
  }

  /// While this is held, `abort()` takes up to a second before it touches this end: NCCL's calls
  /// and the launches of graphs that hold them are not to meet ncclCommAbort.
  [[nodiscard]] std::unique_lock<std::recursive_timed_mutex> hold() const {
    return std::unique_lock(end().calling);
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return group_->size; }

  /// See CommunicatorLike. `x` must be dense. Throws CudaError when the group was aborted.
  template <class T>
  void all_reduce(MatrixView<T> x) {
    if (size() == 1 || x.empty()) return;
    check_dense("all_reduce", x);
    call("ncclAllReduce", [&](ncclComm_t comm) {
      return ncclAllReduce(x.data, x.data, static_cast<std::size_t>(x.size()),
                           detail::nccl_type<T>(), ncclSum, comm, context_.stream);
    });
  }

  /// See CommunicatorLike. `part` must be dense. Takes device memory when it needs more than any
  /// call before; make the largest call first if smaller ones are to be captured.
  template <class T>
  void all_gather_columns(MatrixView<const T> part, MatrixView<T> whole) {
    const std::int64_t rows = part.extent(0), width = part.extent(1);
    check_shape("all_gather_columns", "whole", whole, {rows, size() * width});
    check_dense("all_gather_columns", part);
    if (whole.empty()) return;
    const auto bytes = static_cast<std::size_t>(whole.size()) * sizeof(T);
    if (gathered_.size() < bytes) {
      gathered_ = {};
      gathered_ = cuda::DeviceBuffer<std::byte>(bytes);
    }
    T* const parts = reinterpret_cast<T*>(gathered_.data());
    gather(part, parts);
    const dim3 grid(static_cast<unsigned>((width + 2047) / 2048), static_cast<unsigned>(rows),
                    static_cast<unsigned>(size()));
    cuda::launch(detail::side_by_side_kernel<T>, {.grid = grid, .block = 256}, context_, parts,
                 rows, width, whole);
  }

  // See CollectivesLike. Operands must be dense. They throw ShapeError, and CudaError when the
  // group was aborted.

  template <class T>
  void all_gather(MatrixView<const T> part, MatrixView<T> whole) {
    compare(detail::RowExchange::even("all_gather", size(), part, whole), part, whole);
    if (whole.empty()) return;
    if (size() == 1) return copy(part, whole);
    gather(part, whole.data);
  }

  template <class T>
  void reduce_scatter(MatrixView<const T> whole, MatrixView<T> part) {
    compare(detail::RowExchange::even("reduce_scatter", size(), part, whole), whole, part);
    if (whole.empty()) return;
    if (size() == 1) return copy(whole, part);
    call("ncclReduceScatter", [&](ncclComm_t comm) {
      return ncclReduceScatter(whole.data, part.data, static_cast<std::size_t>(part.size()),
                               detail::nccl_type<T>(), ncclSum, comm, context_.stream);
    });
  }

  template <class T>
  void all_to_all(MatrixView<const T> from, std::span<const int> send_rows, MatrixView<T> to,
                  std::span<const int> receive_rows) {
    compare(detail::RowExchange::uneven(size(), from, send_rows, to, receive_rows), from, to);
    if (from.empty() && to.empty()) return;
    if (size() == 1) return copy(from, to);
    call("ncclSend and ncclRecv", [&](ncclComm_t comm) {
      const std::int64_t width = from.extent(1);
      const T* sent = from.data;
      T* received = to.data;
      ncclResult_t status = ncclGroupStart();
      for (int rank = 0; rank < size() && status == ncclSuccess; ++rank) {
        const auto index = static_cast<std::size_t>(rank);
        const std::int64_t out = send_rows[index] * width, in = receive_rows[index] * width;
        if (out > 0)
          status = ncclSend(sent, static_cast<std::size_t>(out), detail::nccl_type<T>(), rank, comm,
                            context_.stream);
        if (in > 0 && status == ncclSuccess)
          status = ncclRecv(received, static_cast<std::size_t>(in), detail::nccl_type<T>(), rank,
                            comm, context_.stream);
        sent += out;
        received += in;
      }
      const ncclResult_t ended = ncclGroupEnd();
      return status == ncclSuccess ? ended : status;
    });
  }

  /// Ends the pending and later calls of all ranks of this process, graphs included: kernels that
  /// wait for other ranks return, and leave garbage. Does not wait, and needs nothing that could be
  /// refused. What NCCL has allocated is freed when the last of the ends goes.
  void abort() {
    const std::lock_guard lock(group_->mutex);
    group_->aborted = true;
    group_->changed.notify_all();
  }

 private:
  Nccl(std::shared_ptr<detail::NcclGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  [[nodiscard]] detail::NcclEnd& end() const {
    return group_->ends[static_cast<std::size_t>(rank_ - group_->first_rank)];
  }

  /// Makes a call of NCCL. Throws CudaError when it fails or the group was aborted.
  template <class Call>
  void call(const char* name, const Call& make) {
    const auto held = hold();
    ncclComm_t comm = nullptr;
    {
      const std::lock_guard lock(group_->mutex);
      group_->check_alive(rank_);
      comm = end().comm;
      check<CudaError>(comm != nullptr, "NCCL: rank ", rank_, " has not joined its group");
    }
    const ncclResult_t status = make(comm);
    if (status != ncclSuccess && status != ncclInProgress) {
      // The first rows between two ranks wait for both: an abort makes such a call fail.
      const std::lock_guard lock(group_->mutex);
      group_->check_alive(rank_);
    }
    detail::check_nccl(status, name);
  }

  void compare(detail::RowExchange side, const auto& from, const auto& to) {
    side.check_own([&] {
      check_dense(side.call, from);
      check_dense(side.call, to);
    });
    group_->compare(rank_, std::move(side));
  }

  template <class T>
  void gather(MatrixView<const T> part, T* whole) {
    call("ncclAllGather", [&](ncclComm_t comm) {
      return ncclAllGather(part.data, whole, static_cast<std::size_t>(part.size()),
                           detail::nccl_type<T>(), comm, context_.stream);
    });
  }

  template <class T>
  void copy(MatrixView<const T> from, MatrixView<T> to) {
    if (from.data == to.data) return;
    cuda::check_cuda(
        cudaMemcpyAsync(to.data, from.data, static_cast<std::size_t>(to.size()) * sizeof(T),
                        cudaMemcpyDeviceToDevice, context_.stream),
        "cudaMemcpyAsync");
  }

  template <class T>
  static void check_dense(const char* call, MatrixView<T> x) {
    check<ShapeError>(x.strides[0] == x.extent(1) || x.extent(0) <= 1, call,
                      ": rows must follow each other without gaps, got ", shape_string(x),
                      " with row stride ", x.strides[0]);
  }

  std::shared_ptr<detail::NcclGroup> group_;
  int rank_ = 0;
  cuda::Context context_;
  cuda::DeviceBuffer<std::byte> gathered_;  // [rank][row][column] on its way to [row][rank, column]
};

static_assert(CollectivesLike<Nccl>);

}  // namespace nanovllm
