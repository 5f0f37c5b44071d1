#pragma once
/// One thread for every tensor-parallel rank of a process, all doing the same thing at once.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nanovllm {

/// Runs a function once on every rank at the same time: rank 0 on the caller's thread, the others
/// on threads that live as long as this object.
class RankThreads {
 public:
  explicit RankThreads(int num_ranks) {
    for (int rank = 1; rank < num_ranks; ++rank) {
      threads_.emplace_back([this, rank] { work(rank); });
    }
  }

  ~RankThreads() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    started_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  [[nodiscard]] int num_ranks() const { return static_cast<int>(threads_.size()) + 1; }

  /// Calls `task(rank)` on every rank and returns when all have. What a rank throws is passed to
  /// `on_error(rank)` on its own thread, at once, so that it can release ranks that wait for it;
  /// afterwards the first error in time is rethrown.
  void run(const std::function<void(int)>& task, const std::function<void(int)>& on_error = {}) {
    {
      const std::lock_guard lock(mutex_);
      task_ = &task;
      on_error_ = &on_error;
      first_error_ = nullptr;
      num_running_ = static_cast<int>(threads_.size());
      ++generation_;
    }
    started_.notify_all();
    call(0);
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return num_running_ == 0; });
    if (first_error_) std::rethrow_exception(first_error_);
  }

 private:
  void call(int rank) {
    try {
      (*task_)(rank);
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (!first_error_) first_error_ = std::current_exception();
      }
      if (*on_error_) (*on_error_)(rank);
    }
  }

  void work(int rank) {
    for (std::uint64_t seen = 0;;) {
      {
        std::unique_lock lock(mutex_);
        started_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
        seen = generation_;
      }
      call(rank);
      const std::lock_guard lock(mutex_);
      if (--num_running_ == 0) finished_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  const std::function<void(int)>* task_ = nullptr;
  const std::function<void(int)>* on_error_ = nullptr;
  std::exception_ptr first_error_;
  std::uint64_t generation_ = 0;
  int num_running_ = 0;
  bool stop_ = false;
};

}  // namespace nanovllm
