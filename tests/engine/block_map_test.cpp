// The map of a KV pool's blocks, which is asked for while steps are made.

#include "nanovllm/kv/block_map.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/kv/block_manager.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using namespace std::chrono_literals;
using TestEngine = Engine<AnyModel, Float32Policy>;

EngineConfig config(bool overlap, bool prefix_caching = true) {
  return {.model = model_directory(kRandomModels[0]),
          .num_threads = 1,
          .max_num_seqs = 6,
          .max_model_len = 64,
          .kv_size = KvSize::blocks(12),
          .prefix_caching = prefix_caching,
          .overlap = overlap,
          .seed = 1};
}

std::int64_t count(const BlockMap& map, BlockState state) {
  return std::ranges::count(map.states, state);
}

/// Allows every token, and waits in each step for `is_open`.
class Gate final : public TokenMaskSource {
 public:
  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
    return std::make_unique<Matcher>(*this);
  }
  [[nodiscard]] int vocab_size() const override { return 64; }

  mutable std::atomic<int> num_waits = 0;
  std::atomic<int> num_open = 0;  ///< steps that may go on

 private:
  struct Matcher final : TokenMatcher {
    explicit Matcher(const Gate& owner) : gate(owner) {}
    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    [[nodiscard]] bool accept(TokenId) override { return true; }
    void fill(std::span<std::uint32_t> bits) const override {
      const int number = ++gate.num_waits;
      while (gate.num_open < number) std::this_thread::sleep_for(1ms);
      for (TokenId token = 0; token < 64; ++token) allow_token(bits, token);
    }
    [[nodiscard]] bool is_finished() const override { return false; }
    const Gate& gate;
  };
};

void wait_for(const std::function<bool()>& is_done) {
  for (int i = 0; i < 30'000 && !is_done(); ++i) std::this_thread::sleep_for(1ms);
  REQUIRE(is_done());
}

}  // namespace

TEST_CASE("a block is held, cached or free", "[block_map]") {
  BlockManager<4, HashPrefixCache<4>> blocks(5, true);
  const std::vector<TokenId> tokens{1, 2, 3, 4, 5};
  const std::vector<BlockId> table{*blocks.allocate(), *blocks.allocate()};
  blocks.publish(table, tokens, 0, 5);
  const auto state = [&](BlockId block) {
    return map_blocks(blocks)->states[static_cast<std::size_t>(block)];
  };
  CHECK(map_blocks(blocks)->states.size() == 5);
  CHECK(count(*map_blocks(blocks), BlockState::free) == 3);
  CHECK(state(table[0]) == BlockState::in_use);
  CHECK(state(table[1]) == BlockState::in_use);
  blocks.release(table);
  CHECK(state(table[0]) == BlockState::cached);
  CHECK(state(table[1]) == BlockState::free);  // it was not full
  blocks.forget();
  CHECK(count(*map_blocks(blocks), BlockState::free) == 5);
}

TEST_CASE("the map of an engine between steps is that of now", "[block_map]") {
  const bool overlap = GENERATE(false, true);
  TestEngine engine(config(overlap));
  const auto map = [&] {
    const auto before = std::chrono::steady_clock::now();
    const auto out = engine.block_map();
    REQUIRE(out != nullptr);
    CHECK(out->time >= before);
    CHECK(count(*out, BlockState::free) + count(*out, BlockState::cached) ==
          engine.stats().num_free_kv_blocks);
    return out;
  };
  CHECK(count(*map(), BlockState::free) == 12);
  const auto id = engine.submit(random_prompt(1, 40, 64), {.max_tokens = 8, .ignore_eos = true});
  engine.step();
  CHECK(count(*map(), BlockState::in_use) == 3);
  engine.abort(id);
  while (engine.step()) {
  }
  CHECK(count(*map(), BlockState::in_use) == 0);
  CHECK(count(*map(), BlockState::cached) == 2);
  CHECK(count(*map(), BlockState::free) == 10);
  engine.reset();
  CHECK(count(*map(), BlockState::free) == 12);
}

TEST_CASE("without prefix caching no block is cached", "[block_map]") {
  TestEngine engine(config(false, false));
  static_cast<void>(engine.generate(random_prompt(1, 40, 64), {.max_tokens = 8}));
  CHECK(count(*engine.block_map(), BlockState::free) == 12);
}

TEST_CASE("a call while a step is made does not wait, and the step answers the next",
          "[block_map]") {
  TestEngine engine(config(false));
  const auto gate = std::make_shared<Gate>();
  std::jthread server([&](const std::stop_token& stop) { engine.run(stop); });
  engine.submit(random_prompt(1, 40, 64),
                {.token_masks = gate, .max_tokens = 3, .ignore_eos = true});
  wait_for([&] { return gate->num_waits == 1; });
  CHECK(engine.block_map() == nullptr);  // it returns while the step is held up
  gate->num_open = 1;
  wait_for([&] { return gate->num_waits == 2; });
  const auto map = engine.block_map();
  REQUIRE(map != nullptr);
  CHECK(count(*map, BlockState::in_use) == 3);
  gate->num_open = 2;
  wait_for([&] { return gate->num_waits == 3; });
  const auto later = engine.block_map();  // of the end of the second step: the call before asked
  CHECK(later->time > map->time);
  CHECK(engine.block_map() == later);
  gate->num_open = 3;
}
