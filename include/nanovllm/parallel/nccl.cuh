#pragma once
/// Tensor-parallel ranks on several GPUs of one process, one thread each, through NCCL.

#include <cuda_runtime.h>
#include <nccl.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/context.cuh"
#include "nanovllm/cuda/device_buffer.cuh"
#include "nanovllm/cuda/launch.cuh"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

namespace detail {

inline void check_nccl(ncclResult_t status, const char* call) {
  check<CudaError>(status == ncclSuccess || status == ncclInProgress, call, ": ",
                   ncclGetErrorString(status));
}

template <class T>
[[nodiscard]] constexpr ncclDataType_t nccl_type() {
  if constexpr (std::same_as<T, float>) return ncclFloat32;
  if constexpr (std::same_as<T, half>) return ncclFloat16;
  return ncclBfloat16;
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
class Nccl {
 public:
  /// Throws ConfigError unless `num_ranks` ≥ 1. The ends are joined by `attach`.
  static std::vector<Nccl> make(int num_ranks) {
    check<ConfigError>(num_ranks >= 1, "tensor_parallel must be >= 1, got ", num_ranks);
    auto group = std::make_shared<Group>();
    group->comms.resize(static_cast<std::size_t>(num_ranks));
    if (num_ranks > 1) detail::check_nccl(ncclGetUniqueId(&group->id), "ncclGetUniqueId");
    std::vector<Nccl> out;
    for (int rank = 0; rank < num_ranks; ++rank) out.push_back(Nccl(group, rank));
    return out;
  }

  Nccl(Nccl&&) = default;
  Nccl& operator=(Nccl&&) = default;
  ~Nccl() {
    if (group_ == nullptr) return;
    const std::lock_guard lock(group_->mutex);
    if (ncclComm_t& comm = group_->comms[index()]; comm != nullptr) {
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
    group_->comms[index()] = comm;
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(group_->comms.size()); }

  /// See CommunicatorLike. `x` must be dense. Throws CudaError when the group was aborted.
  template <class T>
  void all_reduce(MatrixView<T> x) {
    if (size() == 1 || x.empty()) return;
    check_dense("all_reduce", x);
    detail::check_nccl(ncclAllReduce(x.data, x.data, static_cast<std::size_t>(x.size()),
                                     detail::nccl_type<T>(), ncclSum, comm(), context_.stream),
                       "ncclAllReduce");
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
    detail::check_nccl(ncclAllGather(part.data, parts, static_cast<std::size_t>(part.size()),
                                     detail::nccl_type<T>(), comm(), context_.stream),
                       "ncclAllGather");
    const dim3 grid(static_cast<unsigned>((width + 2047) / 2048), static_cast<unsigned>(rows),
                    static_cast<unsigned>(size()));
    cuda::launch(detail::side_by_side_kernel<T>, {.grid = grid, .block = 256}, context_, parts,
                 rows, width, whole);
  }

  /// Ends the pending and later calls of all ranks of this process.
  void abort() {
    const std::lock_guard lock(group_->mutex);
    group_->aborted = true;
    for (ncclComm_t& comm : group_->comms) {
      if (comm != nullptr) ncclCommAbort(comm);
      comm = nullptr;
    }
  }

 private:
  struct Group {
    ncclUniqueId id{};
    std::mutex mutex;
    std::vector<ncclComm_t> comms;  // of all ranks; null before `attach` and after `abort`
    bool aborted = false;
  };

  Nccl(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  [[nodiscard]] std::size_t index() const { return static_cast<std::size_t>(rank_); }

  [[nodiscard]] ncclComm_t comm() const {
    const std::lock_guard lock(group_->mutex);
    check<CudaError>(group_->comms[index()] != nullptr, "NCCL: rank ", rank_,
                     group_->aborted ? ": another rank failed and the group was aborted"
                                     : " has not joined its group");
    return group_->comms[index()];
  }

  template <class T>
  static void check_dense(const char* call, MatrixView<T> x) {
    check<ShapeError>(x.strides[0] == x.extent(1) || x.extent(0) <= 1, call,
                      ": rows must follow each other without gaps, got ", shape_string(x),
                      " with row stride ", x.strides[0]);
  }

  std::shared_ptr<Group> group_;
  int rank_ = 0;
  cuda::Context context_;
  cuda::DeviceBuffer<std::byte> gathered_;  // [rank][row][column] on its way to [row][rank, column]
};

static_assert(CommunicatorLike<Nccl>);

}  // namespace nanovllm
