#include "nanovllm/core/number_range.hpp"

#include <catch2/catch.hpp>
#include <cmath>

namespace nanovllm {
namespace {

TEST_CASE("a range has its ends, but for a low end that is left out") {
  constexpr NumberRange closed{0, 1}, open{0, 1, true};
  CHECK(closed.contains(0));
  CHECK(closed.contains(1));
  CHECK_FALSE(open.contains(0));
  CHECK(open.contains(1e-30));
  CHECK_FALSE(closed.contains(std::nextafter(1., 2.)));
  CHECK_FALSE(closed.contains(std::nan("")));
  CHECK(NumberRange{}.contains(-FLT_MAX));
  CHECK_FALSE(NumberRange{}.contains(INFINITY));
}

TEST_CASE("messages write a range as mathematics does") {
  CHECK(NumberRange{}.words() == "a number in the range of a float");
  CHECK(NumberRange{0, FLT_MAX}.words() == "a number >= 0");
  CHECK(NumberRange{0, FLT_MAX, true}.words() == "a number > 0");
  CHECK(NumberRange{0, 1e6}.words() == "a number in [0, 1000000]");
  CHECK(NumberRange{-.5, 1, true}.words() == "a number in (-0.5, 1]");
  CHECK(NumberRange{1, 128}.interval() == "in [1, 128]");
  CHECK(NumberRange{-1, 2147483647.}.interval() == ">= -1");
}

}  // namespace
}  // namespace nanovllm
