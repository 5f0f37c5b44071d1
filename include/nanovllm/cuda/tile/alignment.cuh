#pragma once
/// Whether memory can be read and written in aligned vectors of 16 bytes.

#include <cstdint>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm::cuda {

/// Whether 16-byte vectors may start at `pointer`.
[[nodiscard]] NANOVLLM_HD inline bool is_vector_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Whether every row along the last dimension begins at a multiple of 16 bytes, however many rows
/// there are.
template <class T, int kRank>
[[nodiscard]] bool has_aligned_rows(const TensorView<T, kRank>& view) {
  bool aligned = is_vector_aligned(view.data);
  for (int i = 0; i + 1 < kRank; ++i) aligned = aligned && view.strides[i] * sizeof(T) % 16 == 0;
  return aligned;
}

/// Whether the rows along the last dimension are whole vectors: 16-byte aligned, all of them, and a
/// multiple of 16 bytes long.
template <class T, int kRank>
[[nodiscard]] bool has_whole_rows(const TensorView<T, kRank>& view) {
  bool whole = is_vector_aligned(view.data) && view.extents[kRank - 1] * sizeof(T) % 16 == 0;
  for (int i = 0; i + 1 < kRank; ++i) {
    whole = whole && (view.extents[i] <= 1 || view.strides[i] * sizeof(T) % 16 == 0);
  }
  return whole;
}

}  // namespace nanovllm::cuda
