#pragma once
/// Parts of a softmax that warps of different blocks hand to each other through device memory.
///
/// A part needs neither counter nor fence: the memory is full of `kDecodeEmptyWord`, a NaN that no
/// part contains, so who wants a part reads its words until they are others, and puts
/// `kDecodeEmptyWord` back for the next kernel.

#include <cuda_runtime.h>

#include "nanovllm/cuda/attention/decode/workspace.cuh"
#include "nanovllm/cuda/tile/exp2.cuh"

namespace nanovllm::cuda::detail {

/// Four columns of one head, and the maximum and sum of weights that belong to them.
struct DecodePart {
  float4 out = {0.f, 0.f, 0.f, 0.f};
  float max = -INFINITY, sum = 0.f;
};

/// Parts that are merged at once: their loads are under way together.
inline constexpr int kPartsAtOnce = 8;

/// Adds parts to `total`, in order.
__device__ __forceinline__ void add_parts(DecodePart& total, DecodePart (&parts)[kPartsAtOnce]) {
  const auto scale_by = [](float factor, DecodePart& part) {
    part.out.x *= factor, part.out.y *= factor, part.out.z *= factor, part.out.w *= factor;
    part.sum *= factor;
  };
  float max = total.max;
#pragma unroll
  for (const DecodePart& part : parts) max = fmaxf(max, part.max);
  scale_by(exp2_approx(total.max - max), total);
  total.max = max;
#pragma unroll
  for (DecodePart& part : parts) {
    scale_by(exp2_approx(part.max - max), part);
    total.out.x += part.out.x, total.out.y += part.out.y;
    total.out.z += part.out.z, total.out.w += part.out.w;
    total.sum += part.sum;
  }
}

/// The same for one.
__device__ __forceinline__ void add_part(DecodePart& total, const DecodePart& part) {
  const float max = fmaxf(total.max, part.max);
  const float keep = exp2_approx(total.max - max), add = exp2_approx(part.max - max);
  total.max = max;
  total.out.x = total.out.x * keep + part.out.x * add;
  total.out.y = total.out.y * keep + part.out.y * add;
  total.out.z = total.out.z * keep + part.out.z * add;
  total.out.w = total.out.w * keep + part.out.w * add;
  total.sum = total.sum * keep + part.sum * add;
}

/// The word that stands for `x`: if it happens to be `kDecodeEmptyWord`, another NaN.
__device__ __forceinline__ unsigned word_of(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits == kDecodeEmptyWord ? 0x7fffffffu : bits;
}

/// Writes words that another block reads.
__device__ __forceinline__ void publish(float* to, float4 value) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(word_of(value.x)), "r"(word_of(value.y)),
                 "r"(word_of(value.z)), "r"(word_of(value.w))
               : "memory");
}
__device__ __forceinline__ void publish(float* to, float value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(word_of(value))
               : "memory");
}

/// Reads words that another block writes, as they are now.
__device__ __forceinline__ float4 peek(const float* from) {
  float4 out;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return out;
}

__device__ __forceinline__ bool is_complete(float4 words) {
  return (__float_as_uint(words.x) != kDecodeEmptyWord) &
         (__float_as_uint(words.y) != kDecodeEmptyWord) &
         (__float_as_uint(words.z) != kDecodeEmptyWord) &
         (__float_as_uint(words.w) != kDecodeEmptyWord);
}

__device__ __forceinline__ float peek_word(const float* from) {
  float out;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];"
               : "=f"(out)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return out;
}
__device__ __forceinline__ bool is_complete(float word) {
  return __float_as_uint(word) != kDecodeEmptyWord;
}

/// Global time in units of 2³² ns (4.3 s).
__device__ __forceinline__ unsigned coarse_time() {
  unsigned out;
  asm volatile("mov.u32 %0, %%globaltimer_hi;" : "=r"(out));
  return out;
}

/// How long a collector waits for a part, in units of `coarse_time`: half a minute.
inline constexpr unsigned kDecodePatience = 7;

/// Looks at a part, some milliseconds, before the clock is read: a part is mostly there sooner.
inline constexpr unsigned kLooksPerTime = 4096;

/// Counts the looks at a part that is not there, and ends the kernel by a trap where it never
/// comes, because the plan was for other lengths. It goes by the clock: under a debugger or a
/// sanitizer a part may take any number of looks.
struct Patience {
  unsigned looks = 0;
  unsigned begin = 0;  ///< of the wait, where it is a long one

  /// After each look.
  __device__ __forceinline__ void look() {
    if (++looks % kLooksPerTime != 0) return;
    const unsigned now = coarse_time();
    if (looks == kLooksPerTime) begin = now;
    if (now - begin > kDecodePatience) __trap();
  }
};

}  // namespace nanovllm::cuda::detail
