#include "nanovllm/sched/block_owner.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

/// Owns a sequence with free blocks of the pool, and writes down what it is asked.
class Keeper final : public BlockOwner {
 public:
  Keeper(std::unique_ptr<BlockPool> pool, int num_blocks, std::string& log)
      : pool_(std::move(pool)), log_(log) {
    sequence_.status = SequenceStatus::parked;
    sequence_.tokens.assign(static_cast<std::size_t>(num_blocks * pool_->block_size()), 1);
    sequence_.num_computed_tokens = num_blocks * pool_->block_size();
    for (int i = 0; i < num_blocks; ++i) sequence_.block_table.push_back(*pool_->allocate());
  }

  [[nodiscard]] std::span<Sequence* const> sequences() const override { return all_; }
  [[nodiscard]] std::int32_t num_blocks() const override {
    return static_cast<std::int32_t>(sequence_.block_table.size());
  }
  void touch(const Sequence* s) noexcept override { log_ += s == &sequence_ ? "touch " : "other "; }
  void take_from(Sequence& s) noexcept override { log_ += "end" + std::to_string(s.id) + " "; }
  bool evict_one() noexcept override {
    log_ += "evict ";
    return give_up();
  }
  bool give_up_any() noexcept override {
    log_ += "any ";
    return give_up();
  }
  void give_up_all() noexcept override {
    log_ += "all ";
    give_up();
  }
  [[nodiscard]] Sequence& sequence() { return sequence_; }

 private:
  bool give_up() noexcept {
    const bool had = !sequence_.block_table.empty();
    pool_->release(sequence_.block_table);
    sequence_.block_table.clear();
    sequence_.num_computed_tokens = 0;
    return had;
  }

  std::unique_ptr<BlockPool> pool_;
  std::string& log_;
  Sequence sequence_;
  std::vector<Sequence*> all_{&sequence_};
};

struct Owned : simulator::Engine<ContinuousBatching, BlockManager<4>> {
  explicit Owned(int num_owned)
      : Engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 8), keeper(add(num_owned)) {}

  Keeper& add(int num_owned) {
    auto owner = std::make_unique<Keeper>(
        std::make_unique<BlockPoolOf<BlockManager<4>>>(scheduler.blocks()), num_owned, log);
    Keeper& out = *owner;
    scheduler.owners().push_back(std::move(owner));
    return out;
  }
  using Engine::add;

  std::string log;
  Keeper& keeper;
};

}  // namespace

TEST_CASE("Owners give way before a request waits for good", "[block_owner]") {
  Owned engine(7);
  engine.scheduler.check_invariants();  // it knows whose the blocks are
  CHECK(engine.scheduler.blocks().num_free() == 1);
  engine.add(iota(12), 1);
  CHECK(engine.scheduler.schedule().empty());
  CHECK(engine.log.empty());
  CHECK(engine.scheduler.free_blocks());
  CHECK(engine.log == "evict ");
  engine.scheduler.check_invariants();
  while (engine.scheduler.has_work()) engine.step();
  CHECK(engine.scheduler.blocks().num_free() == 8);
  CHECK_FALSE(engine.scheduler.free_blocks());  // nothing is left
  CHECK(engine.log == "evict end1 evict any ");
}

TEST_CASE("Owners hear of who continues a sequence, and of lost pools", "[block_owner]") {
  Owned engine(2);
  auto s = request(1, std::vector<TokenId>(10, 1), 1);
  s->continues = &engine.keeper.sequence();
  engine.scheduler.add(*s);
  CHECK(engine.log == "touch ");
  const StepPlan plan = engine.scheduler.schedule();
  REQUIRE(plan.sequences.size() == 1);
  CHECK(plan.sequences[0].fork_of == &engine.keeper.sequence());
  CHECK(plan.sequences[0].begin == 8);
  engine.scheduler.forget_kv();
  CHECK(engine.log == "touch all ");
  CHECK(engine.keeper.num_blocks() == 0);
  CHECK(engine.scheduler.schedule().sequences.at(0).begin == 0);
  engine.scheduler.abort(*s);
}
