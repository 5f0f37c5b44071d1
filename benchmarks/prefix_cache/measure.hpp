#pragma once
/// One workload, served by one engine.

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../engine_bench/measure.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"
#include "nanovllm/kv/prefix/no_prefix_cache.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "nanovllm/with/tiers.hpp"
#include "workload.hpp"

namespace prefix_bench {

using engine_bench::Samples;

/// A prefix cache that counts what it gives up, over all objects of its type. Engines plan on the
/// thread that steps them; here that is one. Its seed is always the same: of blocks that agree in
/// as many tokens, the choice depends on that, and what is evicted later.
template <class Cache>
class Counted : public Cache {
 public:
  inline static std::int64_t num_evictions = 0;

  explicit Counted(std::int32_t num_blocks) : Cache(make(num_blocks)) {}

  [[nodiscard]] std::optional<nv::BlockId> evict() noexcept {
    const std::optional<nv::BlockId> block = Cache::evict();
    if (block) ++num_evictions;
    return block;
  }

 private:
  static Cache make(std::int32_t num_blocks) {
    if constexpr (std::constructible_from<Cache, std::int32_t, std::uint64_t>) {
      return Cache(num_blocks, std::uint64_t{1});
    } else {
      return Cache(num_blocks);
    }
  }
};

/// `Base`, with blocks of another size.
template <class Base, int kBlockSize>
struct SizedPolicy : Base {
  static constexpr nv::KvConfig kv{.block_size = kBlockSize};
};

/// `Base` with each of the caches, and preemption that swaps where there is host memory to swap to.
template <class Base>
struct HashPolicy : Base {
  using Preemption = nv::SwapPreemption;
  template <int kBlockSize>
  using PrefixCache = Counted<nv::HashPrefixCache<kBlockSize>>;
};
template <class Base>
struct RadixPolicy : Base {
  using Preemption = nv::SwapPreemption;
  template <int kBlockSize>
  using PrefixCache = Counted<nv::RadixPrefixCache<kBlockSize>>;
};
template <class Base>
struct NonePolicy : Base {
  using Preemption = nv::SwapPreemption;
  template <int kBlockSize>
  using PrefixCache = Counted<nv::NoPrefixCache<kBlockSize>>;
};

/// What a run cost.
struct RunResult {
  std::int64_t num_requests = 0, num_prompt_tokens = 0, num_output_tokens = 0;
  std::int64_t num_queried_tokens = 0;   ///< of prompts, and again of what was preempted
  std::int64_t num_hit_tokens = 0;       ///< of them, found
  std::int64_t num_host_hit_tokens = 0;  ///< of these, in host memory
  std::int64_t num_evictions = 0, num_preemptions = 0, num_steps = 0;
  double seconds = 0, host_seconds = 0;
  Samples first_token{};  ///< from each request's submission
  Samples all_begun{};    ///< the same until all of its samples have their first token

  /// Tokens that had to be computed before a request's next token could be. Steps count a prompt's
  /// last token among the decodes where it is alone.
  [[nodiscard]] std::int64_t num_computed_tokens() const {
    return num_queried_tokens - num_hit_tokens;
  }
  /// Of the tokens looked up, the share that was found.
  [[nodiscard]] double hit_rate() const { return share_of_queried(num_hit_tokens); }
  /// Of the tokens looked up, the share that was found in host memory.
  [[nodiscard]] double host_hit_rate() const { return share_of_queried(num_host_hit_tokens); }

 private:
  [[nodiscard]] double share_of_queried(std::int64_t num_tokens) const {
    return num_queried_tokens == 0
               ? 0
               : static_cast<double>(num_tokens) / static_cast<double>(num_queried_tokens);
  }
};

/// Serves a workload in an engine that has served nothing before: requests without a parent are
/// submitted at once, the others as soon as their parent has answered.
template <class Engine>
class Server {
 public:
  /// @param num_samples  of each request; the first one's answer is what others build on.
  Server(Engine& engine, const Workload& workload, std::int32_t num_samples = 1)
      : engine_(engine),
        workload_(workload),
        num_samples_(num_samples),
        begun_(workload.requests.size()),
        have_begun_(workload.requests.size()),
        children_(workload.requests.size()),
        prompts_(workload.requests.size()),
        answers_(workload.requests.size()) {
    for (std::size_t i = 0; i < workload.requests.size(); ++i) {
      if (const auto parent = workload.requests[i].parent) children_[*parent].push_back(i);
    }
  }

