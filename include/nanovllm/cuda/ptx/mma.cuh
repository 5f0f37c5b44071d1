#pragma once
/// Tensor-core building blocks of compute capability 8.0 and later: 16-bit matrices in registers,
/// their loads from shared memory, and the product m16n8k16 with float32 sums.
///
/// Lane l of a warp has g = l / 4 and t = l % 4. A register holds two neighbouring elements, the
/// one with the lower index in the lower half.
///   8 × 8 matrix:         lane l holds row g, columns 2t and 2t + 1
///   A, 16 × 16 (m × k):   a[0] rows 0–7, columns 0–7;   a[1] rows 8–15, columns 0–7;
///                         a[2] rows 0–7, columns 8–15;  a[3] rows 8–15, columns 8–15
///   B, 16 × 8 (k × n):    b[0] holds k = 2t, 2t + 1 of column n = g;  b[1] the same with k + 8.
///                         So b is the pair of 8 × 8 matrices of Bᵀ (n × k)
///   D, 16 × 8 (m × n):    d[0], d[1] row g, columns 2t, 2t + 1;  d[2], d[3] the same in row g + 8
/// Source: PTX ISA 9.0, "Matrix fragments for mma.m16n8k16", "ldmatrix", "movmatrix".

#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/ptx/pair.cuh"

namespace nanovllm::cuda {

/// An element type that tensor cores multiply.
template <class T>
concept MmaElement = std::same_as<T, bf16> || std::same_as<T, half>;

/// Address of `pointer` in the shared window, as PTX wants it.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Loads four 8 × 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix
/// l / 8: 16 bytes, 16-byte aligned.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// The same, each matrix transposed on the way.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Transposes an 8 × 8 matrix that a warp holds.
__device__ __forceinline__ std::uint32_t movmatrix_trans(std::uint32_t r) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(r));
  return out;
}

/// d += a · b, A 16 × 16, B 16 × 8, sums in float32.
template <MmaElement T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::same_as<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// The same for columns 8n … 8n + 7 of an accumulator of 16 rows.
template <MmaElement T, int kSize>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[kSize], int n, const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  float part[4] = {d[4 * n], d[4 * n + 1], d[4 * n + 2], d[4 * n + 3]};
  mma_m16n8k16<T>(part, a, b0, b1);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[4 * n + i] = part[i];
}

}  // namespace nanovllm::cuda
