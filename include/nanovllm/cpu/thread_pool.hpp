#pragma once
/// A fork-join thread pool for the CPU backend's ops.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/thread.hpp"

namespace nanovllm::cpu {

/// A fixed number of threads, the caller of `parallel_for` included, that share one loop at a time.
///
/// A decode step forks some two hundred times, so workers spin for a few tens of microseconds
/// before they sleep. One thread at a time may call `parallel_for`; each engine rank owns its pool.
class ThreadPool {
 public:
  /// @param num_threads  total threads; unset: one per hardware thread. Throws ConfigError, before
  /// one starts, unless it is in [1, kMaxThreads], and Error when the system does not give as many.
  explicit ThreadPool(std::optional<int> num_threads = {})
      : num_threads_(num_threads.value_or(
            std::max(1, static_cast<int>(std::thread::hardware_concurrency())))) {
    check<ConfigError>(num_threads_ >= 1 && num_threads_ <= kMaxThreads,
                       "num_threads must be unset or in [1, ", kMaxThreads, "], got ",
                       num_threads_);
    workers_ = start_threads(
        "the CPU's thread pool", num_threads_ - 1, [this](int i) { work(i + 1); },
        [this] { stop(); });
  }

  ~ThreadPool() {
    stop();
    for (std::thread& worker : workers_) worker.join();
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const { return num_threads_; }

  /// Calls `body(begin, end, thread)` on disjoint ranges that cover [0, count), each at most
  /// `grain` long and starting at a multiple of it; `thread` in [0, num_threads) names scratch that
  /// no other running call uses. Threads take ranges as they come free. Returns when all are done;
  /// what they wrote is visible to the caller. `body` must not throw nor call `parallel_for`.
  template <class Body>
  void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
    const auto invoke = [](void* erased, std::int64_t begin, std::int64_t end, int thread) {
      (*static_cast<std::remove_reference_t<Body>*>(erased))(begin, end, thread);
    };
    run({const_cast<void*>(static_cast<const void*>(std::addressof(body))), invoke, count,
         std::max<std::int64_t>(1, grain)});
  }

 private:
  /// A loop, and its body with the type erased: the pool is compiled once.
  struct Loop {
    void* body = nullptr;
    void (*invoke)(void*, std::int64_t, std::int64_t, int) = nullptr;
    std::int64_t count = 0;
    std::int64_t grain = 1;

    void call(std::int64_t begin, int thread) const {
      invoke(body, begin, std::min(count, begin + grain), thread);
    }
  };

  static constexpr int kSpins = 4000;

  void run(const Loop& loop) {
    if (workers_.empty() || loop.count <= loop.grain) {
      for (std::int64_t begin = 0; begin < loop.count; begin += loop.grain) loop.call(begin, 0);
      return;
    }
    loop_ = loop;
    next_.store(0, std::memory_order_relaxed);
    open_.store(true);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    drain(0);
    // All ranges are taken. Workers that have joined must finish theirs; a worker that has not
    // woken by now is not waited for, which matters when the machine has other things to do.
    open_.store(false);
    for (int spins = 0; joined_.load() != 0;) {
      if (++spins < kSpins) {
        pause();
      } else {
        const int left = joined_.load(std::memory_order_acquire);
        if (left != 0) joined_.wait(left, std::memory_order_acquire);
      }
    }
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }

  void stop() {
    stop_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }

  void drain(int thread) {
    for (;;) {
      const std::int64_t begin = next_.fetch_add(loop_.grain, std::memory_order_relaxed);
      if (begin >= loop_.count) return;
      loop_.call(begin, thread);
    }
  }

  void work(int thread) {
    for (std::uint64_t seen = 0;;) {
      std::uint64_t now = epoch_.load(std::memory_order_acquire);
      for (int spins = 0; now == seen; now = epoch_.load(std::memory_order_acquire)) {
        if (++spins < kSpins) {
          pause();
        } else {
          epoch_.wait(seen, std::memory_order_acquire);
        }
      }
      seen = now;
      if (stop_.load(std::memory_order_relaxed)) return;
      // Joining before looking whether the loop is open, and closing before looking who has joined
      // (all sequentially consistent), means that one side sees the other: a loop's fields are
      // never read once its caller has gone on.
      joined_.fetch_add(1);
      if (open_.load()) drain(thread);
      if (joined_.fetch_sub(1, std::memory_order_acq_rel) == 1) joined_.notify_one();
    }
  }

  int num_threads_ = 1;
  std::vector<std::thread> workers_;

  // The loop being shared; written by the caller while it is closed and no thread has joined.
  Loop loop_;

  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::uint64_t> epoch_{0};
  alignas(64) std::atomic<int> joined_{0};  // workers that may be reading the loop's fields
  std::atomic<bool> open_{false};           // whether it has fields to read
  std::atomic<bool> stop_{false};
};

}  // namespace nanovllm::cpu
