#pragma once
/// Products of `wgmma.cuh` whose operand A is in registers and whose B is stored as n × k.
/// Source: PTX ISA 9.0, "wgmma.mma_async".

#include <concepts>
#include <cstdint>

#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"

namespace nanovllm::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define NANOVLLM_WGMMA_LIST_32                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "          \
  "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31}, "
#define NANOVLLM_WGMMA_OUT_32(d)                                                                  \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define NANOVLLM_WGMMA_LIST_48                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "          \
  "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
  "%42, %43, %44, %45, %46, %47}, "
#define NANOVLLM_WGMMA_OUT_48(d)                                                                  \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),  \
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),  \
      "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define NANOVLLM_WGMMA_LIST_64                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "          \
  "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63}, "
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

/// d += a · b, n = 2 · kSize columns, `a` in registers: each warp's 16 rows as `mma.cuh` has them. They
/// must stay as they are until the product is done.
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

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda
