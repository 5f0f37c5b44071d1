#pragma once
/// Products of a warpgroup (four warps, 128 threads) on the tensor cores of sm_90a: wgmma with
/// float32 sums, 64 rows at a time.
///
///   D[64 × n] += A[64 × 16] · B[16 × n]
///
/// B lies in shared memory, A there or in registers, D in registers. Warp w of the group holds rows
/// 16w … 16w + 15. With g = lane / 4, t = lane % 4, a thread's d[4i + j] is column 8i + 2t + j % 2
/// of row g + 8 (j / 2); as A, a[0], a[1] hold columns 2t, 2t + 1 of rows g and g + 8, a[2], a[3]
/// the same 8 columns on. So neighbouring 8 columns of D, rounded and packed, are A of the next
/// product.
///
/// Products run asynchronously. The order: `wgmma_fence` (after any write to registers that a
/// product will use), products, `wgmma_commit`, `wgmma_wait<n>` (until at most n commits are
/// pending). Registers of a pending product must be neither read nor written, and the compiler does
/// not know: `wgmma_hold` pins them to either side of a wait.
/// Source: PTX ISA 9.0, "Asynchronous warpgroup level matrix instructions".

#include <concepts>
#include <cstdint>

#include "nanovllm/cuda/ptx/mma.cuh"

namespace nanovllm::cuda {

/// Where an operand lies in shared memory, as wgmma wants it. Its rows are 128 bytes (64 elements)
/// under the 128-byte swizzle (see `tma.cuh`), 8 rows every 1024 bytes.
struct WgmmaOperand {
  std::uint64_t bits;

  /// The operand `bytes` further on, a multiple of 16.
  __device__ __forceinline__ WgmmaOperand plus(int bytes) const {
    return {bits + static_cast<std::uint64_t>(bytes / 16)};
  }
};

/// The operand at `pointer`, 1024-byte aligned: 64 elements of k a row (A as m × k, B as n × k), or
/// 64 of n (B as k × n). Only the latter needs `panel_bytes`, the distance from 64 columns to the
/// next 64.
__device__ __forceinline__ WgmmaOperand wgmma_operand(const void* pointer, int panel_bytes) {
  constexpr std::uint64_t kRows8Bytes = 1024, kSwizzle128 = 1;
  const std::uint64_t address = (shared_address(pointer) & 0x3ffffu) >> 4;
  return {address | static_cast<std::uint64_t>(panel_bytes / 16) << 16 | (kRows8Bytes / 16) << 32 |
          kSwizzle128 << 62};
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Orders earlier writes to registers and shared memory before the products that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Closes the group of products issued since the last commit.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most the `kPending` newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of `r` across this point.
template <int kSize>
__device__ __forceinline__ void wgmma_hold(float (&r)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int kSize>
__device__ __forceinline__ void wgmma_hold(std::uint32_t (&r)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

// The lists of a product's registers, written once.
#define NANOVLLM_WGMMA_LIST_4 "{%0, %1, %2, %3}, "
#define NANOVLLM_WGMMA_OUT_4(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define NANOVLLM_WGMMA_LIST_8 "{%0, %1, %2, %3, %4, %5, %6, %7}, "
#define NANOVLLM_WGMMA_OUT_8(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define NANOVLLM_WGMMA_LIST_16 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define NANOVLLM_WGMMA_OUT_16(d)                                                                  \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15])
#define NANOVLLM_WGMMA_LIST_24                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23}, "
#define NANOVLLM_WGMMA_OUT_24(d)                                                                  \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23])
#define NANOVLLM_WGMMA_LIST_32                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define NANOVLLM_WGMMA_OUT_32(d)                                                                  \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define NANOVLLM_WGMMA_LIST_48                                                       \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
#define NANOVLLM_WGMMA_OUT_48(d)                                                                  \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),  \
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),  \
      "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define NANOVLLM_WGMMA_LIST_64                                                       \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define NANOVLLM_WGMMA_OUT_64(d)                                                                  \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),  \
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),  \
      "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),  \
      "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),  \
      "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])

