#include "nanovllm/core/dtype.hpp"

#include <cmath>
#include <limits>

#include "catch.hpp"

using nanovllm::bf16;
using nanovllm::half;

namespace {

/// The nearest 16-bit value by search over all finite ones; ties go to the even bit pattern.
template <class T>
std::uint16_t nearest_by_search(float value) {
  double best = std::numeric_limits<double>::infinity();
  std::uint16_t best_bits = 0;
  for (std::uint32_t bits = 0; bits < 0x8000u; ++bits) {
    T candidate;
    candidate.bits = static_cast<std::uint16_t>(bits);
    if (!std::isfinite(static_cast<float>(candidate))) continue;
    const double distance =
        std::abs(static_cast<double>(std::abs(value)) - static_cast<float>(candidate));
    if (distance < best || (distance == best && bits % 2 == 0)) {
      best = distance;
      best_bits = static_cast<std::uint16_t>(bits);
    }
  }
  return static_cast<std::uint16_t>(best_bits | (std::signbit(value) ? 0x8000u : 0u));
}

}  // namespace

TEMPLATE_TEST_CASE("16-bit floats survive the round trip through float", "[dtype]", bf16, half) {
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    TestType value;
    value.bits = static_cast<std::uint16_t>(bits);
    const float f = value;
    if (std::isnan(f)) {
      REQUIRE(std::isnan(static_cast<float>(TestType(f))));
    } else {
      REQUIRE(TestType(f).bits == value.bits);
    }
  }
}

TEMPLATE_TEST_CASE("conversion from float rounds to nearest even", "[dtype]", bf16, half) {
  const float values[] = {0.1f,     1.00390625f, 1.01171875f, 1.00048828f, -3.14159f, 65504.f,
                          65519.9f, 6.1e-5f,     5.9e-8f,     2.98e-8f,    2.99e-8f,  -1e-7f,
                          0x1p-25f, 0x1.8p-24f,  1234.5678f,  0.333333f};
  for (float value : values) {
    INFO(value);
    CHECK(TestType(value).bits == nearest_by_search<TestType>(value));
  }
}

TEST_CASE("half overflows to infinity at 65520 and bf16 keeps the range of float", "[dtype]") {
  CHECK(std::isinf(static_cast<float>(half(65520.f))));
  CHECK(static_cast<float>(half(65519.f)) == 65504.f);
  CHECK(std::isfinite(static_cast<float>(bf16(3e38f))));
  CHECK(std::isinf(static_cast<float>(bf16(std::numeric_limits<float>::max()))));
}
