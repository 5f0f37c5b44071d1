#pragma once
/// What GET /stats answers: counters of the engine and a picture of its KV pool, for a page that
/// asks once a second.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/kv/block_map.hpp"

namespace nanovllm::serve {

/// A pool of more blocks is shown in so many cells at the most, of several blocks each.
inline constexpr std::size_t kMostCells = 1024;

/// {"num_blocks": 1000, "num_free": 700, "num_cached": 200, "num_held": 100, "age_seconds": 0.2,
///  "blocks_per_cell": 1, "cached": [0, 1, …], "held": [1, 0, …]}
/// Cell i has blocks [i, i + 1) · blocks_per_cell, the last one fewer perhaps; "cached" and "held"
/// say how many of them are, and the others are free.
[[nodiscard]] inline Json block_map_json(const BlockMap& map, double age_seconds) {
  const std::size_t count = map.states.size();
  const std::size_t per_cell = std::max<std::size_t>((count + kMostCells - 1) / kMostCells, 1);
  std::int64_t num_free = 0, num_cached = 0, num_held = 0;
  Json cached = Json::array(), held = Json::array();
  for (std::size_t begin = 0; begin < count; begin += per_cell) {
    const auto first = map.states.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = first + static_cast<std::ptrdiff_t>(std::min(per_cell, count - begin));
    const std::int64_t cell_cached = std::count(first, last, BlockState::cached);
    const std::int64_t cell_held = std::count(first, last, BlockState::in_use);
    cached.push_back(cell_cached);
    held.push_back(cell_held);
    num_free += std::count(first, last, BlockState::free);
    num_cached += cell_cached;
    num_held += cell_held;
  }
  return Json::object({{"num_blocks", static_cast<std::int64_t>(count)},
                       {"num_free", num_free},
                       {"num_cached", num_cached},
                       {"num_held", num_held},
                       {"age_seconds", age_seconds},
                       {"blocks_per_cell", static_cast<std::int64_t>(per_cell)},
                       {"cached", std::move(cached)},
                       {"held", std::move(held)}});
}

/// Counters since the engine was made, at a time of the server's clock, in seconds; "kv_blocks" is
/// null where the map is not known yet. Never waits for a step.
[[nodiscard]] inline Json stats_json(AnyEngine& engine) {
  const std::shared_ptr<const BlockMap> map = engine.block_map();
  const EngineStats stats = engine.stats();
  const auto now = std::chrono::steady_clock::now();
  const auto seconds = [](auto duration) {
    return std::chrono::duration<double>(duration).count();
  };
  return Json::object(
      {{"time", seconds(now.time_since_epoch())},
       {"num_running", stats.num_running},
       {"num_waiting", stats.num_waiting},
       {"num_finished", stats.num_finished},
       {"num_generated_tokens", stats.num_sampled_tokens},
       {"num_prefill_tokens", stats.num_prefill_tokens},
       {"num_queried_tokens", stats.num_queried_tokens},
       {"num_hit_tokens", stats.num_hit_tokens},
       {"kv_blocks", map ? block_map_json(*map, seconds(now - map->time)) : Json(nullptr)}});
}

}  // namespace nanovllm::serve
