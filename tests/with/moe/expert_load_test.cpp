// How evenly tokens were spread over experts.

#include "nanovllm/with/moe/expert_load.hpp"

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/with/moe/experts.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;

namespace {

/// A backend whose buffers cannot be read while ops run.
struct NoEarlyBackend : CpuBackend {
  using CpuBackend::CpuBackend;
  template <class T>
  void download_early(const T*, T*, std::size_t) const = delete;
};

}  // namespace

TEST_CASE("experts are counted where the backend can say how many", "[moe]") {
  Single comm = std::move(Single::make(1).front());
  CpuBackend backend({.num_threads = 1});
  using Context = LayerContext<Elements<float>, CpuBackend, Single>;
  ExpertCounts<Context> counts(Context{backend, comm}, 2, 3);
  CHECK(counts.load().tokens == std::vector<std::int64_t>(6));
  *counts.of(1).at(2) = 7;
  CHECK(counts.load().tokens == std::vector<std::int64_t>{0, 0, 0, 0, 0, 7});
  CHECK(counts.load().num_experts == 3);
  CHECK(ExpertCounts<Context>(Context{backend, comm}, 0, 3).load().empty());

  NoEarlyBackend other({.num_threads = 1});
  using OtherContext = LayerContext<Elements<float>, NoEarlyBackend, Single>;
  ExpertCounts<OtherContext> none(OtherContext{other, comm}, 2, 3);
  CHECK(none.of(1).empty());
  CHECK(none.load().empty());
}

TEST_CASE("balancedness is the mean over the most, summed over layers", "[moe]") {
  const ExpertLoad load{.num_experts = 4, .tokens = {4, 0, 2, 2, 1, 1, 1, 5}};
  CHECK(load.by_expert() == std::vector<std::int64_t>{5, 1, 3, 7});
  CHECK(load.balancedness(4) == Approx((2. + 2) / (4 + 5)));
  CHECK(load.balancedness(2) == Approx((4. + 4) / (4 + 6)));
  CHECK(load.balancedness(3) == Approx((8. / 3 + 8. / 3) / (4 + 6)));  // 1, 1 and 2 experts
  CHECK(load.balancedness(1) == 1);
  CHECK(ExpertLoad{.num_experts = 3, .tokens = {0, 0, 9}}.balancedness(3) == Approx(1. / 3));
  CHECK(ExpertLoad{.num_experts = 3, .tokens = {0, 0, 0}}.balancedness(3) == 1);
  CHECK_THROWS_WITH(load.balancedness(0), Contains("4 experts") && Contains("got 0"));
  CHECK_THROWS_AS(load.balancedness(5), ConfigError);
  CHECK(ExpertLoad{}.empty());
  CHECK(ExpertLoad{}.by_expert().empty());
}

TEST_CASE("parts of experts follow each other and differ by one at the most", "[moe]") {
  for (std::int64_t experts = 1; experts < 20; ++experts) {
    for (std::int64_t parts = 1; parts <= experts; ++parts) {
      CHECK(first_expert_of(0, parts, experts) == 0);
      CHECK(first_expert_of(parts, parts, experts) == experts);
      for (std::int64_t p = 0; p < parts; ++p) {
        const std::int64_t count =
            first_expert_of(p + 1, parts, experts) - first_expert_of(p, parts, experts);
        CHECK((count == experts / parts || count == (experts + parts - 1) / parts));
      }
    }
  }
}
