#pragma once
/// How an engine is made: the runner with its weights, the size of the KV pool, the limits of a
/// step.

#include <cstdint>
#include <memory>
#include <optional>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/disk_tier.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/kv_file.hpp"
#include "nanovllm/engine/runner_config.hpp"
#include "nanovllm/engine/step_runner.hpp"
#include "nanovllm/engine/weight_source.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "nanovllm/sched/batch_config.hpp"

namespace nanovllm {

/// Tokens of a sequence at the most. Throws ConfigError when the setting is out of range.
/// @param own  the model's context.
[[nodiscard]] std::int64_t choose_max_model_len(const EngineConfig& config, std::int64_t own);

/// The engine's seed: the setting, or a random one.
[[nodiscard]] std::uint64_t choose_seed(const EngineConfig& config);

/// The limits of a step. Throws ConfigError when a setting is out of range.
/// @param default_tokens  max_num_batched_tokens where it is not set, the backend's choice.
[[nodiscard]] BatchConfig choose_batch_config(const EngineConfig& config, int default_tokens);

/// What a runner is made of, beside its model.
struct RunnerSetup {
  RunnerConfig config;
  WeightSource weights;
};

/// @param checkpoint  null for noise, of `weights`; outlives the start-up.
[[nodiscard]] RunnerSetup choose_runner_setup(const EngineConfig& config, const BatchConfig& batch,
                                              std::int64_t max_model_len, int block_size,
                                              const Checkpoint* checkpoint,
                                              const std::optional<RandomWeights>& weights);

// The next two are not inline: where nanovllm::prebuilt has them, neither the runner nor the
// backend is compiled again.

/// Allocates everything but the KV pool, and fills the weights. `Policy` is a `RunnerPolicyOf`.
template <class Model, class Policy>
[[nodiscard]] std::unique_ptr<StepRunner> make_runner(const typename Model::Config& model,
                                                      const RunnerSetup& setup) {
  return std::make_unique<Runner<Model, Policy>>(model, setup.config, setup.weights);
}

/// What an engine asks of its backend's type; see ops/backend.hpp.
struct BackendTraits {
  bool is_asynchronous = false;
  double kv_share = 0;
  int default_batched_tokens = 0;
};
template <class Model, class Policy>
[[nodiscard]] BackendTraits backend_traits() {
  using Backend = typename Policy::Backend;
  return {.is_asynchronous = Backend::kAsynchronous,
          .kv_share = Backend::kKvShare,
          .default_batched_tokens = Backend::kDefaultBatchedTokens};
}

/// Blocks of the pool that steps compute in, and of the one in host memory.
struct KvBlocks {
  std::int32_t device = 0;
  std::int32_t host = 0;
};

/// Makes the KV pools, which come after everything else has its memory, and returns their blocks:
/// those of `config.kv_size`, or as many as max_num_seqs sequences of full length need, within
/// `share` of the memory; and those of `config.host_kv_size`.
[[nodiscard]] KvBlocks allocate_kv(StepRunner& runner, double share, const EngineConfig& config,
                                   std::int64_t max_model_len);

/// The disk tier of `config.disk_kv_path`, or null without. Throws ConfigError that names the
/// setting which is in the way.
/// @param identity         of the model; the layout of a block is added.
/// @param keeps_prefixes   whether there is a prefix cache.
/// @param num_host_blocks  of the pool above it.
[[nodiscard]] std::unique_ptr<DiskTier> open_disk_tier(const EngineConfig& config,
                                                       const KvIdentity& identity,
                                                       const StepRunner& runner,
                                                       bool keeps_prefixes,
                                                       std::int32_t num_host_blocks);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/setup.inc"
#endif
