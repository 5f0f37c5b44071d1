#pragma once
/// Philox4x32-10: a counter-based random number generator without state.
/// Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

#include <array>
#include <cstdint>

#include "nanovllm/core/config.hpp"

namespace nanovllm {

/// Four independent uniform 32-bit words for every (key, counter). Equal inputs give equal words on
/// every backend.
[[nodiscard]] NANOVLLM_HD constexpr std::array<std::uint32_t, 4> philox4x32(
    std::uint64_t key, std::array<std::uint32_t, 4> counter) {
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// The word that belongs to candidate `token` of the sample at `position` of a request with `seed`.
[[nodiscard]] NANOVLLM_HD constexpr std::uint32_t sampling_bits(std::uint64_t seed,
                                                                std::uint64_t position,
                                                                std::uint32_t token) {
  return philox4x32(seed, {token / 4, static_cast<std::uint32_t>(position),
                           static_cast<std::uint32_t>(position >> 32), 0})[token % 4];
}

/// Maps 32 random bits into the open interval (0, 1).
[[nodiscard]] NANOVLLM_HD constexpr double to_unit_interval(std::uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

}  // namespace nanovllm
