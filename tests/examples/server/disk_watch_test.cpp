// What a server says of a disk that takes no more.

#include "../../../examples/server/disk_watch.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "catch.hpp"

using Catch::Matchers::Contains;
using nanovllm::examples::DiskWatch;

TEST_CASE("failures on disk are told once a minute") {
  DiskWatch watch;
  const DiskWatch::Clock::time_point begin{};
  CHECK_FALSE(watch.look(0, begin).has_value());
  int num_lines = 0;
  std::int64_t num_told = 0;
  for (int second = 1; second <= 3600; ++second) {
    const std::optional<std::string> line =
        watch.look(10 * second, begin + std::chrono::seconds(second));
    if (!line) continue;
    ++num_lines;
    num_told = 10 * second;
    CHECK_THAT(*line, Contains(std::to_string(num_told) + " in all"));
  }
  CHECK(num_lines == 60);
  CHECK_FALSE(watch.look(num_told, begin + std::chrono::hours(2)).has_value());
  CHECK_THAT(*watch.look(num_told + 1, begin + std::chrono::hours(2)), Contains("1 files"));
}