/// d = a · b, or d += a · b when `kAdd`, n = 2 · kSize columns. Both operands in shared memory,
/// stored as m × k and n × k.
template <MmaElement T, bool kAdd, int kSize>
__device__ __forceinline__ void wgmma(float (&d)[kSize], WgmmaOperand a, WgmmaOperand b) {
  static_assert(
      kSize == 24 || kSize == 48 || (kSize >= 4 && kSize <= 64 && (kSize & (kSize - 1)) == 0),
      "'wgmma' makes 8, 16, 32, 48, 64, 96 or 128 columns");
#define NANOVLLM_WGMMA_SS(columns, type, size, a_register, b_register, add_register)         \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " add_register                                 \
               ", 0;"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type          \
               " " NANOVLLM_WGMMA_LIST_##size a_register ", " b_register ", p, 1, 1, 0, 0;}" \
               : NANOVLLM_WGMMA_OUT_##size(d)                                                \
               : "l"(a.bits), "l"(b.bits), "n"(kAdd ? 1 : 0))
  constexpr bool kBf16 = std::same_as<T, bf16>;
  if constexpr (kSize == 64 && kBf16) {
    NANOVLLM_WGMMA_SS("128", "bf16", 64, "%64", "%65", "%66");
  } else if constexpr (kSize == 64) {
    NANOVLLM_WGMMA_SS("128", "f16", 64, "%64", "%65", "%66");
  } else if constexpr (kSize == 48 && kBf16) {
    NANOVLLM_WGMMA_SS("96", "bf16", 48, "%48", "%49", "%50");
  } else if constexpr (kSize == 48) {
    NANOVLLM_WGMMA_SS("96", "f16", 48, "%48", "%49", "%50");
  } else if constexpr (kSize == 32 && kBf16) {
    NANOVLLM_WGMMA_SS("64", "bf16", 32, "%32", "%33", "%34");
  } else if constexpr (kSize == 32) {
    NANOVLLM_WGMMA_SS("64", "f16", 32, "%32", "%33", "%34");
  } else if constexpr (kSize == 24 && kBf16) {
    NANOVLLM_WGMMA_SS("48", "bf16", 24, "%24", "%25", "%26");
  } else if constexpr (kSize == 24) {
    NANOVLLM_WGMMA_SS("48", "f16", 24, "%24", "%25", "%26");
  } else if constexpr (kSize == 16 && kBf16) {
    NANOVLLM_WGMMA_SS("32", "bf16", 16, "%16", "%17", "%18");
  } else if constexpr (kSize == 16) {
    NANOVLLM_WGMMA_SS("32", "f16", 16, "%16", "%17", "%18");
  } else if constexpr (kSize == 8 && kBf16) {
    NANOVLLM_WGMMA_SS("16", "bf16", 8, "%8", "%9", "%10");
  } else if constexpr (kSize == 8) {
    NANOVLLM_WGMMA_SS("16", "f16", 8, "%8", "%9", "%10");
  } else if constexpr (kBf16) {
    NANOVLLM_WGMMA_SS("8", "bf16", 4, "%4", "%5", "%6");
  } else {
    NANOVLLM_WGMMA_SS("8", "f16", 4, "%4", "%5", "%6");
  }
#undef NANOVLLM_WGMMA_SS
}

/// d = a · b, or d += a · b when `kAdd`, of e4m3 elements: n = 2 · kSize columns, and 32 of k,
/// which take as many bytes as 16 of 16 bits. Both operands in shared memory, stored as m × k and
/// n × k. Sums keep about 14 bits.
template <bool kAdd, int kSize>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[kSize], WgmmaOperand a, WgmmaOperand b) {
  static_assert(kSize == 16 || kSize == 48 || kSize == 64,
                "'wgmma_e4m3' makes 32, 96 or 128 columns");
#define NANOVLLM_WGMMA_E4M3(columns, size, a_register, b_register, add_register)          \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " add_register                              \
               ", 0;"                                                                     \
               "wgmma.mma_async.sync.aligned.m64n" columns                                \
               "k32.f32.e4m3.e4m3 " NANOVLLM_WGMMA_LIST_##size a_register ", " b_register \
                                                                          ", p, 1, 1;}"   \
               : NANOVLLM_WGMMA_OUT_##size(d)                                             \
               : "l"(a.bits), "l"(b.bits), "n"(kAdd ? 1 : 0))
  if constexpr (kSize == 16) {
    NANOVLLM_WGMMA_E4M3("32", 16, "%16", "%17", "%18");
  } else if constexpr (kSize == 48) {
    NANOVLLM_WGMMA_E4M3("96", 48, "%48", "%49", "%50");
  } else {
    NANOVLLM_WGMMA_E4M3("128", 64, "%64", "%65", "%66");
  }
