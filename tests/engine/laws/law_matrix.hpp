#pragma once
/// The laws for combinations of policies: what a request gives must not depend on the prefix
/// cache, on how sequences are preempted, on the order in which they are served, nor on how many
/// samples or beams others draw; in a pool that is too small for all of them, too.
///
/// Who includes this calls `check_combination` with a policy to derive from.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/odd_and_even.hpp"
#include "kv_stats.hpp"
#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"
#include "nanovllm/kv/prefix/no_prefix_cache.hpp"
#include "nanovllm/sched/policy/continuous_batching.hpp"
#include "nanovllm/sched/policy/preemption.hpp"
#include "nanovllm/sched/policy/prefill_first.hpp"
#include "nanovllm/sched/policy/priority.hpp"
#include "nanovllm/with/beams.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "nanovllm/with/tiers/swapping.hpp"

namespace nanovllm::test {

template <class Base, template <int> class Cache, class PreemptionPolicy, class SchedulingPolicy>
struct MatrixPolicy : Base {
  template <int kBlockSize>
  using PrefixCache = Cache<kBlockSize>;
  using Preemption = PreemptionPolicy;
  using Tiers = std::conditional_t<SwapsSequences<PreemptionPolicy>, HostTier, NoTiers>;
  using Scheduling = SchedulingPolicy;
  static constexpr KvConfig kv{.block_size = 16};
};

/// What a request gives, of all its samples or beams.
using Answer = std::vector<std::vector<TokenId>>;

inline Answer answer_of(const Output& output) {
  Answer answer{output.token_ids};
  for (const Completion& other : output.alternatives) answer.push_back(other.token_ids);
  return answer;
}

/// Requests whose prompts begin alike in part, greedy and sampled, with priorities.
struct MatrixWork {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
};

/// `beams`: of which some have edits, too. `edited`: two samples each, with penalties, biases, bans and a mask that reads tokens.
enum class Draws : std::uint8_t { one, four, beams, edited };

inline MatrixWork matrix_work(Draws draws, std::int64_t vocab) {
  MatrixWork work;
  const std::vector<TokenId> common = random_prompt(1, 21, vocab);
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<TokenId> prompt;
    if (i % 2 == 0) prompt = common;
    const std::vector<TokenId> own = random_prompt(10 + i, 1 + i * 7 % 20, vocab);
    prompt.insert(prompt.end(), own.begin(), own.end());
    SamplingParams params{.max_tokens = 32 + static_cast<std::int32_t>(i), .ignore_eos = true};
    params.priority = static_cast<std::int32_t>(i % 3) - 1;
    if (draws == Draws::beams) {
      params.beam_width = 3;
      if (i == 1) params.frequency_penalty = 0.5f, params.repetition_penalty = 1.2f;
      if (i == 2)
        params.logit_bias = {{3, 4.f}}, params.allowed_token_ids = random_prompt(7, 90, vocab);
      if (i == 3) {
        params.token_masks = std::make_shared<OddAndEven>(static_cast<int>(vocab));
        params.stop_token_ids = {static_cast<TokenId>(vocab - 1)};
      }
    } else {
      params.temperature = i % 3 == 0 && draws == Draws::one ? 0.f : 0.9f;
      params.seed = 500 + i;
      params.n = draws == Draws::four ? 4 : draws == Draws::edited ? 2 : 1;
    }
    if (draws == Draws::edited) {
      params.repetition_penalty = i % 2 == 0 ? 1.3f : 1.f;
      params.frequency_penalty = i % 3 == 0 ? 0.4f : 0.f;
      params.logit_bias = {{static_cast<TokenId>(i), 5.f}};
      if (i == 1) params.allowed_token_ids = random_prompt(77, 60, vocab);
      if (i == 3) {
        params.token_masks = std::make_shared<OddAndEven>(static_cast<int>(vocab));
        params.stop_token_ids = {static_cast<TokenId>(vocab - 1)};
      }
    }
    work.prompts.push_back(std::move(prompt));
    work.params.push_back(params);
  }
  return work;
}

