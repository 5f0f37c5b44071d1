#pragma once
/// Instruction sets of the CPU backend, found at run time.
///
/// A program built for plain x86-64 still runs the widest kernels its machine has: each kernel is
/// compiled once per instruction set inside a NANOVLLM_BEGIN_TARGET region, and picked by `Isa`.
/// What the compiler's -march promises of every machine that the program runs on leaves out the
/// kernels for less (`kLeastIsa`); nothing else depends on it. On aarch64 that is NEON at least.

#include <cstdint>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
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

/// Instruction sets; those of one architecture in ascending order, each with those before it.
enum class Isa : std::uint8_t {
  portable,     ///< standard C++ alone
  avx2,         ///< AVX2, FMA, F16C
  avx512,       ///< AVX-512 F, BW, VL, DQ
  avx512_bf16,  ///< and bf16 dot products
  amx,          ///< and bf16 tile products
  neon,         ///< what every aarch64 CPU has
  neon_bf16,    ///< and bf16 matrix products
};

[[nodiscard]] constexpr std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::amx: return "amx";
    case Isa::neon: return "neon";
    case Isa::neon_bf16: return "neon_bf16";
  }
  return "?";
}

/// The least instruction set of any machine that this program runs on, by the compiler's -march:
/// kernels for less are not compiled.
#if defined(__aarch64__)
#define NANOVLLM_LEAST_ISA 5
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define NANOVLLM_LEAST_ISA 2
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define NANOVLLM_LEAST_ISA 1
#else
#define NANOVLLM_LEAST_ISA 0
#endif
inline constexpr Isa kLeastIsa = static_cast<Isa>(NANOVLLM_LEAST_ISA);

/// What an aarch64 CPU may have besides NEON, and kernels may ask for.
struct ArmFeatures {
  bool dotprod = false;  ///< dot products of 8-bit integers
  bool bf16 = false;     ///< dot products and matrix products of bf16
  bool i8mm = false;     ///< matrix products of 8-bit integers
};

/// By Linux's words AT_HWCAP and AT_HWCAP2 (Documentation/arch/arm64/elf_hwcaps.rst).
[[nodiscard]] constexpr ArmFeatures arm_features(std::uint64_t hwcap, std::uint64_t hwcap2) {
  return {.dotprod = (hwcap >> 20 & 1) != 0,
          .bf16 = (hwcap2 >> 14 & 1) != 0,
          .i8mm = (hwcap2 >> 13 & 1) != 0};
}

/// The widest instruction set of an aarch64 CPU.
[[nodiscard]] constexpr Isa arm_isa(const ArmFeatures& features) {
  return features.bf16 ? Isa::neon_bf16 : Isa::neon;
}

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

/// EDX of CPUID leaf 7, for which g++ 12 has no names; 0 where there is none.
inline unsigned cpuid_leaf_7() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return edx;
#endif
  return 0;
}

/// AMX-BF16 and AMX-TILE.
inline bool cpu_has_amx() {
  const unsigned edx = cpuid_leaf_7();
  return (edx >> 22 & 1u) && (edx >> 24 & 1u);
}
inline bool cpu_has_amx_int8() { return cpuid_leaf_7() >> 25 & 1u; }

inline ArmFeatures detect_arm_features() {
#if defined(__aarch64__) && defined(__linux__)
  return arm_features(getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
#else
  return {};
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
#elif defined(__aarch64__)
  return arm_isa(detect_arm_features());
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

/// What this machine has besides NEON; nothing where it is no aarch64.
[[nodiscard]] inline ArmFeatures best_arm_features() {
  static const ArmFeatures features = detail::detect_arm_features();
  return features;
}

/// Whether `isa` is of this machine's architecture and not more than it has.
[[nodiscard]] inline bool has(Isa isa) {
#if defined(__aarch64__)
  constexpr Isa kFirst = Isa::neon;
#else
  constexpr Isa kFirst = Isa::avx2;
#endif
  return isa == Isa::portable || (isa >= kFirst && isa <= best_isa());
}

}  // namespace nanovllm::cpu
