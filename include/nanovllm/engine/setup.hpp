#pragma once
/// How an engine is made: the runner with its weights, the size of the KV pool, the limits of a
/// step.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/random_seed.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/runner.hpp"
#include "nanovllm/engine/weight_memory.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/weights.hpp"
#include "nanovllm/sched/batch_config.hpp"

namespace nanovllm {

/// Tokens of a sequence at the most. Throws ConfigError when the setting is out of range.
[[nodiscard]] inline std::int64_t choose_max_model_len(const EngineConfig& config,
                                                       std::int64_t own) {
  check<ConfigError>(config.max_model_len >= 0 && config.max_model_len <= own,
                     "max_model_len must be in [1, ", own,
                     "], the model's own, or 0 for that; got ", config.max_model_len);
  const std::int64_t chosen = config.max_model_len == 0 ? own : config.max_model_len;
  check<ConfigError>(chosen >= 2, "max_model_len must be >= 2, got ", chosen);
  return chosen;
}

/// The engine's seed: the setting, or a random one.
[[nodiscard]] inline std::uint64_t choose_seed(const EngineConfig& config) {
  return config.seed ? *config.seed : random_seed();
}

/// The limits of a step. Throws ConfigError when a setting is out of range.
template <class Backend>
[[nodiscard]] BatchConfig choose_batch_config(const EngineConfig& config) {
  BatchConfig batch;
  batch.max_num_batched_tokens =
      config.max_num_batched_tokens != 0
          ? config.max_num_batched_tokens
          : std::max(Backend::kDefaultBatchedTokens, config.max_num_seqs);
  check<ConfigError>(batch.max_num_batched_tokens >= 1, "max_num_batched_tokens must be >= 1, got ",
                     batch.max_num_batched_tokens);
  batch.max_num_seqs = std::min(config.max_num_seqs, batch.max_num_batched_tokens);
  validate(batch);
  return batch;
}

/// Allocates everything but the KV pool, and loads the checkpoint in `config.model` or, if `weights`
/// is set, fills in noise.
template <class Model, class Policy>
[[nodiscard]] std::unique_ptr<Runner<Model, Policy>> make_runner(
    const typename Model::Config& model, const std::optional<RandomWeights>& weights,
    const EngineConfig& config, const BatchConfig& batch, std::int64_t max_model_len) {
  std::optional<Checkpoint> checkpoint;
  if (!weights) check_checkpoint_size(model, checkpoint.emplace(config.model));
  RunnerConfig runner{.num_ranks = config.tensor_parallel,
                      .num_threads = config.num_threads,
                      .first_device = config.device,
                      .limits = {.max_num_batched_tokens = batch.max_num_batched_tokens,
                                 .max_num_seqs = batch.max_num_seqs,
                                 .max_model_len = max_model_len},
                      .processes = config.processes,
                      .step_timeout = config.step_timeout};
  const auto loaded = std::make_shared<LoadProgress>();  // the runner has stages after this returns
  if (config.on_load) {
    runner.on_stage = [loaded, on_load = config.on_load](const char* stage) {
      on_load({loaded->bytes_total, loaded->bytes_total, stage});
    };
  }
  const auto fill = [&](auto& parameters, auto& backend, int rank) {
    if (weights) return parameters.randomize(weights->seed, backend);
    std::function<void(std::uint64_t, std::uint64_t)> progress;
    if (rank == 0 && config.on_load) {
      progress = [&](std::uint64_t done, std::uint64_t total) {
        *loaded = {done, total};
        config.on_load(*loaded);
      };
    }
    parameters.load(*checkpoint, backend, progress);
  };
  return std::make_unique<Runner<Model, Policy>>(model, runner, fill);
}

/// Makes the KV pool, which comes after everything else has its memory, and returns its blocks:
/// those of `config.kv_size`, or as many as max_num_seqs sequences of full length need, within the
/// backend's share of the memory.
template <class Policy, class AnyRunner>
[[nodiscard]] std::int32_t allocate_kv(AnyRunner& runner, const EngineConfig& config,
                                       std::int64_t max_model_len) {
  const KvShape shape = runner.kv_shape();
  const auto available = static_cast<std::int64_t>(runner.available_memory());
  std::int64_t num_blocks = 0;
  if (config.kv_size) {
    num_blocks = num_kv_blocks(*config.kv_size, shape, available);
  } else {
    const std::int64_t useful = config.max_num_seqs * ceil_div(max_model_len, shape.block_size);
    const std::int64_t affordable =
        num_kv_blocks(KvSize::memory_share(Policy::Backend::kKvShare), shape, available);
    num_blocks = std::min(useful, affordable);
  }
  runner.allocate_kv(static_cast<std::int32_t>(num_blocks));
  return static_cast<std::int32_t>(num_blocks);
}

}  // namespace nanovllm
