#include "nanovllm/core/philox.hpp"

#include <array>
#include <cmath>
#include <cstdint>

#include "catch.hpp"

namespace nv = nanovllm;

using Words = std::array<std::uint32_t, 4>;

// The known answers that Random123 publishes for philox4x32 with ten rounds (kat_vectors).
TEST_CASE("philox4x32-10 gives the published known answers", "[philox]") {
  static_assert(nv::philox4x32(0, {0, 0, 0, 0}) ==
                Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(nv::philox4x32(0, {0, 0, 0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(nv::philox4x32(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(nv::philox4x32(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("Four neighbouring tokens share one counter", "[philox]") {
  const std::uint64_t seed = 0x0123456789abcdef, position = 0x0000000500000007;
  for (std::uint32_t token : {0u, 1u, 2u, 3u, 4u, 151935u}) {
    const Words words = nv::philox4x32(seed, {token / 4, 7, 5, 0});
    CHECK(nv::sampling_bits(seed, position, token) == words[token % 4]);
  }
}

TEST_CASE("Seed, both halves of the position and token all change the bits", "[philox]") {
  const std::uint32_t bits = nv::sampling_bits(1, 2, 3);
  CHECK(nv::sampling_bits(2, 2, 3) != bits);
  CHECK(nv::sampling_bits(1 + (std::uint64_t{1} << 32), 2, 3) != bits);
  CHECK(nv::sampling_bits(1, 3, 3) != bits);
  CHECK(nv::sampling_bits(1, 2 + (std::uint64_t{1} << 32), 3) != bits);
  CHECK(nv::sampling_bits(1, 2, 2) != bits);
  CHECK(nv::sampling_bits(1, 2, 7) != bits);
}

TEST_CASE("The unit interval is open: noise is finite at both ends", "[philox]") {
  CHECK(nv::to_unit_interval(0) == 0x1p-33);
  CHECK(nv::to_unit_interval(0xffffffff) == 1 - 0x1p-33);
  for (std::uint32_t bits : {0u, 1u, 0x80000000u, 0xfffffffeu, 0xffffffffu}) {
    const double u = nv::to_unit_interval(bits);
    CHECK(u > 0);
    CHECK(u < 1);
    const double noise = -std::log(-std::log1p(-u));
    CHECK(noise < 22.9);
    CHECK(noise > -3.2);
  }
}
