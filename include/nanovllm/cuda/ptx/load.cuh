#pragma once
/// Loads and stores of 16 bytes, in PTX where the compiler's own would be moved or not predicated.

#include <cuda_runtime.h>

#include <cstdint>

namespace nanovllm::cuda {

/// Which caches a load goes through.
enum class Through { l1_and_l2, l2 };

/// 16 bytes of global memory, or zeros where `wanted` is false; then `p` is not read.
///
/// l1_and_l2: for data that no kernel writes. It is not the non-coherent load, because ptxas moves
/// those after `grid_dependency_wait`.
/// l2: for data that an earlier kernel wrote.
template <Through kThrough>
__device__ __forceinline__ uint4 load_16_or_zero(const void* p, bool wanted) {
  uint4 v;
#define NANOVLLM_LOAD_16_OR_ZERO(load, ...)                                      \
  asm volatile(                                                                  \
      "{\n\t"                                                                    \
      ".reg .pred wanted;\n\t"                                                   \
      "setp.ne.b32 wanted, %5, 0;\n\t"                                           \
      "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t" \
      "@wanted " load                                                            \
      ".v4.b32 {%0, %1, %2, %3}, [%4];\n\t"                                      \
      "}"                                                                        \
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)                           \
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(wanted))__VA_ARGS__)
  if constexpr (kThrough == Through::l2) {
    NANOVLLM_LOAD_16_OR_ZERO("ld.global.cg", : "memory");
  } else {
    NANOVLLM_LOAD_16_OR_ZERO("ld.global", );
  }
#undef NANOVLLM_LOAD_16_OR_ZERO
  return v;
}

/// 16 bytes of weights, or zeros where `wanted` is false. They are read once and in rows: L1 keeps
/// none of them, L2 fetches 256 bytes. Not the non-coherent load, as above.
__device__ __forceinline__ uint4 load_weight_or_zero(const void* p, bool wanted) {
  uint4 v;
  asm volatile(
      "{\n\t"
      ".reg .pred wanted;\n\t"
      "setp.ne.b32 wanted, %5, 0;\n\t"
      "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t"
      "@wanted ld.global.L1::no_allocate.L2::256B.v4.b32 {%0, %1, %2, %3}, [%4];\n\t"
      "}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(wanted)));
  return v;
}

/// The same of 8 bytes.
__device__ __forceinline__ uint2 load_8_weights_or_zero(const void* p, bool wanted) {
  uint2 v;
  asm volatile(
      "{\n\t"
      ".reg .pred wanted;\n\t"
      "setp.ne.b32 wanted, %3, 0;\n\t"
      "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\t"
      "@wanted ld.global.L1::no_allocate.L2::256B.v2.b32 {%0, %1}, [%2];\n\t"
      "}"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(wanted)));
  return v;
}

/// A float from a shared address.
__device__ __forceinline__ float load_float_from_shared(std::uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

/// 16 bytes from a shared address.
__device__ __forceinline__ uint4 load_from_shared(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

/// 16 bytes to a shared address.
__device__ __forceinline__ void store_to_shared(std::uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

}  // namespace nanovllm::cuda
