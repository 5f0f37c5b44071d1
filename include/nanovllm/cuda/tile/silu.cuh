#pragma once
/// silu(x) = x / (1 + e^-x): what SwiGLU is made of.

#include <cuda_runtime.h>

#include <concepts>

namespace nanovllm::cuda {

/// silu(x). For 16-bit elements T, e^-x and the quotient are the fast ones, each good to a few
/// units in the last place of float32; for float32 they are the accurate ones.
template <class T>
__device__ __forceinline__ float silu(float x) {
  if constexpr (std::same_as<T, float>) {
    return __fdiv_rn(x, 1.f + expf(-x));
  } else {
    return __fdividef(x, 1.f + __expf(-x));
  }
}

}  // namespace nanovllm::cuda
