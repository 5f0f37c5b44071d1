#pragma once
/// What the ranks of one process share in a group of NCCL, and how it ends.

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/thread.hpp"
#include "nanovllm/cuda/runtime/device_claim.hpp"
#include "nanovllm/parallel/row_exchange.hpp"

namespace nanovllm::detail {

inline void check_nccl(ncclResult_t status, const char* call) {
  check<CudaError>(status == ncclSuccess || status == ncclInProgress, call, ": ",
                   ncclGetErrorString(status));
}

/// Has NCCL allocate with cudaMalloc, unless the environment says otherwise. To be called before
/// NCCL's first call, which reads it. Communicators of several ranks of one process are freed by
/// several threads of NCCL at once, and when they unmap what cuMemMap mapped, CUDA's driver
/// (580.159) sometimes frees one of its objects twice, which ends the process.
inline void prefer_cuda_malloc() { ::setenv("NCCL_CUMEM_ENABLE", "0", /*overwrite=*/0); }

/// One rank of this process.
struct NcclEnd {
  ncclComm_t comm = nullptr;           // null before `attach` and once it is being aborted
  std::recursive_timed_mutex calling;  // held during calls of NCCL, and by `hold`
  std::uint64_t num_compared = 0;      // calls that move rows
};

/// What the ranks of this process share, with a thread that aborts their communicators when it is
/// told so. ncclCommAbort at once releases the ranks that wait. Freeing is for the end of the
/// NCCL group that it is called in, and that is the end of this object, when graphs and all else
/// of the ranks are gone and the one thread that is left waits.
struct NcclGroup {
  NcclGroup(int size_in, int first_rank_in, int num_ends)
      : size(size_in), first_rank(first_rank_in), ends(static_cast<std::size_t>(num_ends)) {
    if (size > 1) waiting.emplace();
    threads = start_threads(
        "NCCL", size > 1 ? 1 : 0, [this](int) { work(); }, [] {});
  }
  ~NcclGroup() {
    {
      const std::lock_guard lock(mutex);
      stopped = true;
      changed.notify_all();
    }
    for (std::thread& thread : threads) thread.join();
  }

  /// Throws when the group was aborted. The mutex is held.
  void check_alive(int rank) const {
    check<ShapeError>(mismatch.empty(), mismatch);
    check<CudaError>(!aborted, "NCCL: rank ", rank,
                     ": another rank failed and the group was aborted");
  }

  /// Compares a rank's side of a call with those of the ranks that have made the call before it.
  void compare(int rank, RowExchange side) {
    const std::lock_guard lock(mutex);
    check_alive(rank);
    const auto place = static_cast<std::size_t>(
        ends[static_cast<std::size_t>(rank - first_rank)].num_compared++ - num_complete);
    if (place == calls.size()) calls.emplace_back(static_cast<std::size_t>(size));
    calls[place][static_cast<std::size_t>(rank)] = std::move(side);
    try {
      check_agreement(calls[place]);
    } catch (const ShapeError& wrong) {
      mismatch = wrong.what();
      aborted = true;
      changed.notify_all();
      throw;
    }
    if (std::ranges::all_of(ends,
                            [&](const NcclEnd& end) { return end.num_compared > num_complete; })) {
      calls.pop_front();
      ++num_complete;
    }
  }

  void work() {
    constexpr bool kGrouped =
        NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0);  // earlier ones free at once
    bool has_aborted = false;
    for (std::unique_lock lock(mutex);;) {
      std::vector<ncclComm_t> comms;
      changed.wait(lock, [&] {
        for (NcclEnd& end : ends) {
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
    for (NcclEnd& end : ends) {
      if (end.calling.try_lock_until(deadline)) end.calling.unlock();
    }
    for (const ncclComm_t comm : comms) ncclCommAbort(comm);
  }

  const int size;
  const int first_rank;
  std::optional<cuda::WaitingGroup> waiting;  // unless it is of one rank
  ncclUniqueId id{};
  std::mutex mutex;  // guards what follows, except the calls
  std::condition_variable changed;
  std::vector<NcclEnd> ends;
  std::deque<std::vector<RowExchange>> calls;  // that not all ends have made, by rank
  std::uint64_t num_complete = 0;              // calls before those
  std::string mismatch;                        // why the group was aborted, or empty
  bool aborted = false;
  bool stopped = false;
  std::vector<std::thread> threads;  // one, or none for a group of one rank
};

}  // namespace nanovllm::detail
