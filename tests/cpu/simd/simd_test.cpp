#include "nanovllm/cpu/simd/simd.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "cpu/op_test.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/philox.hpp"

namespace nanovllm::cpu {

/// What a kernel of the test found when it compared two vectors.
struct Compared {
  std::uint32_t gt, ge;
  float max[kLanes], selected[kLanes];
};

}  // namespace nanovllm::cpu

// Each instruction set's `Vec` is reached through kernels of plain arrays, compiled like an op's.
#define NANOVLLM_KERNELS "cpu/simd_test_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

using namespace nanovllm;
using cpu::Isa;
using cpu::kLanes;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
std::uint64_t bits_of(T x) {
  std::uint64_t out = 0;
  std::memcpy(&out, &x, sizeof(x));
  return out;
}

/// e^x of one value.
float exp_on(Isa isa, float x) {
  float in[kLanes], out[kLanes];
  std::fill_n(in, kLanes, x);
  NANOVLLM_PICK(isa, test_exp)(in, out);
  return out[3];
}

/// Finite floats of every exponent and sign, infinities and NaN.
std::vector<float> assorted_floats() {
  std::vector<float> out;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 65521) {
    out.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (float x : {0.f, -0.f, 1.f, kInf, -kInf, kNan, 65504.f, 65520.f, 1.00390625f, 1.01171875f}) {
    out.push_back(x);
  }
  while (out.size() % kLanes != 0) out.push_back(0.f);
  return out;
}

}  // namespace

TEST_CASE("exp is within 2^-23 of the exact value and has the right ends", "[simd]") {
  for (Isa isa : test::available_isas()) {
    INFO(name(isa));
    double worst = 0;
    for (std::uint32_t bits = 0; bits < 0x42b17218u; bits += 2003) {  // up to 88.7228
      for (std::uint32_t sign : {0u, 0x80000000u}) {
        const float x = std::bit_cast<float>(bits | sign);
        if (x < -87.33f) continue;
        const double exact = std::exp(double{x});
        const double error = std::abs(double{exp_on(isa, x)} - exact) / exact;
        if (!(error <= worst)) worst = error;
      }
    }
    CHECK(worst < 0x1p-23);
    CHECK(exp_on(isa, 0.f) == 1.f);
    CHECK(exp_on(isa, -87.34f) == 0.f);
    CHECK(exp_on(isa, -kInf) == 0.f);
    CHECK(exp_on(isa, -3e38f) == 0.f);
    CHECK(exp_on(isa, 88.73f) == kInf);
    CHECK(exp_on(isa, kInf) == kInf);
    CHECK(std::isfinite(exp_on(isa, 88.72f)));
    CHECK(std::isnan(exp_on(isa, kNan)));
  }
}

TEMPLATE_TEST_CASE("loads and stores convert as the element types do", "[simd]", float, bf16,
                   half) {
  const std::vector<float> values = assorted_floats();
  std::vector<TestType> elements(values.size()), stored(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) elements[i] = TestType(values[i]);
  for (Isa isa : test::available_isas()) {
    INFO(name(isa));
    const auto convert = NANOVLLM_PICK(isa, test_convert<TestType>);
    std::vector<float> loaded(values.size()), rounded(values.size());
    for (std::size_t i = 0; i < values.size(); i += kLanes) {
      convert(&values[i], &elements[i], &stored[i], &loaded[i], &rounded[i]);
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = elements[i];
      if (std::isnan(values[i])) {
        if (!std::isnan(static_cast<float>(stored[i])) || !std::isnan(rounded[i])) ++wrong;
        continue;
      }
      if (bits_of(stored[i]) != bits_of(elements[i])) ++wrong;
      if (bits_of(loaded[i]) != bits_of(expected) || bits_of(rounded[i]) != bits_of(expected)) {
        ++wrong;
      }
    }
    CHECK(wrong == 0);
  }
}

TEMPLATE_TEST_CASE("partial loads and stores touch nothing beyond the count", "[simd]", float, bf16,
                   half) {
  const TestType poison = TestType(kNan);
  for (Isa isa : test::available_isas()) {
    const auto copy = NANOVLLM_PICK(isa, test_copy_first<TestType>);
    for (int count = 0; count <= kLanes; ++count) {
      // Exactly as long as the count: a sanitiser sees a read or write beyond.
      std::vector<TestType> from;
      from.reserve(1);  // a pointer that is not null even for nothing
      from.resize(static_cast<std::size_t>(count), TestType(2.f));
      std::vector<TestType> to(static_cast<std::size_t>(count) + 2, poison);
      float sum = -1;
      copy(from.data(), to.data(), count, &sum);
      CHECK(sum == 2.f * static_cast<float>(count));
      CHECK(std::count_if(to.begin(), to.end(),
                          [](TestType x) { return static_cast<float>(x) == 2.f; }) == count);
      CHECK(std::isnan(static_cast<float>(to[static_cast<std::size_t>(count)])));
    }
  }
}

