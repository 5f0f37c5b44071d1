#pragma once
/// Sixteen bytes at a time: vector loads and stores of elements, and their conversion to and from
/// float.
///
/// Conversions to 16-bit types round to nearest even by the machine's own instructions, as
/// `bf16(float)` and `half(float)` do on the host (NaN becomes the canonical NaN). Loads and stores
/// are volatile assembly: none of them moves ahead of `grid_dependency_wait`.

#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/ptx/pair.cuh"

namespace nanovllm::cuda {

/// Elements of `T` in a vector of 16 bytes.
template <Element T>
inline constexpr int kVecSize = 16 / static_cast<int>(sizeof(T));

/// How a load treats the caches.
enum class Load {
  coherent,  ///< what an earlier kernel wrote
  constant,  ///< through the non-coherent cache: weights, which no kernel writes
};

/// The 16 bytes at `p`, which is 16-byte aligned global memory.
template <Load kLoad = Load::coherent>
__device__ __forceinline__ uint4 load_vector(const void* p) {
  uint4 v;
  if constexpr (kLoad == Load::coherent) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
  } else {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(p)));
  }
  return v;
}

/// Writes 16 bytes to `p`, which is 16-byte aligned global memory.
__device__ __forceinline__ void store_vector(void* p, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(p)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

/// The value of one element, exactly.
template <Element T>
__device__ __forceinline__ float to_float(T x) {
  if constexpr (std::same_as<T, half>) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
    return out;
  } else {
    return x;
  }
}

/// `x` rounded to nearest even.
template <Element T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::same_as<T, float>) {
    return x;
  } else {
    T out;
    if constexpr (std::same_as<T, half>) {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
    } else {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
    }
    return out;
  }
}

/// The elements of a vector as floats.
template <Element T>
__device__ __forceinline__ void unpack(uint4 v, float (&out)[kVecSize<T>]) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::same_as<T, float>) {
      out[i] = __uint_as_float(words[i]);
    } else {
      const float2 pair = unpack_pair<T>(words[i]);
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    }
  }
}

/// Floats rounded to the elements of a vector.
template <Element T>
__device__ __forceinline__ uint4 pack(const float (&x)[kVecSize<T>]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::same_as<T, float>) {
      words[i] = __float_as_uint(x[i]);
    } else {
      words[i] = pack_pair<T>(x[2 * i], x[2 * i + 1]);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

/// The bits of one element, in the low end.
template <Load kLoad, Element T>
__device__ __forceinline__ std::uint32_t load_bits(const T* p) {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  const auto* const word = reinterpret_cast<const Word*>(p);
  return kLoad == Load::constant ? __ldg(word) : *word;
}

/// The first `count` ≤ kVecSize elements at `p`, zeros after them. With kWhole the caller promises
/// that p is 16-byte aligned and that there are kVecSize elements: one load of 16 bytes. Otherwise
/// there is one load an element.
template <bool kWhole, Load kLoad = Load::coherent, Element T>
__device__ __forceinline__ uint4 load_first(const T* p, int count) {
  if constexpr (kWhole) {
    return load_vector<kLoad>(p);
  } else {
    constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < kVecSize<T>; ++i) {
      if (i < count) words[i / kPerWord] |= load_bits<kLoad>(p + i) << (16 * (i % kPerWord));
    }
    return {words[0], words[1], words[2], words[3]};
  }
}

/// Writes the first `count` ≤ kVecSize elements of `v` to `p`; the counterpart of `load_first`.
template <bool kWhole, Element T>
__device__ __forceinline__ void store_first(T* p, int count, uint4 v) {
  if constexpr (kWhole) {
    store_vector(p, v);
  } else {
    using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
    constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < kVecSize<T>; ++i) {
      if (i >= count) continue;
      const std::uint32_t word = words[i / kPerWord] >> (16 * (i % kPerWord));
      reinterpret_cast<Word*>(p)[i] = static_cast<Word>(word);
    }
  }
}

/// The sums of their elements, rounded.
template <class T>
__device__ __forceinline__ uint4 add_vectors(uint4 x, uint4 y) {
  float a[kVecSize<T>], b[kVecSize<T>];
  unpack<T>(x, a);
  unpack<T>(y, b);
#pragma unroll
  for (int i = 0; i < kVecSize<T>; ++i) a[i] = __fadd_rn(a[i], b[i]);
  return pack<T>(a);
}

/// Floats rounded to `T` and back; of 16-bit types an even number.
template <Element T, int kCount>
__device__ __forceinline__ void round_floats(float (&x)[kCount]) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const float2 pair = unpack_pair<T>(pack_pair<T>(x[i], x[i + 1]));
      x[i] = pair.x;
      x[i + 1] = pair.y;
    }
  }
}

}  // namespace nanovllm::cuda
