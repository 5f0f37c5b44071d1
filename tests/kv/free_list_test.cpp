#include "nanovllm/kv/free_list.hpp"

#include <algorithm>
#include <deque>
#include <optional>
#include <random>

#include "catch.hpp"

using nanovllm::BlockId;
using nanovllm::FreeList;

TEST_CASE("a new free list holds all blocks in ascending order", "[free_list]") {
  FreeList list(3);
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

TEST_CASE("the free list agrees with a deque on random operations", "[free_list]") {
  std::mt19937 random(20240607);
  for (const int num_blocks : {1, 2, 17}) {
    FreeList list(num_blocks);
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
