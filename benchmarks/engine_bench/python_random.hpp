#pragma once
/// The integers of Python's `random` module, so that a workload stated in Python is the same here.
/// Source: Matsumoto and Nishimura, "Mersenne Twister", 1998; CPython, Lib/random.py for `randint`.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/error.hpp"

namespace engine_bench {

/// `random.seed(seed)` and then any number of `random.randint(low, high)`.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed) {
    std::vector<std::uint32_t> key{static_cast<std::uint32_t>(seed)};
    if (seed >> 32 != 0) key.push_back(static_cast<std::uint32_t>(seed >> 32));
    seed_by_array(key);
  }

  /// Uniform in [low, high]: as many bits as the range needs, drawn again while they exceed it.
  /// Throws Error unless low <= high and the range has less than 2^32 numbers.
  std::int64_t randint(std::int64_t low, std::int64_t high) {
    nanovllm::check(low <= high && high - low < 0xFFFF'FFFF, "randint: bad range [", low, ", ",
                    high, "]");
    const auto count = static_cast<std::uint32_t>(high - low + 1);
    const int num_bits = std::bit_width(count);
    std::uint32_t draw = 0;
    do {
      draw = next() >> (32 - num_bits);
    } while (draw >= count);
    return low + draw;
  }

 private:
  static constexpr std::size_t kSize = 624, kMiddle = 397;

  void seed_by_array(const std::vector<std::uint32_t>& key) {
    state_[0] = 19650218;
    for (std::size_t i = 1; i < kSize; ++i)
      state_[i] = 1812433253u * mixed(i - 1) + static_cast<std::uint32_t>(i);
    std::size_t i = 1;
    const auto advance = [&] {
      if (++i < kSize) return;
      state_[0] = state_[kSize - 1];
      i = 1;
    };
    for (std::size_t k = 0; k < std::max(kSize, key.size()); ++k) {
      const std::size_t j = k % key.size();
      state_[i] = (state_[i] ^ mixed(i - 1) * 1664525u) + key[j] + static_cast<std::uint32_t>(j);
      advance();
    }
    for (std::size_t k = 1; k < kSize; ++k) {
      state_[i] = (state_[i] ^ mixed(i - 1) * 1566083941u) - static_cast<std::uint32_t>(i);
      advance();
    }
    state_[0] = 0x80000000u;
  }

  [[nodiscard]] std::uint32_t mixed(std::size_t i) const { return state_[i] ^ state_[i] >> 30; }

  std::uint32_t next() {
    if (position_ == kSize) twist();
    std::uint32_t x = state_[position_++];
    x ^= x >> 11;
    x ^= x << 7 & 0x9D2C5680u;
    x ^= x << 15 & 0xEFC60000u;
    return x ^ x >> 18;
  }

  void twist() {
    for (std::size_t i = 0; i < kSize; ++i) {
      const std::uint32_t joined =
          (state_[i] & 0x80000000u) | (state_[(i + 1) % kSize] & 0x7FFFFFFFu);
      state_[i] =
          state_[(i + kMiddle) % kSize] ^ joined >> 1 ^ ((joined & 1u) != 0 ? 0x9908B0DFu : 0u);
    }
    position_ = 0;
  }

  std::array<std::uint32_t, kSize> state_{};
  std::size_t position_ = kSize;
};

}  // namespace engine_bench
