#pragma once
/// Sixteen floats at a time, on every instruction set: how the CPU kernels are written once.
///
/// `portable.hpp`, `avx2.hpp`, `avx512.hpp` and `neon.hpp` define, each in a separate namespace
/// (`portable`, `avx2`, `avx512`, `neon`) and compiled for its own instruction set, the same
/// vocabulary:
///
///   Vec                        sixteen floats
///   zero() broadcast(x)        all lanes alike
///   load(p) store(p, v)        sixteen elements of float, bf16 or half; stores round to nearest
///                              even as the element types do; no alignment needed. Loads of
///                              std::int8_t, and of fp8_e4m3, which give 1/256 of the elements
///   + - * /                    lane by lane
///   fma(a, b, c)               a · b + c, rounded once where the machine can
///   max(a, b)                  a > b ? a : b, hence b where either is NaN
///   select_gt(a, b, x, y)      a > b ? x : y
///   mask_gt mask_ge (a, b)     bit i is set where the comparison holds for lane i
///   reduce_add reduce_max (v)  over the lanes, in a fixed order
///   sum_each(rows)             of sixteen rows, the sum of row i in lane i, in a fixed order
///   round_to<T>(v)             every lane rounded to T and back
///   scale_by_power(p, t)       p · 2ⁿ, n in the low bits of t (see `exp`)
///   load_bits(p)               64 bytes as they are
///   even_bf16 odd_bf16 (v)     the lower, the upper halves of the lanes as bf16, in float
///   transpose(rows)            of a 16 × 16 block in place
///   random_fractions(key, counter, position, out)
///                              upper 24 bits of the words of sixteen counters from `counter` on,
///                              over 2^24: philox4x32(key, {counter + i, position, 0})[j] / 2^32,
///                              rounded down, is fraction 4 i + j of `out`, four vectors
///   kBlockRows, kBlockVecs     the block of accumulators that fits the registers
///
/// An op's kernels are a file `<op>_kernels.inc` written in these words. `for_each_isa.inc`
/// includes it once in each of the namespaces; the op's header then picks one with `NANOVLLM_PICK`.
/// That is the whole mechanism. Two rules keep it sound:
/// - what a .inc file uses from elsewhere must be included before it, so that only its own
///   functions are compiled for the wide instruction set; it contains no lambdas (clang would
///   compile them for the plain one);
/// - a sum of a product is always an explicit `fma`, so that the compiler has nothing to contract
///   and the same formula gives the same bits wherever it is inlined.

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/simd/avx2.hpp"
#include "nanovllm/cpu/simd/avx512.hpp"
#include "nanovllm/cpu/simd/neon.hpp"
#include "nanovllm/cpu/simd/portable.hpp"

/// Asks for a loop of fixed count to be unrolled; a hint for speed alone. (nvcc does not know it.)
#if defined(__CUDACC__)
#define NANOVLLM_UNROLL
#else
#define NANOVLLM_UNROLL _Pragma("GCC unroll 16")
#endif

namespace nanovllm::cpu::detail {

/// The kernel, if there is no choice.
template <class Kernel>
constexpr Kernel* only(Isa, Kernel* kernel) {
  return kernel;
}

}  // namespace nanovllm::cpu::detail

/// The kernel of a name for `isa`, a pointer; instruction sets above avx512 use the avx512 one, and
/// all of aarch64 the neon one. A macro, so that a kernel for less than -march promises is not even
/// instantiated.
#if defined(__aarch64__)
#define NANOVLLM_PICK(isa, ...) \
  ::nanovllm::cpu::detail::only(isa, &::nanovllm::cpu::neon::__VA_ARGS__)
#elif !defined(__x86_64__)
#define NANOVLLM_PICK(isa, ...) \
  ::nanovllm::cpu::detail::only(isa, &::nanovllm::cpu::portable::__VA_ARGS__)
#elif NANOVLLM_LEAST_ISA == 2
#define NANOVLLM_PICK(isa, ...) \
  ::nanovllm::cpu::detail::only(isa, &::nanovllm::cpu::avx512::__VA_ARGS__)
#elif NANOVLLM_LEAST_ISA == 1
#define NANOVLLM_PICK(isa, ...)                                              \
  ((isa) <= ::nanovllm::cpu::Isa::avx2 ? &::nanovllm::cpu::avx2::__VA_ARGS__ \
                                       : &::nanovllm::cpu::avx512::__VA_ARGS__)
#else
#define NANOVLLM_PICK(isa, ...)                                                      \
  ((isa) == ::nanovllm::cpu::Isa::portable ? &::nanovllm::cpu::portable::__VA_ARGS__ \
   : (isa) == ::nanovllm::cpu::Isa::avx2   ? &::nanovllm::cpu::avx2::__VA_ARGS__     \
                                           : &::nanovllm::cpu::avx512::__VA_ARGS__)
#endif

#define NANOVLLM_KERNELS "nanovllm/cpu/simd/math.inc"
#include "nanovllm/cpu/for_each_isa.inc"
