// What GET /stats answers, while requests come and end.

#include "nanovllm/api/serve/stats_report.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <stop_token>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using namespace std::chrono_literals;

/// The law of GET /stats, of one answer.
void check_law(const Json& stats, std::int64_t num_blocks) {
  const Json& map = stats["kv_blocks"];
  REQUIRE(map["num_blocks"].get<std::int64_t>() == num_blocks);
  const auto number = [&](const char* name) { return map[name].get<std::int64_t>(); };
  REQUIRE(number("num_free") + number("num_cached") + number("num_held") == num_blocks);
  REQUIRE(number("num_free") >= 0);
  const auto per_cell = static_cast<std::size_t>(number("blocks_per_cell"));
  const std::size_t num_cells = map["held"].size();
  REQUIRE(num_cells == (static_cast<std::size_t>(num_blocks) + per_cell - 1) / per_cell);
  REQUIRE(num_cells <= serve::kMostCells);
  std::int64_t num_held = 0, num_cached = 0;
  for (std::size_t i = 0; i < num_cells; ++i) {
    const auto held = map["held"][i].get<std::int64_t>();
    const auto cached = map["cached"][i].get<std::int64_t>();
    REQUIRE((held >= 0 && cached >= 0));
    REQUIRE(held + cached <= static_cast<std::int64_t>(per_cell));
    num_held += held;
    num_cached += cached;
  }
  REQUIRE(num_held == number("num_held"));
  REQUIRE(num_cached == number("num_cached"));
}

void wait_for(const std::function<bool()>& is_done) {
  for (int i = 0; i < 30'000 && !is_done(); ++i) std::this_thread::sleep_for(1ms);
  REQUIRE(is_done());
}

}  // namespace

TEST_CASE("at every poll, free, cached and held blocks are all blocks", "[stats]") {
  const bool overlap = GENERATE(false, true);
  const auto seed = GENERATE(std::uint32_t{1}, 2);
  CAPTURE(overlap, seed);
  Engine<AnyModel, Float32Policy> engine({.model = model_directory(kRandomModels[0]),
                                          .num_threads = 1,
                                          .max_num_seqs = 6,
                                          .max_model_len = 64,
                                          .kv_size = KvSize::blocks(12),
                                          .overlap = overlap,
                                          .seed = 1});
  std::jthread server([&](const std::stop_token& stop) { engine.run(stop); });
  std::atomic<int> num_submitted = 0, num_ended = 0;
  std::jthread users([&](const std::stop_token& stop) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    while (!stop.stop_requested()) {
      ++num_submitted;
      const RequestId id = engine.submit(
          random_prompt(static_cast<std::uint64_t>(below(4)), 1 + random() % 40, 64),
          {.max_tokens = 1 + below(16), .ignore_eos = true},
          [&](const TokenEvent& event) { num_ended += event.output != nullptr ? 1 : 0; });
      std::this_thread::sleep_for(std::chrono::microseconds(below(2000)));
      if (below(3) == 0) engine.abort(id);
    }
  });
  std::int64_t most_held = 0, most_cached = 0;
  int num_maps = 0;
  // More polls where the machine is so busy that few requests come together.
  for (int poll = 0; poll < 400 || (poll < 20'000 && (most_held <= 3 || most_cached == 0));
       ++poll) {
    const Json stats = serve::stats_json(engine);
    if (!stats["kv_blocks"].is_null()) {  // as in the first polls, during a step
      check_law(stats, 12);
      most_held = std::max(most_held, stats["kv_blocks"]["num_held"].get<std::int64_t>());
      most_cached = std::max(most_cached, stats["kv_blocks"]["num_cached"].get<std::int64_t>());
      ++num_maps;
    }
    std::this_thread::sleep_for(1ms);
  }
  users = {};
  wait_for([&] { return num_ended == num_submitted; });
  CHECK(num_maps > 300);
  CHECK(most_held > 3);
  CHECK(most_cached > 0);
  wait_for([&] { return serve::stats_json(engine)["kv_blocks"]["num_held"] == 0; });
}

TEST_CASE("a large pool is shown in cells of several blocks", "[stats]") {
  const std::size_t size = GENERATE(1u, 1023u, 1024u, 1025u, 100'000u);
  BlockMap map{.states = std::vector<BlockState>(size)};
  std::mt19937 random(7);
  for (BlockState& state : map.states) state = static_cast<BlockState>(random() % 3);
  const Json json = Json::object({{"kv_blocks", serve::block_map_json(map, 0.5)}});
  check_law(json, static_cast<std::int64_t>(size));
  const Json& blocks = json["kv_blocks"];
  CHECK(blocks["num_cached"] == std::ranges::count(map.states, BlockState::cached));
  CHECK(blocks["num_held"] == std::ranges::count(map.states, BlockState::in_use));
  CHECK(blocks["age_seconds"].get<double>() == 0.5);
  const auto per_cell = blocks["blocks_per_cell"].get<std::ptrdiff_t>();
  CHECK(blocks["held"][0] ==
        std::count(map.states.begin(), map.states.begin() + per_cell, BlockState::in_use));
}
