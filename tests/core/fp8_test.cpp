#include "nanovllm/core/fp8.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/philox.hpp"

using nanovllm::fp8_e4m3;
using nanovllm::philox4x32;

namespace {

fp8_e4m3 of_bits(std::uint32_t bits) {
  fp8_e4m3 out;
  out.bits = static_cast<std::uint8_t>(bits);
  return out;
}

/// The value that the format gives these bits, from its definition.
double value_of(std::uint32_t bits) {
  const std::uint32_t exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double magnitude = exponent == 0
                               ? mantissa * std::ldexp(1., -9)
                               : (8 + mantissa) * std::ldexp(1., static_cast<int>(exponent) - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

/// The nearest value by search; ties go to the even bit pattern.
std::uint32_t nearest_by_search(float x) {
  double best = std::numeric_limits<double>::infinity();
  std::uint32_t best_bits = 0;
  for (std::uint32_t bits = 0; bits < 0x7f; ++bits) {
    const double distance = std::abs(std::abs(double{x}) - value_of(bits));
    if (distance < best || (distance == best && bits % 2 == 0)) best = distance, best_bits = bits;
  }
  return best_bits | (std::signbit(x) ? 0x80u : 0u);
}

}  // namespace

TEST_CASE("each of the 256 patterns of e4m3 has the value of its definition", "[fp8]") {
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    CAPTURE(bits);
    const float x = of_bits(bits);
    if ((bits & 0x7f) == 0x7f) {
      CHECK(std::isnan(x));
      CHECK(std::isnan(static_cast<float>(fp8_e4m3(x))));
      continue;
    }
    CHECK(double{x} == value_of(bits));
    CHECK(std::signbit(x) == (bits >= 128));
    CHECK(fp8_e4m3(x).bits == bits);
  }
  static_assert(float(fp8_e4m3(448.f)) == 448.f && fp8_e4m3(-2.f).bits == 0xc0);
}

TEST_CASE("e4m3 rounds to the nearest, ties to even, and saturates", "[fp8]") {
  std::vector<float> inputs{447.9f,
                            448.f,
                            448.1f,
                            463.9f,
                            464.f,
                            465.f,
                            1e30f,
                            0.f,
                            -0.f,
                            1e-30f,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::denorm_min()};
  for (std::uint32_t bits = 0; bits < 0x7e; ++bits) {  // midpoints, and their neighbours
    const auto middle = static_cast<float>((value_of(bits) + value_of(bits + 1)) / 2);
    for (const float x : {std::nextafter(middle, 0.f), middle, std::nextafter(middle, 1e9f)})
      inputs.push_back(x);
  }
  for (std::uint32_t i = 0; i < 20000; ++i) {
    const auto words = philox4x32(5, {i, 0, 0, 0});
    const double exponent = static_cast<double>(words[0]) * 0x1p-32 * 24 - 14;
    inputs.push_back(static_cast<float>(std::exp2(exponent)));
  }
  for (const float x : inputs) {
    CAPTURE(x);
    if (fp8_e4m3(x).bits != nearest_by_search(x)) FAIL_CHECK("rounds to another value");
    if (fp8_e4m3(-x).bits != nearest_by_search(-x)) FAIL_CHECK("rounds to another value");
  }
  CHECK(fp8_e4m3(std::numeric_limits<float>::quiet_NaN()).bits == 0x7f);
  CHECK(fp8_e4m3(std::copysign(std::numeric_limits<float>::quiet_NaN(), -1.f)).bits == 0xff);
}
