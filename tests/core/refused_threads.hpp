#pragma once
/// A system that refuses threads.

#include "nanovllm/core/thread.hpp"

namespace nanovllm::test {

/// As long as it lives, the library can start `num_left` threads and no more.
class RefusedThreads {
 public:
  explicit RefusedThreads(int num_left) { detail::threads_left = num_left; }
  ~RefusedThreads() { detail::threads_left = -1; }
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;
};

}  // namespace nanovllm::test
