#include "nanovllm/with/eight_bits/fp8_kv.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/philox.hpp"

using namespace nanovllm;

namespace {

/// What attention reads of `row`.
template <class T>
std::vector<float> there_and_back(const std::vector<T>& row) {
  const auto n = static_cast<std::int64_t>(row.size());
  std::vector<fp8_e4m3> stored(row.size());
  const float scale = Fp8Kv::store(row.data(), n, stored.data());
  std::vector<float> out(row.size());
  Fp8Kv::load(stored.data(), scale, n, out.data());
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("a row in 8-bit floats is as near as the format says", "[fp8]", float, bf16,
                   half) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const double size = std::exp2(static_cast<double>(seed % 14) - 10);
    std::vector<TestType> row;
    for (std::uint32_t i = 0; i < 1 + seed % 128; ++i) {
      const auto words = philox4x32(seed, {i, 0, 0, 0});
      const double x = (static_cast<double>(words[0]) * 0x1p-31 - 1) * size;
      row.push_back(TestType(static_cast<float>(seed % 3 == 0 ? x * x * x : x)));
    }
    double largest = 0;
    for (const TestType x : row) largest = std::max(largest, std::abs(double{float(x)}));
    const std::vector<float> got = there_and_back(row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const double x = float(row[i]);
      CAPTURE(seed, i, x, largest);
      const double bound = std::max(std::abs(x) / 16, largest / 448 / 1024);
      if (!(std::abs(got[i] - x) <= bound * (1 + 1e-6))) FAIL_CHECK("got " << got[i]);
    }
    if (seed % 3 != 0) continue;
    std::vector<TestType> twice;  // a row that was rounded before stays what it is
    for (const float x : got) twice.push_back(TestType(x));
    if (std::is_same_v<TestType, float>) {
      const std::vector<float> again = there_and_back(twice);
      for (std::size_t i = 0; i < got.size(); ++i)
        CHECK(std::abs(again[i] - got[i]) <= std::abs(got[i]) * 1e-6);
    }
  }
}

TEST_CASE("rows that 8-bit floats cannot scale", "[fp8]") {
  CHECK(there_and_back(std::vector<float>{0.f, -0.f, 0.f}) == std::vector<float>{0.f, 0.f, 0.f});
  CHECK(there_and_back(std::vector<float>{1e-44f, -1e-45f})[0] <= 1e-44f);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float odd : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const float x : there_and_back(std::vector<float>{1.f, odd, 2.f})) CHECK(std::isnan(x));
  }
  const float most = std::numeric_limits<float>::max();
  CHECK(there_and_back(std::vector<float>{most, most / 2})[0] == Approx(most));
}
