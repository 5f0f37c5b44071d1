#pragma once
/// Instruction sets of the CPU backend, found at run time.
///
/// A program built for plain x86-64 still runs the widest kernels its machine has: each kernel is
/// compiled once per instruction set inside a NANOVLLM_BEGIN_TARGET region, and picked by `Isa`.
/// What the compiler's -march promises of every machine that the program runs on leaves out the
/// kernels for less (`kLeastIsa`); nothing else depends on it.

#include <cstdint>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/// Compiles the functions up to NANOVLLM_END_TARGET for the instruction sets `features`, a string
/// as in __attribute__((target(...))). Standard and library headers must be included before.
#if defined(__clang__)
#define NANOVLLM_PRAGMA(text) _Pragma(#text)
#define NANOVLLM_BEGIN_TARGET(features) \
  NANOVLLM_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define NANOVLLM_END_TARGET _Pragma("clang attribute pop")
#else
#define NANOVLLM_PRAGMA(text) _Pragma(#text)
#define NANOVLLM_BEGIN_TARGET(features) \
  _Pragma("GCC push_options") NANOVLLM_PRAGMA(GCC target(features))
#define NANOVLLM_END_TARGET _Pragma("GCC pop_options")
#endif

#define NANOVLLM_TARGET_AVX2 "avx2,fma,f16c"
#define NANOVLLM_TARGET_AVX512 "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"
#define NANOVLLM_TARGET_AVX512_BF16 "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"
#define NANOVLLM_TARGET_AMX \
  "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16"

namespace nanovllm::cpu {

/// Instruction sets in ascending order; each includes those before it.
enum class Isa : std::uint8_t {
  portable,     ///< standard C++ alone
  avx2,         ///< AVX2, FMA, F16C
  avx512,       ///< AVX-512 F, BW, VL, DQ
  avx512_bf16,  ///< and bf16 dot products
  amx,          ///< and bf16 tile products
};

[[nodiscard]] constexpr std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::amx: return "amx";
  }
  return "?";
}

/// The least instruction set of any machine that this program runs on, by the compiler's -march:
/// kernels for less are not compiled.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define NANOVLLM_LEAST_ISA 2
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define NANOVLLM_LEAST_ISA 1
#else
#define NANOVLLM_LEAST_ISA 0
#endif
inline constexpr Isa kLeastIsa = static_cast<Isa>(NANOVLLM_LEAST_ISA);

namespace detail {

/// Asks Linux for leave to use the AMX tile registers; it is granted once per process.
inline bool request_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
#else
  return false;
#endif
}

/// Whether CPUID leaf 7 reports AMX-BF16 and AMX-TILE (g++ 12 has no name for them).
inline bool cpu_has_amx() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  return (edx >> 22 & 1u) && (edx >> 24 & 1u);
#else
  return false;
#endif
}

inline Isa detect_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::portable;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return Isa::avx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
  return cpu_has_amx() && request_amx() ? Isa::amx : Isa::avx512_bf16;
#else
  return Isa::portable;
#endif
}

}  // namespace detail

/// The widest instruction set of this machine.
[[nodiscard]] inline Isa best_isa() {
  static const Isa isa = detail::detect_isa();
  return isa;
}

}  // namespace nanovllm::cpu