#undef NANOVLLM_WGMMA_E4M3
}

/// d += a · b, n = 2 · kSize columns, `a` in registers, `b` in shared memory, stored as k × n.
template <MmaElement T, int kSize>
__device__ __forceinline__ void wgmma(float (&d)[kSize], const std::uint32_t (&a)[4],
                                      WgmmaOperand b) {
  static_assert(kSize == 32 || kSize == 64, "'wgmma' makes 64 or 128 columns");
#define NANOVLLM_WGMMA_RS_64(type)                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type         \
               " " NANOVLLM_WGMMA_LIST_32 "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;" \
               : NANOVLLM_WGMMA_OUT_32(d)                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits))
#define NANOVLLM_WGMMA_RS_128(type)                                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type        \
               " " NANOVLLM_WGMMA_LIST_64 "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;" \
               : NANOVLLM_WGMMA_OUT_64(d)                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits))
  if constexpr (kSize == 64 && std::same_as<T, bf16>) {
    NANOVLLM_WGMMA_RS_128("bf16");
  } else if constexpr (kSize == 64) {
    NANOVLLM_WGMMA_RS_128("f16");
  } else if constexpr (std::same_as<T, bf16>) {
    NANOVLLM_WGMMA_RS_64("bf16");
  } else {
    NANOVLLM_WGMMA_RS_64("f16");
  }
#undef NANOVLLM_WGMMA_RS_128
#undef NANOVLLM_WGMMA_RS_64
}

/// The same with `b` stored as n × k. `a` must stay as it is until the product is done.
template <MmaElement T, int kSize>
__device__ __forceinline__ void wgmma_rows(float (&d)[kSize], const std::uint32_t (&a)[4],
                                           WgmmaOperand b) {
  static_assert(kSize == 32 || kSize == 48 || kSize == 64,
                "'wgmma_rows' makes 64, 96 or 128 columns");
#define NANOVLLM_WGMMA_RS(columns, type, size, a0, a1, a2, a3, b_register)                    \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type           \
               " " NANOVLLM_WGMMA_LIST_##size "{" a0 ", " a1 ", " a2 ", " a3 "}, " b_register \
                                              ", 1, 1, 1, 0;"                                 \
               : NANOVLLM_WGMMA_OUT_##size(d)                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits))
  if constexpr (kSize == 32 && std::same_as<T, bf16>) {
    NANOVLLM_WGMMA_RS("64", "bf16", 32, "%32", "%33", "%34", "%35", "%36");
  } else if constexpr (kSize == 32) {
    NANOVLLM_WGMMA_RS("64", "f16", 32, "%32", "%33", "%34", "%35", "%36");
  } else if constexpr (kSize == 64 && std::same_as<T, bf16>) {
    NANOVLLM_WGMMA_RS("128", "bf16", 64, "%64", "%65", "%66", "%67", "%68");
  } else if constexpr (kSize == 64) {
    NANOVLLM_WGMMA_RS("128", "f16", 64, "%64", "%65", "%66", "%67", "%68");
  } else if constexpr (std::same_as<T, bf16>) {
    NANOVLLM_WGMMA_RS("96", "bf16", 48, "%48", "%49", "%50", "%51", "%52");
  } else {
    NANOVLLM_WGMMA_RS("96", "f16", 48, "%48", "%49", "%50", "%51", "%52");
  }
#undef NANOVLLM_WGMMA_RS
}

#undef NANOVLLM_WGMMA_OUT_64
#undef NANOVLLM_WGMMA_LIST_64
#undef NANOVLLM_WGMMA_OUT_48
#undef NANOVLLM_WGMMA_LIST_48
#undef NANOVLLM_WGMMA_OUT_32
#undef NANOVLLM_WGMMA_LIST_32
#undef NANOVLLM_WGMMA_OUT_24
#undef NANOVLLM_WGMMA_LIST_24
#undef NANOVLLM_WGMMA_OUT_16
#undef NANOVLLM_WGMMA_LIST_16
#undef NANOVLLM_WGMMA_OUT_8
#undef NANOVLLM_WGMMA_LIST_8
#undef NANOVLLM_WGMMA_OUT_4
#undef NANOVLLM_WGMMA_LIST_4

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Gives registers of this warpgroup back, or takes what others gave; all four warps call it.
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace nanovllm::cuda
