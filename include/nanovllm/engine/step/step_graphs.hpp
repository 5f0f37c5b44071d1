#pragma once
/// The graphs of an executor: which sizes of steps have one, and which step takes which.

#include <algorithm>
#include <compare>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace nanovllm {

/// Sizes of decode steps that get a graph, descending: 1, 2, 4, then multiples of 8 up to 128, of
/// 16 up to 256, of 32 up to 512 and of 64 beyond, and always `most` itself. A step takes the next
/// size up; the rows that it does not need are padding.
[[nodiscard]] inline std::vector<std::int64_t> graph_sizes(std::int64_t most) {
  std::vector<std::int64_t> out;
  const auto spacing = [](std::int64_t size) {
    return size < 4 ? size : size < 8 ? 4 : size < 128 ? 8 : size < 256 ? 16 : size < 512 ? 32 : 64;
  };
  for (std::int64_t size = 1; size < most; size += spacing(size)) out.push_back(size);
  out.push_back(most);
  std::reverse(out.begin(), out.end());
  return out;
}

/// What a graph computes: a step, one whose rows are all plain for the sampler, one whose decodes
/// read shared prefixes once, or logits alone; and in which of a sampler's ways it draws.
struct Recorded {
  enum Kind : std::uint8_t { step, plain_step, sharing_step, logits };
  Kind kind = step;
  int way = 0;
  auto operator<=>(const Recorded&) const = default;
};

/// Graphs by what they compute and by size.
template <class Graph>
class StepGraphs {
 public:
  using Sized = std::pair<std::int64_t, Graph>;  ///< rows, and the graph

  void clear() { lists_.clear(); }

  /// Adds one of a size that there is none of; returns it.
  const Sized& add(Recorded what, std::int64_t size, Graph graph) {
    std::vector<Sized>& list = lists_[what];
    const auto larger = std::find_if(list.begin(), list.end(),
                                     [&](const Sized& other) { return other.first <= size; });
    return *list.emplace(larger, size, std::move(graph));
  }

  /// The smallest of `rows` rows or more, or null.
  [[nodiscard]] const Sized* find(Recorded what, std::int64_t rows) const {
    const auto found = lists_.find(what);
    if (found == lists_.end()) return nullptr;
    const std::vector<Sized>& list = found->second;
    const auto smaller = std::find_if(list.begin(), list.end(),
                                      [&](const Sized& graph) { return graph.first < rows; });
    return smaller == list.begin() ? nullptr : &*std::prev(smaller);
  }

  /// The one of `rows` rows, or null.
  [[nodiscard]] const Sized* find_exactly(Recorded what, std::int64_t rows) const {
    const Sized* const found = find(what, rows);
    return found != nullptr && found->first == rows ? found : nullptr;
  }

 private:
  std::map<Recorded, std::vector<Sized>> lists_;  ///< each by size, descending
};

}  // namespace nanovllm
