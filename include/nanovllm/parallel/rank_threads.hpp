#pragma once
/// One thread for every tensor-parallel rank of a process; all run the same function at once.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/thread.hpp"

namespace nanovllm {

/// Runs a function once on every rank at the same time, on threads that live as long as this
/// object. Rank 0 runs on the caller's thread, unless it is given a thread as well.
///
/// A thread cannot be killed. One that hangs is left behind: it ends when what it calls returns, if
/// ever, and keeps the task that it was given.
class RankThreads {
 public:
  /// What a rank does, and what it does when that throws.
  using Task = std::function<void(int rank)>;
  using Duration = std::chrono::steady_clock::duration;

  /// Throws Error when the system does not give as many threads.
  explicit RankThreads(int num_ranks, bool rank_0_has_thread = false)
      : first_(rank_0_has_thread ? 0 : 1), state_(std::make_shared<State>(num_ranks)) {
    threads_ = start_threads(
        "ranks", num_ranks - first_,
        [state = state_, first = first_](int i) { state->work(first + i); },
        [this] { state_->stop(); });
  }

  /// Waits for what was started, and for all ranks except those that hang.
  ~RankThreads() {
    try {
      join();
    } catch (...) {  // the caller goes without a `join`, and so without its error
    }
    state_->stop();
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      if (state_->is_abandoned(first_ + static_cast<int>(i))) {
        threads_[i].detach();
      } else {
        threads_[i].join();
      }
    }
  }

  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  [[nodiscard]] int num_ranks() const { return static_cast<int>(threads_.size()) + first_; }

  /// Calls `task(rank)` on every rank and returns when all have. What a rank throws is passed to
  /// `on_error(rank)` on its own thread, at once, while it is being handled, so that it can release
  /// ranks that wait for it; afterwards the first error in time is rethrown. What `on_error` throws
  /// itself is dropped. Throws Error when a rank hangs since an earlier call.
  void run(Task task, Task on_error = {}) {
    start(std::move(task), std::move(on_error));
    join();
  }

  /// The same, and returns when the caller has done its own part: a thread that is woken comes some
  /// 50 microseconds later. `task` must own what it uses until `join`. If the ranks still do what
  /// was started before, joins that first.
  void start(Task task, Task on_error = {}) {
    join();
    started_ = begin(std::move(task), std::move(on_error));
  }

  /// Returns when all ranks have done what was started last, or at once where it was joined. Throws
  /// the first error in time.
  void join() {
    if (!started_) return;
    const std::shared_ptr<Job> job = std::exchange(started_, nullptr);
    std::unique_lock lock(state_->mutex);
    state_->finished.wait(lock, [&] { return job->num_running == 0; });
    job->rethrow();
  }

  /// The same with a limit from the start on; rank 0 then needs a thread. Calls `release()` when
  /// ranks are still running by then, which is to end what they wait for, and returns those that do
  /// not end within `grace` either: they hang. Nothing is rethrown in that case, nor when all have
  /// ended late: `late` is set.
  [[nodiscard]] std::vector<int> join_for(Duration limit, Duration grace,
                                          const std::function<void()>& release, bool& late) {
    late = false;
    if (!started_) return {};
    const std::shared_ptr<Job> job = std::exchange(started_, nullptr);
    const auto done = [&] { return job->num_running == 0; };
    std::unique_lock lock(state_->mutex);
    late = !state_->finished.wait_until(lock, job->begun + limit, done);
    if (!late) {
      job->rethrow();
      return {};
    }
    lock.unlock();
    release();
    lock.lock();
    state_->finished.wait_for(lock, grace, done);
    std::vector<int> hanging;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      if (state_->busy[static_cast<std::size_t>(rank)] != nullptr) hanging.push_back(rank);
    }
    return hanging;
  }

  /// The ranks whose threads have not come back since a `join_for` gave them up.
  [[nodiscard]] std::vector<int> hanging() const {
    std::vector<int> out;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      if (state_->is_abandoned(rank)) out.push_back(rank);
    }
    return out;
  }

 private:
  /// What was started once.
  struct Job {
    Task task;
    Task on_error;
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
    std::exception_ptr first_error;
    int num_running = 0;

    void call(int rank, std::mutex& mutex) {
      try {
        task(rank);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first_error) first_error = std::current_exception();
        }
        try {
          if (on_error) on_error(rank);
        } catch (...) {  // the first error is the one to know
        }
      }
    }

    /// Rethrows the first error, if any, when all have ended. It becomes the caller's alone: a rank
    /// may be the last to let go of the job, and must not free what the caller still reads.
    void rethrow() {
      if (first_error) std::rethrow_exception(std::exchange(first_error, nullptr));
    }
  };

  /// What the threads see, which outlives this object when one hangs.
  struct State {
    explicit State(int num_ranks) : busy(static_cast<std::size_t>(num_ranks)) {}

    void work(int rank) {
      std::shared_ptr<Job>& mine = busy[static_cast<std::size_t>(rank)];
      for (std::unique_lock lock(mutex);;) {
        started.wait(lock, [&] { return stopped || mine != nullptr; });
        if (mine == nullptr) return;
        Job& job = *mine;
        lock.unlock();
        job.call(rank, mutex);
        lock.lock();
        std::shared_ptr<Job> ended = std::exchange(mine, nullptr);
        if (--ended->num_running == 0) finished.notify_all();
        lock.unlock();
        ended.reset();  // if it hung, what it keeps is freed now, which may take time
        lock.lock();
      }
    }

    void stop() {
      const std::lock_guard lock(mutex);
      stopped = true;
      started.notify_all();
    }

    [[nodiscard]] bool is_abandoned(int rank) {
      const std::lock_guard lock(mutex);
      return busy[static_cast<std::size_t>(rank)] != nullptr;
    }

    std::mutex mutex;  // guards everything except the calls
    std::condition_variable started, finished;
    std::vector<std::shared_ptr<Job>> busy;  // by rank: what it does
    bool stopped = false;
  };

  /// Starts a job, and does rank 0's part when the caller is rank 0.
  [[nodiscard]] std::shared_ptr<Job> begin(Task task, Task on_error) {
    const auto job = std::make_shared<Job>();
    job->task = std::move(task);
    job->on_error = std::move(on_error);
    {
      const std::lock_guard lock(state_->mutex);
      for (int rank = 0; rank < num_ranks(); ++rank) {
        check(state_->busy[static_cast<std::size_t>(rank)] == nullptr, "rank ", rank,
              " hangs in a step that was given up");
      }
      for (int rank = first_; rank < num_ranks(); ++rank)
        state_->busy[static_cast<std::size_t>(rank)] = job;
      job->num_running = num_ranks() - first_;
    }
    state_->started.notify_all();
    if (first_ == 1) job->call(0, state_->mutex);
    return job;
  }

  int first_;                     // of the ranks with a thread
  std::shared_ptr<Job> started_;  // and not joined
  std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

}  // namespace nanovllm
