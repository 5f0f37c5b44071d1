#pragma once
/// The ways in force to run ops, and those that were close to them when they were timed. For the
/// host; nothing here needs CUDA.

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace nanovllm::cuda {

/// By `Key`, what a layer is; a `Plan` is one way to run it.
template <class Key, class Plan>
class TunedPlans {
 public:
  /// The way in force; null where none is.
  [[nodiscard]] const Plan* find(const Key& key) const {
    const auto found = in_force_.find(key);
    return found == in_force_.end() ? nullptr : &found->second;
  }
  void choose(const Key& key, const Plan& plan) { in_force_.insert_or_assign(key, plan); }

  /// The first way that is timed for `key` from here on is in force until another is faster.
  void restart(const Key& key) { timed_.erase(key); }
  /// Takes note of the time of a way, and puts it in force if it is the fastest.
  void add(const Key& key, const Plan& plan, double ms) {
    auto& ways = timed_[key];
    const auto faster = [ms](const auto& way) { return way.first <= ms; };
    if (std::none_of(ways.begin(), ways.end(), faster)) choose(key, plan);
    ways.emplace_back(ms, plan);
  }

  /// Of those that were timed, the fastest first, and at most kMost of those that take no more than
  /// kSlack times as long; none where nothing was timed.
  [[nodiscard]] std::vector<Plan> close_plans(const Key& key) const {
    const auto found = timed_.find(key);
    if (found == timed_.end()) return {};
    auto sorted = found->second;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Plan> out;
    for (const auto& [ms, plan] : sorted) {
      if (out.size() == kMost || ms > kSlack * sorted[0].first) break;
      out.push_back(plan);
    }
    return out;
  }

  /// Calls visit(plan) for every way in force.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [key, plan] : in_force_) visit(plan);
  }

 private:
  static constexpr std::size_t kMost = 4;
  static constexpr double kSlack = 1.16;
  std::map<Key, Plan> in_force_;
  std::map<Key, std::vector<std::pair<double, Plan>>> timed_;
};

}  // namespace nanovllm::cuda
