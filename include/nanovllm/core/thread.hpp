#pragma once
/// Starting threads where the system may refuse one.

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

namespace detail {

/// For tests: how many threads may still be started; negative for as many as the system gives.
inline std::atomic<std::int64_t> threads_left = -1;

/// Throws std::system_error when there is no thread to be had.
[[nodiscard]] inline std::thread start_thread(std::function<void()> work) {
  if (threads_left.load() >= 0 && threads_left.fetch_sub(1) <= 0) {
    threads_left = 0;
    throw std::system_error(EAGAIN, std::system_category());
  }
  return std::thread(std::move(work));
}

}  // namespace detail

/// Starts `count` threads; number i of them calls `work(i)`, which must not throw. All of them run
/// when this returns. When one is refused, calls `stop()`, which must make those return that have
/// been started, joins them, and throws an Error that begins with `what` and says how many were
/// wanted and how many could be started.
[[nodiscard]] inline std::vector<std::thread> start_threads(const char* what, int count,
                                                            const std::function<void(int)>& work,
                                                            const std::function<void()>& stop) {
  std::vector<std::thread> threads;
  if (count <= 0) return threads;
  threads.reserve(static_cast<std::size_t>(count));
  try {
    for (int i = 0; i < count; ++i) threads.push_back(detail::start_thread([work, i] { work(i); }));
  } catch (const std::exception& error) {
    stop();
    for (std::thread& thread : threads) thread.join();
    throw Error(concat(what, ": ", count, " threads were wanted, ", threads.size(),
                       " could be started: ", error.what()));
  }
  return threads;
}

}  // namespace nanovllm
