#pragma once
/// Random seeds from the operating system.

#include <cstdint>

#include <sys/random.h>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// 64 bits of the system's randomness. Throws Error where it gives none. (<random> alone would cost
/// every program half a second to compile.)
[[nodiscard]] inline std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  check(getentropy(&seed, sizeof seed) == 0, "the system gives no random numbers");
  return seed;
}

}  // namespace nanovllm