  /// Throws Error when a request fails or answers with another number of tokens than it should.
  /// `evictions` is the counter of the engine's cache.
  RunResult run(const std::int64_t& evictions) {
    warm_up();
    const nv::EngineStats before = engine_.stats();
    const std::int64_t evictions_before = evictions;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < workload_.requests.size(); ++i) {
      if (!workload_.requests[i].parent) submit(i);
    }
    while (engine_.step()) {
    }
    result_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto expected = static_cast<std::int64_t>(workload_.requests.size());
    nv::check(error_.empty(), error_);
    nv::check(result_.num_requests == expected, "of ", expected, " requests ", result_.num_requests,
              " were answered");

    const nv::EngineStats after = engine_.stats();
    result_.num_queried_tokens = after.num_queried_tokens - before.num_queried_tokens;
    result_.num_hit_tokens = after.num_hit_tokens - before.num_hit_tokens;
    result_.num_host_hit_tokens =
        after.of<nv::HostKvStats>().num_hit_tokens - before.of<nv::HostKvStats>().num_hit_tokens;
    result_.num_preemptions = after.num_preemptions - before.num_preemptions;
    result_.num_steps = after.num_steps - before.num_steps;
    result_.host_seconds = after.host_seconds - before.host_seconds;
    result_.num_evictions = evictions - evictions_before;
    return std::move(result_);
  }

 private:
  static nv::SamplingParams greedy(std::int32_t max_tokens) {
    return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true};
  }

  /// The first request of all pays for first uses. It leaves a block in the cache at the most.
  void warm_up() {
    engine_.submit(Tokens{0, 1}, greedy(4));
    while (engine_.step()) {
    }
  }

  void submit(std::size_t i) {
    prompts_[i] = prompt_of(workload_, i, prompts_, answers_);
    nv::SamplingParams params = greedy(workload_.requests[i].max_tokens);
    params.n = num_samples_;
    const auto begin = std::chrono::steady_clock::now();
    engine_.submit(prompts_[i], params, [this, i, begin](const nv::TokenEvent& event) {
      if (event.token) begun_[i].insert(event.sample);
      if (event.token && std::ssize(begun_[i]) == num_samples_ &&
          !std::exchange(have_begun_[i], char{1}))
        result_.all_begun.add(
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      if (event.output) take(i, *event.output);
    });
  }

  void take(std::size_t i, const nv::Output& output) {
    const auto wanted = static_cast<std::size_t>(workload_.requests[i].max_tokens);
    if (!output.error.empty() || output.token_ids.size() != wanted) {
      error_ = nv::concat("request ", i, " has ", output.token_ids.size(), " tokens instead of ",
                          wanted, ". ", output.error);
      return;
    }
    ++result_.num_requests;
    result_.num_prompt_tokens += output.num_prompt_tokens;
    result_.num_output_tokens += static_cast<std::int64_t>(output.token_ids.size());
    result_.first_token.add(output.timings.first_token);
    answers_[i] = output.token_ids;
    for (const std::size_t child : children_[i]) submit(child);
  }

  Engine& engine_;
  const Workload& workload_;
  const std::int32_t num_samples_;
  std::vector<std::set<std::int32_t>> begun_;       ///< samples of every request with a token
  std::vector<char> have_begun_;                    ///< all of them, for every request
  std::vector<std::vector<std::size_t>> children_;  ///< of every request
  std::vector<Tokens> prompts_, answers_;
  RunResult result_;
  std::string error_;
};

}  // namespace prefix_bench
