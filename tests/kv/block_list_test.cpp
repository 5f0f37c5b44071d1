#include "nanovllm/kv/block_list.hpp"

#include <algorithm>
#include <deque>
#include <optional>
#include <random>

#include "catch.hpp"

using nanovllm::BlockId;
using nanovllm::BlockList;

TEST_CASE("a list of all blocks holds them in ascending order", "[block_list]") {
  BlockList list = BlockList::all(3);
  REQUIRE(list.size() == 3);
  REQUIRE(list.pop_front() == 0);
  REQUIRE(list.pop_front() == 1);
  REQUIRE(list.contains(2));
  REQUIRE_FALSE(list.contains(1));
  REQUIRE(list.pop_front() == 2);
  REQUIRE(list.pop_front() == std::nullopt);
  REQUIRE(list.size() == 0);
  list.check_invariants();
}

TEST_CASE("a block list begins empty", "[block_list]") {
  BlockList list(2);
  REQUIRE(list.size() == 0);
  REQUIRE_FALSE(list.contains(1));
  REQUIRE(list.pop_front() == std::nullopt);
  list.push_back(1);
  list.push_front(0);
  REQUIRE(list.pop_front() == 0);
  list.check_invariants();
}

TEST_CASE("a block list agrees with a deque on random operations", "[block_list]") {
  std::mt19937 random(20240607);
  for (const int num_blocks : {1, 2, 17}) {
    BlockList list = BlockList::all(num_blocks);
    std::deque<BlockId> model;
    for (BlockId b = 0; b < num_blocks; ++b) model.push_back(b);
    for (int step = 0; step < 3000; ++step) {
      const auto block = static_cast<BlockId>(random() % static_cast<unsigned>(num_blocks));
      const auto place = std::find(model.begin(), model.end(), block);
      REQUIRE(list.contains(block) == (place != model.end()));
      if (random() % 4 == 0) {
        const std::optional<BlockId> front = list.pop_front();
        REQUIRE(front.has_value() == !model.empty());
        if (front) {
          REQUIRE(*front == model.front());
          model.pop_front();
        }
      } else if (place != model.end()) {
        list.remove(block);
        model.erase(place);
      } else if (random() % 2 == 0) {
        list.push_front(block);
        model.push_front(block);
      } else {
        list.push_back(block);
        model.push_back(block);
      }
      REQUIRE(list.size() == static_cast<int>(model.size()));
      list.check_invariants();
    }
  }
}

TEST_CASE("a block list says so when its caller has mistaken where a block is", "[block_list]") {
#if defined(NANOVLLM_CHECKS) || !defined(NDEBUG)
  using Catch::Matchers::Contains;
  BlockList list(3);
  list.push_back(1);
  CHECK_THROWS_WITH(list.push_back(1), Contains("block 1 is in the list already"));
  CHECK_THROWS_WITH(list.push_front(1), Contains("block 1 is in the list already"));
  CHECK_THROWS_WITH(list.remove(2), Contains("block 2 is not in the list"));
  CHECK_THROWS_WITH(list.remove(-1), Contains("expected a block in [0, 3), got -1"));
  CHECK_THROWS_WITH(list.push_back(3), Contains("expected a block in [0, 3), got 3"));
  list.check_invariants();
  CHECK((list.size() == 1 && list.front() == 1));
#else
  FAIL("the tests are compiled without NANOVLLM_CHECKS");
#endif
}
