#pragma once
/// An allocator that fails when it is told to: it replaces the global operators, so that one source
/// of a program includes it.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace nanovllm::test {

/// Of this thread: allocations until one fails, once. Negative: none does.
inline thread_local std::int64_t allocations_left = -1;
/// Allocations that have failed.
inline thread_local std::int64_t num_failed_allocations = 0;

/// While it lives, what this thread allocates neither counts nor fails: a test's own memory.
class PausedFailures {
 public:
  PausedFailures() = default;
  ~PausedFailures() { allocations_left = left_; }
  PausedFailures(const PausedFailures&) = delete;
  PausedFailures& operator=(const PausedFailures&) = delete;

 private:
  std::int64_t left_ = std::exchange(allocations_left, -1);
};

inline void* allocate_or_fail(std::size_t size, std::size_t alignment) {
  if (allocations_left >= 0 && allocations_left-- == 0) {
    ++num_failed_allocations;
    throw std::bad_alloc();
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size == 0 ? 1 : size) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace nanovllm::test

#if defined(__CUDACC__)
#pragma nv_diag_suppress 20014  // CUDA declares the first of these for devices, too
#endif

// Not inlined: GCC would complain of malloc's memory in operator delete.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return nanovllm::test::allocate_or_fail(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return nanovllm::test::allocate_or_fail(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size == 0 ? 1 : size);  // what asks for memory so goes on without
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
