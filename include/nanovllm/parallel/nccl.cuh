#pragma once
/// Tensor-parallel ranks on several GPUs through NCCL: threads of one process, or one rank each of
/// several processes.

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/core/thread.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/process_group.hpp"

namespace nanovllm {

namespace detail {

inline void check_nccl(ncclResult_t status, const char* call) {
  check<CudaError>(status == ncclSuccess || status == ncclInProgress, call, ": ",
                   ncclGetErrorString(status));
}

/// Has NCCL allocate with cudaMalloc, unless the environment says otherwise. To be called before
/// NCCL's first call, which reads it. Communicators of several ranks of one process are freed by
/// several threads of NCCL at once, and when they unmap what cuMemMap mapped, CUDA's driver
/// (580.159) sometimes frees one of its objects twice, which ends the process.
inline void prefer_cuda_malloc() { ::setenv("NCCL_CUMEM_ENABLE", "0", /*overwrite=*/0); }

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
  static constexpr bool kRankOrder = false;

  /// The ends of a group of threads. Throws ConfigError unless `num_ranks` ≥ 1. The ends are joined
  /// by `attach`.
  static std::vector<Nccl> make(int num_ranks) {
    check<ConfigError>(num_ranks >= 1, "tensor_parallel must be >= 1, got ", num_ranks);
    auto group = std::make_shared<Group>(num_ranks, 0, num_ranks);
    if (num_ranks > 1) {
      detail::prefer_cuda_malloc();
      detail::check_nccl(ncclGetUniqueId(&group->id), "ncclGetUniqueId");
    }
    std::vector<Nccl> out;
    for (int rank = 0; rank < num_ranks; ++rank) out.push_back(Nccl(group, rank));
    return out;
  }

  /// This process's end of a group with one rank a process. All of them call this.
  static Nccl join(const std::shared_ptr<ProcessGroup>& processes) {
    auto group = std::make_shared<Group>(processes->size(), processes->rank(), 1);
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
    call("ncclAllGather", [&](ncclComm_t comm) {
      return ncclAllGather(part.data, parts, static_cast<std::size_t>(part.size()),
                           detail::nccl_type<T>(), comm, context_.stream);
    });
    const dim3 grid(static_cast<unsigned>((width + 2047) / 2048), static_cast<unsigned>(rows),
                    static_cast<unsigned>(size()));
    cuda::launch(detail::side_by_side_kernel<T>, {.grid = grid, .block = 256}, context_, parts,
                 rows, width, whole);
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
  /// One rank of this process.
  struct End {
    ncclComm_t comm = nullptr;           // null before `attach` and once it is being aborted
    std::recursive_timed_mutex calling;  // held during calls of NCCL, and by `hold`
  };

  /// What the ranks of this process share, with a thread that aborts their communicators when it is
  /// told so. ncclCommAbort at once releases the ranks that wait. Freeing is for the end of the
  /// NCCL group that it is called in, and that is the end of this object, when graphs and all else
  /// of the ranks are gone and the one thread that is left waits.
  struct Group {
    Group(int size_in, int first_rank_in, int num_ends)
        : size(size_in), first_rank(first_rank_in), ends(static_cast<std::size_t>(num_ends)) {
      threads = start_threads(
          "NCCL", size > 1 ? 1 : 0, [this](int) { work(); }, [] {});
    }
    ~Group() {
      {
        const std::lock_guard lock(mutex);
        stopped = true;
        changed.notify_all();
      }
      for (std::thread& thread : threads) thread.join();
    }

    void work() {
      constexpr bool kGrouped =
          NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0);  // earlier ones free at once
      bool has_aborted = false;
      for (std::unique_lock lock(mutex);;) {
        std::vector<ncclComm_t> comms;
        changed.wait(lock, [&] {
          for (End& end : ends) {
            if (aborted && end.comm != nullptr) comms.push_back(std::exchange(end.comm, nullptr));
          }
          return stopped || !comms.empty();
        });
        if (comms.empty()) break;
        lock.unlock();
        if (!std::exchange(has_aborted, true) && kGrouped) ncclGroupStart();
        abort(comms);
        lock.lock();
      }
      if (has_aborted && kGrouped) ncclGroupEnd();
    }

    void abort(const std::vector<ncclComm_t>& comms) {
      // A call in progress ends by itself, unless it waits for what a hung kernel does not do.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      for (End& end : ends) {
        if (end.calling.try_lock_until(deadline)) end.calling.unlock();
      }
      for (const ncclComm_t comm : comms) ncclCommAbort(comm);
    }

    const int size;
    const int first_rank;
    ncclUniqueId id{};
    std::mutex mutex;  // guards what follows, except the calls
    std::condition_variable changed;
    std::vector<End> ends;
    bool aborted = false;
    bool stopped = false;
    std::vector<std::thread> threads;  // one, or none for a group of one rank
  };

  Nccl(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  [[nodiscard]] End& end() const {
    return group_->ends[static_cast<std::size_t>(rank_ - group_->first_rank)];
  }

  /// Makes a call of NCCL. Throws CudaError when it fails or the group was aborted.
  template <class Call>
  void call(const char* name, const Call& make) {
    const auto held = hold();
    ncclComm_t comm = nullptr;
    {
      const std::lock_guard lock(group_->mutex);
      comm = group_->aborted ? nullptr : end().comm;
      check<CudaError>(comm != nullptr, "NCCL: rank ", rank_,
                       group_->aborted ? ": another rank failed and the group was aborted"
                                       : " has not joined its group");
    }
    detail::check_nccl(make(comm), name);
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
