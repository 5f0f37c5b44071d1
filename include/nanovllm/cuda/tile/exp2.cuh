#pragma once
/// 2^x by the special function unit: what the softmaxes and the sampler's race are made of.

#include <cuda_runtime.h>

namespace nanovllm::cuda {

/// 2^x to 2 units in the last place, relative error below 2^-22; 0 for -inf. Subnormal arguments
/// and results are 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

}  // namespace nanovllm::cuda
