#pragma once
/// Memory that ops need while they run.

#include <algorithm>
#include <cstdint>

#include "nanovllm/cpu/aligned_buffer.hpp"

namespace nanovllm::cpu::detail {

/// At least `size` elements with undefined contents, 64-byte aligned. They belong to the calling
/// thread and to `Op`, and stay until its next call: after a few steps an engine allocates no more.
template <class Op, class T>
[[nodiscard]] T* scratch(std::int64_t size) {
  thread_local AlignedBuffer<T> buffer;
  if (buffer.size() < size) {
    buffer = AlignedBuffer<T>(std::max(size, 2 * buffer.size()));
  }
  return buffer.data();
}

}  // namespace nanovllm::cpu::detail
