#include "nanovllm/core/sort.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

TEST_CASE("sort_stably sorts as std::stable_sort does", "[sort]") {
  std::mt19937 random(7);
  for (std::size_t size = 0; size < 70; ++size) {
    std::vector<std::pair<unsigned, std::size_t>> items;
    for (std::size_t i = 0; i < size; ++i) items.emplace_back(random() % (1 + size / 3), i);
    const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
    auto wanted = items;
    std::stable_sort(wanted.begin(), wanted.end(), before);
    sort_stably(items, before);
    CHECK(items == wanted);
  }
}

TEST_CASE("sort_stably moves what cannot be copied, in part of a list too", "[sort]") {
  std::vector<std::unique_ptr<int>> items;
  for (const int value : {9, 3, 1, 2, 0}) items.push_back(std::make_unique<int>(value));
  sort_stably(std::span(items).subspan(1, 3), [](const auto& a, const auto& b) { return *a < *b; });
  std::vector<int> values;
  for (const auto& item : items) values.push_back(*item);
  CHECK(values == std::vector{9, 1, 2, 3, 0});
}

TEST_CASE("stable_order gives indices and leaves the items", "[sort]") {
  const std::vector<std::string> words{"pear", "apple", "pear", "fig"};
  CHECK(stable_order(words.size(), [&](auto i, auto j) { return words[i] < words[j]; }) ==
        std::vector<std::uint32_t>{1, 3, 0, 2});
}
