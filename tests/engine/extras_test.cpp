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
  [[nodiscard]] std::string sizes() const { return concat("Width::value = ", value); }
};

/// Of tiers alone.
struct Depth {
  int value = 0;

  [[nodiscard]] static std::string unread(const std::string& tiers) {
    return concat(tiers, " have no depth");
  }
  void validate() const { nanovllm::check<ConfigError>(value >= 0, "Depth: expected >= 0"); }
};

/// Counts its copies.
struct Counted {
  int value = 0;
  static inline int num_copies = 0;

  Counted(int n = 0) : value(n) {}  // NOLINT(google-explicit-constructor)
  Counted(const Counted& other) : value(other.value) { ++num_copies; }
  Counted& operator=(const Counted&) = default;
  ~Counted() = default;
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
  EngineConfig config{.extras = {Width{7}}};
  CHECK(config.extras.of<Width>().value == 7);
  ++config.extras.edit<Width>().value;
  config.extras.edit<Colour>().name += "ish";
  CHECK(config.extras.of<Width>().value == 8);
  CHECK(config.extras.of<Colour>().name == "blueish");
  EngineStats stats;
  CHECK(stats.of<Width>().value == 1);
  stats.extras.set(Width{9});
  CHECK(stats.of<Width>().value == 9);
}

TEST_CASE("a setting that nothing reads is told of, if it says so") {
  const Extras read{Width{3}};
  CHECK(read.find<Width>() != nullptr);
  CHECK_NOTHROW(read.check());
  const Extras unread{Colour{"red"}, Width{3}};
  CHECK(unread.find<int>() == nullptr);
  CHECK_THROWS_WITH(unread.check(), "nothing is wide");
  CHECK_THROWS_AS(unread.check(), ConfigError);
  CHECK_NOTHROW(Extras{Width{}}.check());
  CHECK_NOTHROW(Extras{Colour{}}.check());
  CHECK_THROWS_WITH(Extras{Depth{}}.check("Lakes"), "Lakes have no depth");
}

TEST_CASE("a setting out of range is told of, read or not") {
  Extras extras{Depth{3}};
  CHECK(extras.of<Depth>().value == 3);
  CHECK_NOTHROW(extras.check());
  extras.set(Depth{-1});
  CHECK(extras.of<Depth>().value == -1);
  CHECK_THROWS_WITH(extras.check(), "Depth: expected >= 0");
  CHECK_THROWS_AS(extras.check(), ConfigError);
}

TEST_CASE("statistics are updated and copied in place") {
  Extras from, to;
  from.update(Counted{1});
  from.update(Width{2});
  to = from;
  const int before = Counted::num_copies;
  from.update(Counted{5});
  from.update(Width{6});
  to = from;
  CHECK(Counted::num_copies == before);
  CHECK((to.find<Counted>()->value == 5 && to.of<Width>().value == 6));
  to = Extras{Width{7}, Counted{8}};
  from = to;  // in another order
  CHECK((from.find<Counted>()->value == 8 && from.of<Width>().value == 7));
  from = Extras{};
  CHECK(from.find<Counted>() == nullptr);
}

TEST_CASE("numbers that processes share") {
  const Extras extras{Colour{}, Width{4}};
  REQUIRE(extras.shared().size() == 1);
  CHECK(std::string(extras.shared()[0].first) == "Width::value");
  CHECK(extras.shared()[0].second == 4);
  CHECK(Extras().shared().empty());
}

TEST_CASE("sizes that memory depends on") {
  const Extras extras{Colour{}, Width{4}};
  CHECK(extras.sizes() == ", Width::value = 4");
  CHECK(Extras().sizes().empty());
}
