// What a policy's guesses add to each rank: when it is made and called, on which rank, and that the
// memory which it takes for the pool's blocks is left out of the pool.

#include "nanovllm/engine/step/rank_part.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/engine/core/no_guesses.hpp"
#include "nanovllm/engine/runner/thread_ranks.hpp"
#include "nanovllm/policy.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// What the parts have heard, by rank.
struct Heard {
  std::vector<std::string> calls;
  std::int64_t num_rows = 0;
};

struct NotingPart final : RankPart {
  explicit NotingPart(int rank_in) : rank(rank_in) { note("made"); }
  ~NotingPart() override { note("gone"); }
  void profile_run() override { note("profile"); }
  [[nodiscard]] std::int64_t block_bytes() const override { return extra_bytes; }
  void set_num_blocks(std::int32_t num_blocks) override { note(concat("blocks ", num_blocks)); }
  void begin_step(const StepInputs& inputs) override {
    note("step");
    const std::lock_guard lock(mutex);
    heard[rank].num_rows += inputs.row_ends().back();
  }

  void note(const std::string& call) const {
    const std::lock_guard lock(mutex);
    heard[rank].calls.push_back(call);
  }

  int rank;
  inline static std::mutex mutex;
  inline static Heard heard[2];
  inline static std::int64_t extra_bytes = 0;
  inline static bool is_made = true;
};

/// Asks the parts before each step.
struct Asking final : StepObserver {
  explicit Asking(StepRunner& runner_in) : runner(runner_in) {}
  [[nodiscard]] bool prepare(std::span<Sequence* const>, bool is_behind) override {
    const auto call = [](int rank, RankPart& part) {
      const auto& mine = static_cast<NotingPart&>(part);
      mine.note(mine.rank == rank ? "asked" : "asked on another rank");
    };
    if (is_behind) {
      CHECK_THROWS_WITH(runner.on_parts(call), "on_parts: a step is under way");
      return true;
    }
    runner.on_parts(call);
    return false;
  }
  StepRunner& runner;
};

struct Adding : NoGuesses {
  struct RankParts {
    template <class Rank>
    static std::unique_ptr<RankPart> make(Rank& rank, const typename Rank::Config& model,
                                          const RunnerConfig& config,
                                          const BackendConfig& backend) {
      CHECK(model.num_hidden_layers == rank.network.num_layers());
      CHECK((config.num_ranks == rank.comm.size() && backend.num_threads == 1));
      if (!NotingPart::is_made) return nullptr;
      return std::make_unique<NotingPart>(rank.comm.rank());
    }
  };
  static std::unique_ptr<StepObserver> observer(const GuessSetup& setup) {
    return std::make_unique<Asking>(setup.runner);
  }
};

struct AddingPolicy : Float32Policy {
  using Guesses = Adding;
  using Ranks = ThreadRanks;
};

static_assert(kHasRankParts<AddingPolicy> && kHasRankParts<RunnerPolicyOf<AddingPolicy>>);
static_assert(!kHasRankParts<Float32Policy> && !kHasRankParts<RunnerPolicyOf<Float32Policy>>);

EngineConfig config(int num_ranks) {
  return {.model = model_directory(kRandomModels[0]),
          .tensor_parallel = num_ranks,
          .num_threads = num_ranks,
          .max_num_seqs = 2,
          .max_model_len = 64,
          .kv_size = KvSize::blocks(16),
          .overlap = true};
}

std::int64_t blocks_in_a_share() {
  EngineConfig one = config(1);
  one.kv_size = KvSize::memory_share(0.002);
  return Engine<AnyModel, AddingPolicy>(one).stats().num_kv_blocks;
}

}  // namespace

TEST_CASE("each rank has a part, which is told of the pool and of steps", "[ranks]") {
  for (const int num_ranks : {1, 2}) {
    CAPTURE(num_ranks);
    for (Heard& heard : NotingPart::heard) heard = {};
    {
      Engine<AnyModel, AddingPolicy> engine(config(num_ranks));
      engine.generate(random_prompt(1, 9, 300),
                      {.temperature = 0, .max_tokens = 3, .ignore_eos = true});
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      const Heard& heard = NotingPart::heard[rank];
      CHECK(heard.calls == std::vector<std::string>{"made", "profile", "blocks 16", "asked", "step",
                                                    "asked", "step", "asked", "step", "gone"});
      CHECK(heard.num_rows == 9 + 2);
    }
  }
}

TEST_CASE("a policy's parts may be none", "[ranks]") {
  NotingPart::is_made = false;
  for (Heard& heard : NotingPart::heard) heard = {};
  Engine<AnyModel, AddingPolicy> engine(config(2));
  CHECK(engine.generate(random_prompt(1, 9, 300), {.max_tokens = 3}).error == "");
  NotingPart::is_made = true;
  CHECK(NotingPart::heard[0].calls.empty());
}

TEST_CASE("what parts take for blocks is left out of the pool", "[ranks]") {
  const std::int64_t all = blocks_in_a_share();
  // Two layers of two heads of 64 in float32, 16 tokens to a block: three times as much beside it.
  NotingPart::extra_bytes = 3 * 2 * 2 * 2 * 64 * 16 * 4;
  const std::int64_t fewer = blocks_in_a_share();
  NotingPart::extra_bytes = 0;
  CAPTURE(all, fewer);
  CHECK(fewer > all / 5);
  CHECK(fewer < all / 3);
}
