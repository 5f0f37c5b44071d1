#pragma once
/// A stable sort of which a program has one, whatever it sorts: `std::sort` and `std::stable_sort`
/// are compiled anew for each type and order, 4 to 8 KB each time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/separate.hpp"

#if NANOVLLM_BODIES
#include <algorithm>
#include <numeric>
#endif

namespace nanovllm {

namespace detail {

/// The order of `stable_order`; `before(order, a, b)` compares.
[[nodiscard]] std::vector<std::uint32_t> merge_sorted(std::size_t count, const void* order,
                                                      bool (*before)(const void*, std::uint32_t,
                                                                     std::uint32_t));

}  // namespace detail

/// 0 to `count` - 1, fewer than 2^32, so that i stands ahead of j if `before(i, j)`, and numbers of
/// which neither is before the other ascend. O(count log count) calls of `before`.
template <class Before>
[[nodiscard]] std::vector<std::uint32_t> stable_order(std::size_t count, const Before& before) {
  return detail::merge_sorted(count, &before,
                              [](const void* order, std::uint32_t i, std::uint32_t j) -> bool {
                                return (*static_cast<const Before*>(order))(i, j);
                              });
}

/// Sorts `items`, a contiguous range, as `std::stable_sort` would. For lists that are not worth a
/// sort of their own: takes memory, and calls `before` through a pointer.
template <class Items, class Before>
void sort_stably(Items&& items, const Before& before) {
  const std::span all(items);
  if (all.size() < 2) return;
  const auto order = stable_order(
      all.size(), [&](std::uint32_t i, std::uint32_t j) { return before(all[i], all[j]); });
  std::vector<typename decltype(all)::value_type> sorted;
  sorted.reserve(all.size());
  for (const std::uint32_t i : order) sorted.push_back(std::move(all[i]));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::move(sorted[i]);
}

#if NANOVLLM_BODIES

NANOVLLM_INLINE std::vector<std::uint32_t> detail::merge_sorted(
    std::size_t count, const void* order,
    bool (*before)(const void*, std::uint32_t, std::uint32_t)) {
  std::vector<std::uint32_t> sorted(count), merged(count);
  std::iota(sorted.begin(), sorted.end(), 0u);
  const auto is_before = [&](std::uint32_t i, std::uint32_t j) { return before(order, i, j); };
  for (std::size_t run = 1; run < count; run *= 2) {
    for (std::size_t begin = 0; begin < count; begin += 2 * run) {
      const std::uint32_t* const first = sorted.data() + begin;
      const std::uint32_t* const middle = sorted.data() + std::min(begin + run, count);
      const std::uint32_t* const end = sorted.data() + std::min(begin + 2 * run, count);
      std::merge(first, middle, middle, end, merged.data() + begin, is_before);
    }
    sorted.swap(merged);
  }
  return sorted;
}

#endif  // NANOVLLM_BODIES

}  // namespace nanovllm
