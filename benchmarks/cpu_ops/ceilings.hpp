#pragma once
/// What this machine can do at most: probes of memory bandwidth and of arithmetic in registers.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/context.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cpu_ops {

namespace cpu = nanovllm::cpu;

/// Where probes leave their results, so that nothing is optimised away.
inline std::atomic<std::uint64_t> probe_sink{0};

#if defined(__x86_64__)

/// Hides a register's value from the compiler, so that it neither folds nor drops what follows.
template <class Vector>
void opaque(Vector& value) {
  asm volatile("" : "+v"(value));
}

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AVX2)
/// One pass over bytes, a multiple of 256. Prefetching 2 KiB ahead makes it a third faster on some
/// machines and slower on none that we tried.
inline std::uint64_t read_avx2(const char* data, std::int64_t bytes) {
  __m256i sum[8] = {};
  for (std::int64_t i = 0; i < bytes; i += 256) {
    for (int j = 0; j < 8; ++j) {
      const auto* at = reinterpret_cast<const __m256i*>(data + i + 32 * j);
      sum[j] = _mm256_add_epi64(sum[j], _mm256_load_si256(at));
      if (j % 2 == 0) _mm_prefetch(data + i + 32 * j + 2048, _MM_HINT_T0);
    }
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_add_epi64(sum[0], sum[j]);
  std::uint64_t parts[4];
  std::memcpy(parts, &sum[0], sizeof(parts));
  return parts[0] + parts[1] + parts[2] + parts[3];
}

/// Twelve chains of `rounds` multiply-adds of eight floats each; returns the operations done.
template <int... i>
double fma_avx2(int rounds, std::integer_sequence<int, i...>) {
  __m256 sum[] = {_mm256_set1_ps(static_cast<float>(i))...};
  const __m256 factor = _mm256_set1_ps(0.5f);
  (opaque(sum[i]), ...);
  for (int round = 0; round < rounds; ++round) {
    ((sum[i] = _mm256_fmadd_ps(sum[i], factor, factor)), ...);
  }
  (opaque(sum[i]), ...);
  return rounds * 8.0 * 2 * sizeof...(i);
}
NANOVLLM_END_TARGET

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AVX512_BF16)
template <int... i>
double fma_avx512(int rounds, std::integer_sequence<int, i...>) {
  __m512 sum[] = {_mm512_set1_ps(static_cast<float>(i))...};
  const __m512 factor = _mm512_set1_ps(0.5f);
  (opaque(sum[i]), ...);
  for (int round = 0; round < rounds; ++round) {
    ((sum[i] = _mm512_fmadd_ps(sum[i], factor, factor)), ...);
  }
  (opaque(sum[i]), ...);
  return rounds * 16.0 * 2 * sizeof...(i);
}

template <int... i>
double dot_avx512_bf16(int rounds, std::integer_sequence<int, i...>) {
  __m512 sum[] = {_mm512_set1_ps(static_cast<float>(i))...};
  const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f003f00));
  (opaque(sum[i]), ...);
  for (int round = 0; round < rounds; ++round) {
    ((sum[i] = _mm512_dpbf16_ps(sum[i], factor, factor)), ...);
  }
  (opaque(sum[i]), ...);
  return rounds * 32.0 * 2 * sizeof...(i);
}
NANOVLLM_END_TARGET

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AMX)
inline double dot_amx(int rounds) {
  struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return rounds * 4.0 * 16 * 16 * 32 * 2;
}
NANOVLLM_END_TARGET

#endif

inline double fma_portable(int rounds) {
  float sum[32] = {};
  for (int i = 0; i < rounds; ++i) {
    for (float& s : sum) s = s * 0.5f + 0.5f;
  }
  float total = 0;
  for (float s : sum) total += s;
  probe_sink += static_cast<std::uint64_t>(total);
  return rounds * 32.0 * 2;
}

/// Bytes per second at which all threads together read a buffer larger than any cache.
inline double read_bandwidth(const cpu::Context& context) {
  constexpr std::int64_t kBytes = std::int64_t{5} << 28, kGrain = std::int64_t{1} << 20;
  static cpu::AlignedBuffer<char> buffer = [] {
    cpu::AlignedBuffer<char> out(kBytes + 4096);  // what is prefetched past the end exists
    std::memset(out.data(), 1, static_cast<std::size_t>(kBytes));
    return out;
  }();
  const auto start = std::chrono::steady_clock::now();
  context.pool->parallel_for(kBytes, kGrain, [](std::int64_t begin, std::int64_t end, int) {
#if defined(__x86_64__)
    if (cpu::best_isa() >= cpu::Isa::avx2) {
      probe_sink += read_avx2(buffer.data() + begin, end - begin);
      return;
    }
#endif
    std::uint64_t sum = 0;
    for (std::int64_t i = begin; i < end; i += 8) {
      std::uint64_t word;
      std::memcpy(&word, buffer.data() + i, sizeof(word));
      sum += word;
    }
    probe_sink += sum;
  });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  return static_cast<double>(kBytes) / time.count();
}

/// Operations per second of all threads together, multiply and add counted apart, in registers,
/// with the widest instructions that `context.isa` has for products of `dtype`.
inline double arithmetic_rate(const cpu::Context& context, nanovllm::DType dtype) {
  constexpr int kRounds = 100'000;
  double (*probe)(int) = fma_portable;
#if defined(__x86_64__)
  const bool is_bf16 = dtype == nanovllm::DType::bfloat16;
  if (context.isa >= cpu::Isa::avx2)
    probe = [](int rounds) { return fma_avx2(rounds, std::make_integer_sequence<int, 12>()); };
  if (context.isa >= cpu::Isa::avx512)
    probe = [](int rounds) { return fma_avx512(rounds, std::make_integer_sequence<int, 24>()); };
  if (context.isa >= cpu::Isa::avx512_bf16 && is_bf16)
    probe = [](int rounds) {
      return dot_avx512_bf16(rounds, std::make_integer_sequence<int, 24>());
    };
  if (context.isa >= cpu::Isa::amx && is_bf16) probe = dot_amx;
#endif
  const std::int64_t parts = 50 * context.pool->num_threads();
  std::atomic<double> work{0};
  const auto start = std::chrono::steady_clock::now();
  context.pool->parallel_for(parts, 1, [&](std::int64_t, std::int64_t, int) {
    work.fetch_add(probe(kRounds), std::memory_order_relaxed);
  });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  return work.load() / time.count();
}

}  // namespace cpu_ops
