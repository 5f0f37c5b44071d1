// Engines that draft with EAGLE-3 heads, of all forms of files: the law, and that what they draft
// is what a head drafts that begins anew with all tokens of the sequence: in chunks of prompts, with
// prefixes from the cache, in pools that are too small, with n = 2 and 4, on one rank and on two.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "with/speculation/eagle3/engine_cases.hpp"
#include "with/speculation/eagle3/head_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct Policy : Float32Policy {
  using Guesses = DraftedBy<NgramDrafter, MixedEagle3>;
  using Ranks = ThreadRanks;
};
using TestEngine = Engine<AnyModel, Policy>;

/// Sequences are swapped to host memory, where the head's keys do not go.
using SwappingEngine =
    Engine<AnyModel, MatrixPolicy<Policy, RadixPrefixCache, SwapPreemption, Priority>>;

/// The law on `num_ranks` ranks, and the drafts. @return how many differ from those made anew.
template <class AnEngine = TestEngine>
int check_engine(const char* head, const TargetSizes& target, int num_ranks,
                 std::int64_t num_host_blocks = 0) {
  DraftsAnew anew(target_files(target), head_directory(head));
  int num_others = 0;
  std::int64_t num_drafts = 0, num_accepted = 0, num_refused = 0, num_preemptions = 0, num_hits = 0;
  for (const Draws draws : {Draws::one, Draws::four, Draws::beams, Draws::edited}) {
    const MatrixWork work = work_of(draws, target.vocab);
    EngineConfig config = config_of(target, head_options(head_directory(head), 5));
    config.tensor_parallel = num_ranks;
    const std::vector<Output> expected = answers_alone<AnEngine>(work, config);
    for (const std::int64_t num_blocks : {7, 400}) {
      CAPTURE(head, static_cast<int>(draws), num_blocks, num_ranks);
      MixedEagle3::noted().clear();
      config.max_num_batched_tokens = 24;  // prompts are computed in chunks
      config.max_num_seqs = 16;
      config.kv_size = KvSize::blocks(num_blocks);
      config.overlap = num_blocks == 400;
      if (num_host_blocks > 0) config.extras.set(HostKv{KvSize::blocks(num_host_blocks)});
      const EngineStats stats = run_all<AnEngine>(work, expected, config);
      const auto counts = stats.of<SpeculationStats>();
      CHECK(counts.num_failed == 0);
      num_accepted += counts.num_accepted;
      num_refused += counts.num_drafted - counts.num_accepted;
      num_preemptions += stats.num_preemptions;
      num_hits += stats.num_hit_tokens;
      const auto [others, drafts] = anew.count_others(MixedEagle3::noted());
      if (num_ranks == 1 && num_host_blocks == 0) CHECK(others == 0);
      num_others += others, num_drafts += drafts;
      if (draws != Draws::beams) CHECK(drafts > 50);
    }
  }
  CHECK(num_accepted > 50);
  CHECK(num_refused > 50);
  CHECK(num_preemptions > 0);
  CHECK(num_hits > 0);
  // Sums over ranks have another order.
  CHECK(num_others * (num_host_blocks == 0 ? 20 : 2) < num_drafts);
  return num_others;
}

std::string error_of(const TargetSizes& target, const SpeculativeConfig& options, int num_ranks) {
  EngineConfig config = config_of(target, options);
  config.tensor_parallel = num_ranks;
  try {
    const TestEngine engine(std::move(config));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("drafted = undrafted with heads of all forms, and drafts are those of all pairs anew",
          "[speculation][eagle3][laws]") {
  for (const char* head : kHeads) CHECK(check_engine(head, {}, 1) == 0);
}

TEST_CASE("drafted = undrafted on two ranks, which draft as one", "[eagle3][laws][ranks]") {
  check_engine("angelslim", {}, 2);
  check_engine("angelslim", {.tied = false}, 2);
}

TEST_CASE("drafted = undrafted where sequences are swapped out", "[eagle3][laws]") {
  CHECK(check_engine<SwappingEngine>("safeailab", {}, 1, 40) > 0);  // drafts are worse
}

TEST_CASE("a policy that has a head drafts with another drafter, or none", "[eagle3]") {
  const MatrixWork work = work_of(Draws::one, 61);
  const EngineConfig config = config_of({}, {.method = "ngram", .prompt_lookup_min = 1});
  const std::vector<Output> expected = answers_alone<TestEngine>(work, config);
  MixedEagle3::noted().clear();
  run_all<TestEngine>(work, expected, config);
  CHECK(MixedEagle3::noted().empty());
}

TEST_CASE("the pairs of a request that has ended are there for the next one", "[eagle3]") {
  DraftsAnew anew(target_files({}), head_directory("safeailab"));
  TestEngine engine(config_of({}, head_options(head_directory("safeailab"), 4)));
  const std::vector<TokenId> prompt = random_prompt(3, 40, 61);
  engine.generate(prompt, {.temperature = 0, .max_tokens = 1});
  known_texts().clear();
  MixedEagle3::noted().clear();
  const Output output =
      engine.generate(prompt, {.temperature = 0, .max_tokens = 12, .ignore_eos = true});
  CHECK(output.num_cached_tokens == 32);
  const auto [num_others, num_drafts] = anew.count_others(MixedEagle3::noted());
  CHECK(num_drafts > 5);
  CHECK(num_others == 0);
}

TEST_CASE("steps of no drafts store their pairs", "[eagle3]") {
  // Chosen by measured times; whenever it drafts, it drafts what it would anew.
  DraftsAnew anew(target_files({}), head_directory("safeailab"));
  SpeculativeConfig options = head_options(head_directory("safeailab"), 4);
  options.adaptive = true;
  const MatrixWork work = work_of(Draws::four, 61);
  EngineConfig config = config_of({}, options);
  const std::vector<Output> expected = answers_alone<TestEngine>(work, config);
  config.max_num_seqs = 16;
  MixedEagle3::noted().clear();
  run_all<TestEngine>(work, expected, config);
  CHECK(anew.count_others(MixedEagle3::noted()).first == 0);
}

TEST_CASE("a head of another model is refused, and so is no head", "[eagle3][errors]") {
  const SpeculativeConfig options = head_options(head_directory("angelslim"), 3),
                          other = head_options(head_directory("safeailab"), 3);
  for (const int num_ranks : {1, 2}) {
    CAPTURE(num_ranks);
    CHECK_THAT(error_of({.hidden = 32, .vocab = 64}, options, num_ranks),
               Catch::StartsWith("SpeculativeConfig::model, 'tests/fixtures/eagle3/angelslim': ") &&
                   Catch::Contains("'hidden_size' is 24, the target's 32") &&
                   Catch::Contains("'vocab_size' is 61, the target's 64"));
    CHECK_THAT(error_of({.layers = 4}, other, num_ranks),
               Catch::Contains("enters layer 5 of the target, which has 4"));
  }
  CHECK_THAT(error_of({}, {.method = "eagle3"}, 1),
             Catch::Contains("SpeculativeConfig::model must be the directory of an EAGLE-3 head"));
  CHECK_THAT(error_of({}, {.method = "eagle3", .model = "/nowhere"}, 1),
             Catch::Contains("/nowhere"));
  CHECK(error_of({}, {.method = "eagle3", .num_speculative_tokens = 0}, 1) == "");
}