/// Each request alone in an engine with room for everything, without a prefix cache.
template <class Policy, class Model>
std::vector<Answer> matrix_alone(const MatrixWork& work, EngineConfig config) {
  config.prefix_caching = false;
  Engine<Model, Policy> engine(std::move(config));
  std::vector<Answer> answers;
  for (std::size_t i = 0; i < work.prompts.size(); ++i) {
    const Output output = engine.generate(work.prompts[i], work.params[i]);
    REQUIRE(output.error == "");
    answers.push_back(answer_of(output));
  }
  return answers;
}

/// All at once in a pool of `num_blocks`, invariants checked at every step.
template <class Policy, class Model>
EngineStats check_matrix(const MatrixWork& work, const std::vector<Answer>& expected,
                         EngineConfig config, bool overlap, std::int32_t num_blocks,
                         std::int32_t num_host_blocks) {
  CAPTURE(overlap, num_blocks, num_host_blocks);
  config.overlap = overlap;
  config.max_num_batched_tokens = 48;
  config.max_num_seqs = 16;
  config.kv_size = KvSize::blocks(num_blocks);
  config.extras.set(HostKv{KvSize::blocks(num_host_blocks)});
  Engine<Model, Policy> engine(std::move(config));
  for (int round = 0; round < 2; ++round) {  // the second finds what the first has left
    std::vector<Answer> answers(work.prompts.size());
    std::vector<std::string> errors(work.prompts.size());
    for (std::size_t i = 0; i < work.prompts.size(); ++i) {
      engine.submit(work.prompts[i], work.params[i], [&, i](const TokenEvent& event) {
        if (event.output == nullptr) return;
        answers[i] = answer_of(*event.output);
        errors[i] = event.output->error;
      });
    }
    while (engine.step()) engine.check_invariants();
    for (std::size_t i = 0; i < answers.size(); ++i) {
      CAPTURE(round, i);
      CHECK(errors[i] == "");
      CHECK(answers[i] == expected[i]);
    }
  }
  const EngineStats stats = engine.stats();
  CHECK(stats.num_free_kv_blocks == stats.num_kv_blocks);
  return stats;
}

template <class Base, template <int> class Cache, class PreemptionPolicy, class SchedulingPolicy,
          class Model = AnyModel>
void check_combination(const EngineConfig& config, std::int64_t vocab, bool both_ways) {
  using Policy = MatrixPolicy<Base, Cache, PreemptionPolicy, SchedulingPolicy>;
  constexpr bool kSwaps = std::is_same_v<PreemptionPolicy, SwapPreemption>;
  std::int64_t num_preemptions = 0, num_swapped = 0;
  for (const Draws draws : {Draws::one, Draws::four, Draws::beams, Draws::edited}) {
    CAPTURE(static_cast<int>(draws));
    const MatrixWork work = matrix_work(draws, vocab);
    const std::vector<Answer> alone = matrix_alone<Policy, Model>(work, config);
    REQUIRE(alone[0].size() == static_cast<std::size_t>(work.params[0].n));
    for (const bool overlap : {false, true}) {
      if (!overlap && !both_ways) continue;
      const std::int32_t num_host_blocks = !kSwaps ? 0 : overlap ? 40 : 6;
      const EngineStats stats =
          check_matrix<Policy, Model>(work, alone, config, overlap, 7, num_host_blocks);
      num_preemptions += stats.num_preemptions;
      num_swapped += host_kv(stats).num_swapped_out;
    }
    check_matrix<Policy, Model>(work, alone, config, true, 400, kSwaps ? 6 : 0);
  }
  CAPTURE(num_preemptions);
  CHECK(num_preemptions > 0);
  CHECK((num_swapped > 0) == kSwaps);
}

}  // namespace nanovllm::test