TEST_CASE("comparisons, maxima and selections treat NaN as documented", "[simd]") {
  const float a[kLanes] = {1, 2, kNan, 3, kInf, -kInf, 0, -0.f, kNan, 5, 6, 7, 8, 9, 10, 11};
  const float b[kLanes] = {2, 1, 3, kNan, 4, kInf, -0.f, 0, kNan, 5, 5, 8, 7, 9, 11, 10};
  for (Isa isa : test::available_isas()) {
    INFO(name(isa));
    cpu::Compared out{};
    NANOVLLM_PICK(isa, test_compare)(a, b, &out);
    for (int i = 0; i < kLanes; ++i) {
      INFO(i);
      CHECK((out.gt >> i & 1u) == (a[i] > b[i] ? 1u : 0u));
      CHECK((out.ge >> i & 1u) == (a[i] >= b[i] ? 1u : 0u));
      CHECK(bits_of(out.max[i]) == bits_of(a[i] > b[i] ? a[i] : b[i]));
      CHECK(out.selected[i] == (a[i] > b[i] ? 1.f : -1.f));
    }
    CHECK(out.gt >> kLanes == 0);
    CHECK(out.ge >> kLanes == 0);
  }
}

TEST_CASE("reductions see every lane and transpose is exact", "[simd]") {
  for (Isa isa : test::available_isas()) {
    INFO(name(isa));
    const auto reduce = NANOVLLM_PICK(isa, test_reduce);
    for (int i = 0; i < kLanes; ++i) {
      float lanes[kLanes] = {}, sum = 0, largest = 0;
      std::fill_n(lanes, kLanes, 1.f);
      lanes[i] = 17.f;
      reduce(lanes, &sum, &largest);
      CHECK(sum == 32.f);
      CHECK(largest == 17.f);
    }
    std::vector<float> square(kLanes * kLanes), transposed(square.size());
    for (std::size_t i = 0; i < square.size(); ++i) square[i] = static_cast<float>(i);
    NANOVLLM_PICK(isa, test_transpose)(square.data(), transposed.data());
    for (std::size_t i = 0; i < kLanes; ++i) {
      for (std::size_t j = 0; j < kLanes; ++j) {
        REQUIRE(transposed[j * kLanes + i] == square[i * kLanes + j]);
      }
    }
  }
}

TEST_CASE("halves of a lane are its two bf16 values", "[simd]") {
  bf16 pairs[2 * kLanes];
  for (int i = 0; i < 2 * kLanes; ++i) pairs[i] = bf16(static_cast<float>(i) - 7.5f);
  for (Isa isa : test::available_isas()) {
    INFO(name(isa));
    float even[kLanes], odd[kLanes];
    NANOVLLM_PICK(isa, test_pairs)(pairs, even, odd);
    for (int i = 0; i < kLanes; ++i) {
      CHECK(even[i] == static_cast<float>(pairs[2 * i]));
      CHECK(odd[i] == static_cast<float>(pairs[2 * i + 1]));
    }
  }
}

TEST_CASE("random fractions are philox's words over 2^32, rounded down to 24 bits", "[simd]") {
  constexpr std::uint64_t kKey = 0xfedcba9876543210, kPosition = 0x89abcdef01234567;
  for (Isa isa : test::available_isas()) {
    INFO(name(isa));
    for (std::uint32_t counter : {0u, 16u, 37'984u, 0xfffffff8u}) {
      float fractions[4 * kLanes];
      NANOVLLM_PICK(isa, test_fractions)(kKey, counter, kPosition, fractions);
      for (std::uint32_t i = 0; i < 4 * kLanes; ++i) {
        const auto words = philox4x32(kKey, {counter + i / 4, static_cast<std::uint32_t>(kPosition),
                                             static_cast<std::uint32_t>(kPosition >> 32), 0});
        REQUIRE(fractions[i] == static_cast<float>(words[i % 4] >> 8) * 0x1p-24f);
      }
    }
  }
}

TEST_CASE("elements of eight bits are loaded exactly, 8-bit floats over 256", "[simd]") {
  std::int8_t integers[256];
  fp8_e4m3 floats[256];
  for (int i = 0; i < 256; ++i) {
    integers[i] = static_cast<std::int8_t>(i - 128);
    floats[i].bits = static_cast<std::uint8_t>(i);
  }
  for (Isa isa : test::available_isas()) {
    INFO(name(isa));
    for (int i = 0; i < 256; i += kLanes) {
      float out[kLanes];
      NANOVLLM_PICK(isa, test_load<std::int8_t>)(integers + i, out);
      for (int j = 0; j < kLanes; ++j) CHECK(out[j] == static_cast<float>(i + j - 128));
      NANOVLLM_PICK(isa, test_load<fp8_e4m3>)(floats + i, out);
      for (int j = 0; j < kLanes; ++j) {
        const float expected = static_cast<float>(floats[i + j]);
        CHECK(std::isnan(out[j]) == std::isnan(expected));
        if (!std::isnan(expected)) CHECK(bits_of(out[j] * 256.f) == bits_of(expected));
      }
    }
  }
}

TEST_CASE("sums of sixteen rows are in the order of the rows", "[simd]") {
  float square[kLanes * kLanes];
  for (int i = 0; i < kLanes * kLanes; ++i) square[i] = static_cast<float>(i * i % 251);
  for (Isa isa : test::available_isas()) {
    INFO(name(isa));
    float out[kLanes];
    NANOVLLM_PICK(isa, test_sum_each)(square, out);
    for (int i = 0; i < kLanes; ++i) {
      CHECK(out[i] == std::accumulate(square + i * kLanes, square + (i + 1) * kLanes, 0.f));
    }
  }
}
