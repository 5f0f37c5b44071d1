#include "nanovllm/engine/extras.hpp"

#include <cstdint>
#include <string>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/engine_config.hpp"

using namespace nanovllm;

namespace {

struct Colour {
  std::string name = "blue";
};

struct Width {
  int value = 1;

  [[nodiscard]] std::string unread() const {
    return value == 1 ? std::string() : "nothing is wide";
  }
  [[nodiscard]] Extras::Numbers shared() const { return {{"Width::value", value}}; }
};

}  // namespace

TEST_CASE("extras have a value of each type") {
  Extras extras{Colour{"red"}, Width{3}};
  CHECK(extras.find<Colour>()->name == "red");
  CHECK(extras.of<Width>().value == 3);
  CHECK(extras.find<int>() == nullptr);
  CHECK(extras.of<int>() == 0);
  extras.set(Width{5});
  CHECK(extras.of<Width>().value == 5);
  CHECK(extras.of<Colour>().name == "red");
  const Extras copy = extras;
  extras.set(Colour{});
  CHECK(copy.of<Colour>().name == "red");
  CHECK(extras.of<Colour>().name == "blue");
  const EngineConfig config{.extras = {Width{7}}};
  CHECK(config.extras.of<Width>().value == 7);
  EngineStats stats;
  CHECK(stats.of<Width>().value == 1);
  stats.extras.set(Width{9});
  CHECK(stats.of<Width>().value == 9);
}

TEST_CASE("a setting that nothing reads is told of, if it says so") {
  const Extras read{Width{3}};
  CHECK(read.find<Width>() != nullptr);
  CHECK_NOTHROW(read.check_read());
  const Extras unread{Colour{"red"}, Width{3}};
  CHECK(unread.find<int>() == nullptr);
  CHECK_THROWS_WITH(unread.check_read(), "nothing is wide");
  CHECK_THROWS_AS(unread.check_read(), ConfigError);
  CHECK_NOTHROW(Extras{Width{}}.check_read());
  CHECK_NOTHROW(Extras{Colour{}}.check_read());
}

TEST_CASE("numbers that processes share") {
  const Extras extras{Colour{}, Width{4}};
  REQUIRE(extras.shared().size() == 1);
  CHECK(std::string(extras.shared()[0].first) == "Width::value");
  CHECK(extras.shared()[0].second == 4);
  CHECK(Extras().shared().empty());
}
