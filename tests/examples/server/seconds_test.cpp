// Any number of seconds leads to a point in time.

#include "../../../examples/server/seconds.hpp"

#include <chrono>
#include <limits>

#include "catch.hpp"

using nanovllm::examples::after;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

TEST_CASE("a time that no clock holds is for ever, and not at once") {
  for (const double forever :
       {1e9, 9.3e9, 1e12, 1e18, 1e300, std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()})
    CHECK(after<Clock>(Seconds(forever)) == Clock::time_point::max());
  for (const double seconds : {1e-12, 0.5, 75.0, 1e6, 9.9e8}) {
    const auto begin = Clock::now();
    const Seconds away = after<Clock>(Seconds(seconds)) - begin;
    CHECK(away.count() >= seconds - 1e-6 * (1 + seconds));
    CHECK(away.count() < seconds + 60);
  }
}
