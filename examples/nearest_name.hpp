#pragma once
/// Which of several names was meant by one with a slip of the keys.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::examples {

/// How many letters must be added, removed, replaced or swapped with the next one to make `to` of
/// `from`.
[[nodiscard]] inline std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> before(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (from[i - 1] != to[j - 1] ? 1 : 0);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool is_swap = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (is_swap) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[to.size()];
}

/// The one of `names` that is nearest to `name`, if it differs in at most a third of its letters.
[[nodiscard]] inline std::optional<std::string> nearest_name(
    std::string_view name, const std::vector<std::string>& names) {
  std::optional<std::string> nearest;
  std::size_t least = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

/// "; did you mean --model?" for "--modle", or nothing.
[[nodiscard]] inline std::string did_you_mean(std::string_view name,
                                              const std::vector<std::string>& names) {
  const std::optional<std::string> nearest = nearest_name(name, names);
  return nearest ? "; did you mean " + *nearest + "?" : "";
}

/// What to say of a value that is none of `names`, which are not empty: "expected auto, cpu or
/// cuda, got 'cdua'; did you mean cuda?" Of less than four letters no name is near.
[[nodiscard]] inline std::string expected_one_of(const std::vector<std::string>& names,
                                                 std::string_view value) {
  std::string out = "expected ";
  for (std::size_t i = 0; i < names.size(); ++i)
    out += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  out.append(", got '").append(value).append("'");
  return value.size() < 4 ? out : out + did_you_mean(value, names);
}

}  // namespace nanovllm::examples
