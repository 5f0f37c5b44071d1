#pragma once
/// Threads that load weights.

#include <functional>

#include "nanovllm/core/separate.hpp"

namespace nanovllm::detail {

/// Calls `work()` on `num_threads` threads, the caller's among them, and rethrows the first
/// exception when all have ended. Throws Error when a thread is refused; `stop()` makes calls of
/// `work` return that have begun by then.
void on_threads(
    int num_threads, const std::function<void()>& work, const std::function<void()>& stop = [] {});

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "nanovllm/core/thread.hpp"

namespace nanovllm::detail {

NANOVLLM_INLINE void on_threads(int num_threads, const std::function<void()>& work,
                                const std::function<void()>& stop) {
  std::mutex mutex;
  std::exception_ptr error;
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads = start_threads(
      "loading weights", num_threads - 1, [&guarded](int) { guarded(); }, stop);
  guarded();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
