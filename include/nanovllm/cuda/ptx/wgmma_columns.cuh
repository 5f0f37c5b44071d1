#pragma once
/// Products of `wgmma.cuh` whose columns are no power of two: n = 24, 48, 96 and 192; and those whose
/// operand A is in registers and B stored as n × k.
/// Source: PTX ISA 9.0, "wgmma.mma_async".

#include <concepts>
#include <cstdint>

#include "nanovllm/cuda/ptx/wgmma.cuh"

namespace nanovllm::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define NANOVLLM_WGMMA_LIST_12 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, "
#define NANOVLLM_WGMMA_OUT_12(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define NANOVLLM_WGMMA_LIST_24 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, " \
  "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
#define NANOVLLM_WGMMA_OUT_24(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define NANOVLLM_WGMMA_LIST_32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, " \
  "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}, "
#define NANOVLLM_WGMMA_OUT_32(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31])
#define NANOVLLM_WGMMA_LIST_64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, " \
  "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
  "%60, %61, %62, %63}, "
#define NANOVLLM_WGMMA_OUT_64(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
  "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
  "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
  "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
  "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define NANOVLLM_WGMMA_LIST_48 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, " \
  "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
#define NANOVLLM_WGMMA_OUT_48(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
  "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
  "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define NANOVLLM_WGMMA_LIST_96 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, " \
  "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
  "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
#define NANOVLLM_WGMMA_OUT_96(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
  "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
  "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
  "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
  "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), \
  "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), \
  "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), \
  "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), \
  "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])

/// d += a · b, n = 2 · kSize columns: any that there is a product for. Both operands in shared memory,
/// stored as m × k and n × k.
template <MmaElement T, int kSize>
__device__ __forceinline__ void wgmma_add(float (&d)[kSize], WgmmaOperand a, WgmmaOperand b) {
#define NANOVLLM_WGMMA_SS(columns, type, size, a_register, b_register)                        \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type           \
               " " NANOVLLM_WGMMA_LIST_##size a_register ", " b_register ", 1, 1, 1, 0, 0;"   \
               : NANOVLLM_WGMMA_OUT_##size(d)                                                 \
               : "l"(a.bits), "l"(b.bits))
  constexpr bool kBf16 = std::same_as<T, bf16>;
  if constexpr ((kSize & (kSize - 1)) == 0) {
    wgmma<T, true>(d, a, b);
  } else if constexpr (kSize == 12 && kBf16) {
    NANOVLLM_WGMMA_SS("24", "bf16", 12, "%12", "%13");
  } else if constexpr (kSize == 12) {
    NANOVLLM_WGMMA_SS("24", "f16", 12, "%12", "%13");
  } else if constexpr (kSize == 24 && kBf16) {
    NANOVLLM_WGMMA_SS("48", "bf16", 24, "%24", "%25");
  } else if constexpr (kSize == 24) {
    NANOVLLM_WGMMA_SS("48", "f16", 24, "%24", "%25");
  } else if constexpr (kSize == 48 && kBf16) {
    NANOVLLM_WGMMA_SS("96", "bf16", 48, "%48", "%49");
  } else if constexpr (kSize == 48) {
    NANOVLLM_WGMMA_SS("96", "f16", 48, "%48", "%49");
  } else if constexpr (kSize == 96 && kBf16) {
    NANOVLLM_WGMMA_SS("192", "bf16", 96, "%96", "%97");
  } else {
    static_assert(kSize == 96, "'wgmma_add' has no product of so many columns");
    NANOVLLM_WGMMA_SS("192", "f16", 96, "%96", "%97");
  }
#undef NANOVLLM_WGMMA_SS
}

/// The same with `a` in registers, the fragment of `mma.cuh` in each warp: n = 64, 96 or 128.
template <MmaElement T, int kSize>
__device__ __forceinline__ void wgmma_add(float (&d)[kSize], const std::uint32_t (&a)[4],
                                          WgmmaOperand b) {
#define NANOVLLM_WGMMA_RS(columns, type, size, a0, a1, a2, a3, b_register)                        \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type               \
               " " NANOVLLM_WGMMA_LIST_##size "{" a0 ", " a1 ", " a2 ", " a3 "}, " b_register     \
               ", 1, 1, 1, 0;"                                                                    \
               : NANOVLLM_WGMMA_OUT_##size(d)                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits))
  constexpr bool kBf16 = std::same_as<T, bf16>;
  if constexpr (kSize == 32 && kBf16) {
    NANOVLLM_WGMMA_RS("64", "bf16", 32, "%32", "%33", "%34", "%35", "%36");
  } else if constexpr (kSize == 32) {
    NANOVLLM_WGMMA_RS("64", "f16", 32, "%32", "%33", "%34", "%35", "%36");
  } else if constexpr (kSize == 48 && kBf16) {
    NANOVLLM_WGMMA_RS("96", "bf16", 48, "%48", "%49", "%50", "%51", "%52");
  } else if constexpr (kSize == 48) {
    NANOVLLM_WGMMA_RS("96", "f16", 48, "%48", "%49", "%50", "%51", "%52");
  } else if constexpr (kSize == 64 && kBf16) {
    NANOVLLM_WGMMA_RS("128", "bf16", 64, "%64", "%65", "%66", "%67", "%68");
  } else {
    static_assert(kSize == 64, "'wgmma_add' has no product of so many columns");
    NANOVLLM_WGMMA_RS("128", "f16", 64, "%64", "%65", "%66", "%67", "%68");
  }
#undef NANOVLLM_WGMMA_RS
}

#undef NANOVLLM_WGMMA_OUT_96
#undef NANOVLLM_WGMMA_LIST_96
#undef NANOVLLM_WGMMA_OUT_48
#undef NANOVLLM_WGMMA_LIST_48
#undef NANOVLLM_WGMMA_OUT_64
#undef NANOVLLM_WGMMA_LIST_64
#undef NANOVLLM_WGMMA_OUT_32
#undef NANOVLLM_WGMMA_LIST_32
#undef NANOVLLM_WGMMA_OUT_24
#undef NANOVLLM_WGMMA_LIST_24
#undef NANOVLLM_WGMMA_OUT_12
#undef NANOVLLM_WGMMA_LIST_12

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda
