#pragma once
/// How an engine is made: the runner with its weights, the size of the KV pool, the limits of a
/// step.

#include <cstdint>
#include <memory>
#include <optional>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/disk/disk_tier.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/runner/runner_config.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/engine/session/kv_file.hpp"
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

#include <algorithm>
#include <string>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/random_seed.hpp"
#include "nanovllm/kv/kv_config.hpp"

namespace nanovllm {

NANOVLLM_INLINE std::int64_t choose_max_model_len(const EngineConfig& config, std::int64_t own) {
  const std::int64_t chosen = config.max_model_len.value_or(own);
  check<ConfigError>(chosen >= 2 && chosen <= own, "max_model_len must be in [2, ", own,
                     "], the model's own, or unset for that; got ", chosen);
  return chosen;
}

NANOVLLM_INLINE std::uint64_t choose_seed(const EngineConfig& config) {
  return config.seed ? *config.seed : random_seed();
}

NANOVLLM_INLINE BatchConfig choose_batch_config(const EngineConfig& config, int default_tokens) {
  BatchConfig batch;
  batch.max_num_batched_tokens =
      config.max_num_batched_tokens.value_or(std::max(default_tokens, config.max_num_seqs));
  check<ConfigError>(batch.max_num_batched_tokens >= 1, "max_num_batched_tokens must be >= 1, got ",
                     batch.max_num_batched_tokens);
  batch.max_num_seqs = std::min(config.max_num_seqs, batch.max_num_batched_tokens);
  batch.prefix_wait_tokens = config.prefix_wait_tokens;
  check<ConfigError>(config.session_blocks.value_or(0) >= 0, "session_blocks must be >= 0, got ",
                     config.session_blocks.value_or(0));
  batch.max_held_blocks = config.session_blocks;
  validate(batch);
  return batch;
}

NANOVLLM_INLINE RunnerSetup choose_runner_setup(const EngineConfig& config,
                                                const BatchConfig& batch,
                                                std::int64_t max_model_len, int block_size,
                                                const Checkpoint* checkpoint,
                                                const std::optional<RandomWeights>& weights) {
  RunnerSetup out{.config = {.num_ranks = config.tensor_parallel,
                             .num_threads = config.num_threads,
                             .first_device = config.device,
                             .limits = {.max_num_batched_tokens = batch.max_num_batched_tokens,
                                        .max_num_seqs = batch.max_num_seqs,
                                        .max_model_len = max_model_len,
                                        .shares_prefixes = config.share_reads_from.has_value()},
                             .block_size = block_size,
                             .share_reads_from = config.share_reads_from,
                             .processes = config.processes,
                             .step_timeout = config.step_timeout},
                  .weights = {.checkpoint = checkpoint, .seed = weights ? weights->seed : 0}};
  if (!config.on_load) return out;
  const auto loaded = std::make_shared<LoadProgress>();  // the stages behind it say that all is
  out.weights.progress = [loaded, on_load = config.on_load](std::uint64_t done,
                                                            std::uint64_t total) {
    *loaded = {done, total};
    on_load(*loaded);
  };
  out.config.on_stage = [loaded, on_load = config.on_load](const char* stage) {
    on_load({loaded->bytes_total, loaded->bytes_total, stage});
  };
  return out;
}

NANOVLLM_INLINE KvBlocks allocate_kv(StepRunner& runner, double share, const EngineConfig& config,
                                     std::int64_t max_model_len) {
  const KvShape shape = runner.kv_shape();
  const auto available = static_cast<std::int64_t>(runner.available_memory());
  std::int64_t num_blocks = 0;
  if (config.kv_size) {
    num_blocks = num_kv_blocks(*config.kv_size, shape, available);
  } else {
    const std::int64_t useful = config.max_num_seqs * ceil_div(max_model_len, shape.block_size);
    const std::int64_t affordable = num_kv_blocks(KvSize::memory_share(share), shape, available);
    num_blocks = std::min(useful, affordable);
  }
  KvBlocks blocks{.device = static_cast<std::int32_t>(num_blocks)};
  const KvSize& host = config.host_kv_size;
  check<ConfigError>(host.kind() != KvSize::Kind::memory_share && host.count() >= 0,
                     "host_kv_size must be a number of blocks or of bytes, 0 for none; got ",
                     host.kind() == KvSize::Kind::memory_share
                         ? concat("a share of the memory, ", host.share())
                         : concat(host.count()));
  if (host.count() > 0) blocks.host = num_kv_blocks(host, shape, 0);
  runner.allocate_kv(blocks.device, blocks.host);
  return blocks;
}

NANOVLLM_INLINE std::unique_ptr<DiskTier> open_disk_tier(const EngineConfig& config,
                                                         const KvIdentity& identity,
                                                         const StepRunner& runner,
                                                         bool keeps_prefixes,
                                                         std::int32_t num_host_blocks) {
  if (!config.disk_kv_path) return nullptr;
  check<ConfigError>(keeps_prefixes,
                     "disk_kv_path needs a prefix cache: the policy has none, or prefix_caching is "
                     "off");
  check<ConfigError>(num_host_blocks > 0,
                     "disk_kv_path needs blocks in host memory, which files are read to and "
                     "written from; host_kv_size is 0");
  check<ConfigError>(!config.processes,
                     "disk_kv_path needs all ranks in one process; 'processes' is set");
  check<ConfigError>(config.disk_kv_min_tokens >= 1, "disk_kv_min_tokens must be >= 1, got ",
                     config.disk_kv_min_tokens);
  const KvShape shape = runner.kv_shape();
  std::string text;
  for (const auto& [name, value] : identity) text += concat(name, " = ", value, '\n');
  text += concat("block_size = ", shape.block_size, "\nranks = ", runner.num_ranks(), '\n');
  const auto num_pieces = static_cast<std::size_t>(shape.num_layers * runner.num_ranks());
  const std::uint64_t file_bytes =
      BlockFiles::file_bytes(text.size(), static_cast<std::size_t>(shape.block_size), num_pieces,
                             static_cast<std::uint64_t>(shape.block_bytes() * runner.num_ranks()));
  check<ConfigError>(config.disk_kv_bytes >= file_bytes, "disk_kv_bytes: ", config.disk_kv_bytes,
                     " bytes have no room for a block, whose file has ", file_bytes);
  return std::make_unique<DiskTier>(*config.disk_kv_path, config.disk_kv_bytes, std::move(text));
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
