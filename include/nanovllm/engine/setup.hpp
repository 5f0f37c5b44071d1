#pragma once
/// How an engine is made: the runner with its weights, the size of the KV pool, the limits of a
/// step, the rules of admission.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/compiled.hpp"
#include "nanovllm/engine/core.hpp"
#include "nanovllm/engine/core/no_guesses.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/kv_identity.hpp"
#include "nanovllm/engine/model_name.hpp"
#include "nanovllm/engine/request/end_tokens.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/runner/rank.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/engine/step/runner_policy.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/model_head.hpp"
#include "nanovllm/ops/logits_functor.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/sched/batch_config.hpp"

namespace nanovllm {

/// What the checkpoint of `config` says of the model; `config` keeps the checkpoint that was
/// opened. Throws UnsupportedModelError for one of another family, LoadError or ConfigError.
template <class Model, class Policy>
[[nodiscard]] typename Model::Config load_model_config(EngineConfig& config) {
  if constexpr (requires { Policy::add_readers(); }) Policy::add_readers();
  config.checkpoint = checkpoint_of(config);
  if constexpr (requires { ModelFamily(Model::kFamily); })
    detail::check_family(*config.checkpoint, Model::kFamily);
  return Model::Config::load(*config.checkpoint);
}

/// Tells `config.on_warning` of all that was noted of the checkpoint.
void pass_on_warnings(const EngineConfig& config);

/// The most tokens of a sequence. Throws ConfigError when the setting is out of range.
/// @param own  the model's context.
[[nodiscard]] std::int64_t choose_max_model_len(const EngineConfig& config, std::int64_t own);

/// The engine's seed: the setting, or a random one.
[[nodiscard]] std::uint64_t choose_seed(const EngineConfig& config);

/// The limits of a step. Throws ConfigError when a setting is out of range.
/// @param default_tokens  max_num_batched_tokens where it is not set, the backend's choice.
[[nodiscard]] BatchConfig choose_batch_config(const EngineConfig& config, int default_tokens);

/// `model` as the ranks of an engine divide it: a config may have `divide(extras)`, which reads
/// settings of its own. Throws ConfigError for those that nothing of the policy reads.
template <class Policy, class ModelConfig>
[[nodiscard]] ModelConfig divided_model(ModelConfig model, const EngineConfig& config) {
  if constexpr (requires { model.divide(config.extras); }) model.divide(config.extras);
  Policy::Tiers::validate(config);
  GuessesOf<Policy>::type::validate(config);
  config.extras.check(std::string(type_name<typename Policy::Tiers>()));
  return model;
}

/// Throws ConfigError: there was no memory for `part` of an engine. It names the settings that its
/// size depends on.
/// @param reason  what was thrown.
[[noreturn]] void throw_no_memory(const char* part, const EngineConfig& config, const char* reason);

/// `make()`, which makes a part of an engine; where memory runs out, `throw_no_memory`.
template <class Make>
auto needing_memory(const char* part, const EngineConfig& config, const Make& make) {
  try {
    return make();
  } catch (const std::bad_alloc& error) {
    throw_no_memory(part, config, error.what());
  } catch (const std::length_error& error) {  // of a list that no memory can hold
    throw_no_memory(part, config, error.what());
  }
}

/// What a runner is made of, besides its model.
struct RunnerSetup {
  RunnerConfig config;
  WeightSource weights;
};

/// @param checkpoint  null for noise, of `weights`; outlives the start-up.
[[nodiscard]] RunnerSetup choose_runner_setup(const EngineConfig& config, const BatchConfig& batch,
                                              std::int64_t max_model_len, int block_size,
                                              const Checkpoint* checkpoint,
                                              const std::optional<RandomWeights>& weights);

/// What an engine asks of its backend's type; see ops/backend.hpp.
struct BackendTraits {
  bool is_asynchronous = false;
  double kv_share = 0;
  int default_batched_tokens = 0;
};

/// `RunnerMaker` in the library, for a `Policy` whose engine is compiled.
template <class Model, class Policy>
struct CompiledRunnerMaker {
  [[nodiscard]] static std::unique_ptr<StepRunner> make(const ConfigOf<Model>& model,
                                                        const RunnerSetup& setup);
  [[nodiscard]] static BackendTraits traits();
};

namespace detail {

/// Whether the engine of `Compiled` is compiled for `Model`, and its runner is that of `Policy`.
template <class Model, class Policy, class Compiled>
[[nodiscard]] consteval bool has_compiled_runner() {
  if constexpr (is_compiled<Model, Compiled>() && kIsWhole<Compiled>)
    return std::is_same_v<nanovllm::RunnerPolicyOf<Compiled>, Policy>;
  return false;
}

/// The first of `Policies` for which that is so; void: none.
template <class Model, class Policy, class... Policies>
struct CompiledTwin {
  using type = void;
};
template <class Model, class Policy, class First, class... Rest>
struct CompiledTwin<Model, Policy, First, Rest...> {
  using type = typename std::conditional_t<has_compiled_runner<Model, Policy, First>(),
                                           std::type_identity<First>,
                                           CompiledTwin<Model, Policy, Rest...>>::type;
};
#if defined(NANOVLLM_CUDA_POLICIES)
template <class Model, class Policy>
using CompiledTwinOf =
    typename CompiledTwin<Model, Policy, NANOVLLM_POLICIES, NANOVLLM_CUDA_POLICIES>::type;
#else
template <class Model, class Policy>
using CompiledTwinOf = typename CompiledTwin<Model, Policy, NANOVLLM_POLICIES>::type;
#endif

}  // namespace detail

/// Of the two above the one for an engine of `Policy`, any policy.
template <class Model, class Policy>
using RunnerMakerOf = std::conditional_t<
    std::is_void_v<detail::CompiledTwinOf<Model, RunnerPolicyOf<Policy>>>,
    RunnerMaker<Model, RunnerPolicyOf<Policy>>,
    CompiledRunnerMaker<CompiledModel<Model, detail::CompiledTwinOf<Model, RunnerPolicyOf<Policy>>>,
                        detail::CompiledTwinOf<Model, RunnerPolicyOf<Policy>>>>;

/// The KV pool that steps compute in, which comes after everything else has its memory: of the
/// blocks of `config.kv_size`, or of as many as max_num_seqs sequences of full length need, within
/// `share` of the memory. Throws ConfigError for more than there is.
[[nodiscard]] PoolPlan plan_pool(StepRunner& runner, double share, const EngineConfig& config,
                                 std::int64_t max_model_len);

/// Whether the runner of an engine is in a library, or compiled in this file.
template <class Model, class Policy>
inline constexpr bool kHasRunner = detail::kIsWhole<RunnerMakerOf<Model, Policy>>;

/// What admission needs to know of an engine of this `Policy`.
/// @param capacity_tokens  that the KV pool holds, and one more.
/// @param runner           says what its steps can do, and the rank of this process: requests go to
///                         0.
template <class Policy, class ModelConfig>
[[nodiscard]] AdmissionRules make_admission_rules(const ModelConfig& model,
                                                  const EngineConfig& config,
                                                  std::int64_t max_model_len,
                                                  std::int64_t capacity_tokens,
                                                  const StepRunner& runner) {
  constexpr bool has_functor =
      !std::is_same_v<typename LogitsFunctorOf<Policy>::type, NoLogitsFunctor>;
  AdmissionRules rules{.vocab_size = model.vocab_size,
                       .eos_token_ids = model.eos_token_ids,
                       .defaults = model.generation,
                       .max_model_len = max_model_len,
                       .max_total_tokens = std::min(max_model_len, capacity_tokens),
                       .seed = choose_seed(config)};
  using Processors = typename Policy::LogitsProcessors;
  rules.make_processors = &Processors::make;
  rules.missing_processor = &StandardLogitsProcessors<>::missing_in<Processors>;
  const bool edits_logits = runner.edits_logits();
  rules.honoured = {.edits = edits_logits,
                    .functor = edits_logits && has_functor,
                    .pooler = runner.gives_hidden(),
                    .tokens = head_of(model) == ModelHead::tokens};
  if (runner.rank() != 0)
    rules.refusal =
        "requests go to the engine of rank 0; this one runs its part of that one's steps";
  return rules;
}

namespace detail {

/// The head for labels of `checkpoint`. Throws LoadError.
[[nodiscard]] std::shared_ptr<const Pooler> load_label_head(const Checkpoint& checkpoint,
                                                            std::int64_t hidden_size);
NANOVLLM_DOOR(load_label_head);

}  // namespace detail

/// What an engine is put together from.
template <class Blocks>
struct EngineParts {
  std::int64_t max_model_len = 0;
  TextSide text;
  std::unique_ptr<StepRunner> runner;
  Blocks blocks;
  ObserverMaker<Blocks> observer;
  WeightsHash weights;
  std::shared_ptr<const Pooler> label_head{};  ///< null if the model has none
  CoreConfig core;
};

/// Reads the checkpoint of `config`, or makes noise for weights, and takes all memory that the
/// engine needs. Throws LoadError or ConfigError.
/// @param model  as the ranks divide it (`divided_model`); gets the end tokens of all files, see
///               `find_end_tokens`.
template <class Model, class Policy, class Blocks>
[[nodiscard]] EngineParts<Blocks> make_parts(typename Model::Config& model,
                                             const std::optional<RandomWeights>& weights,
                                             const EngineConfig& config) {
  using Tiers = typename Policy::Tiers;
  const std::int64_t max_model_len = choose_max_model_len(config, max_context_length(model));
  const Checkpoint files = checkpoint_of(config);
  const Checkpoint* const checkpoint = weights ? nullptr : &files;
  TextSide text;
  if (checkpoint != nullptr) {
    text = TextSide::load(files, text_hints_of<Model>(), config.chat_template);
    if constexpr (requires { model.eos_token_ids = std::vector<TokenId>(); })
      model.eos_token_ids =
          find_end_tokens(files, text, std::move(model.eos_token_ids), model.vocab_size);
    check_checkpoint_size(model, files);
  }
  std::shared_ptr<const Pooler> label_head;
  if constexpr (requires { std::int64_t(model.hidden_size); }) {
    if (checkpoint != nullptr && head_of(model) == ModelHead::labels)
      label_head = detail::through<LoadError>(
          detail::load_label_head_door, "nanovllm/with/pooling.hpp", "'", files.name(),
          "', which is of a classifier,")(files, model.hidden_size);
  }
  const BackendTraits backend = RunnerMakerOf<Model, Policy>::traits();
  BatchConfig batch = choose_batch_config(config, backend.default_batched_tokens);
  batch.max_num_logits = GuessesOf<Policy>::type::num_logits(config, batch);
  auto runner = needing_memory("the weights and the buffers of steps", config, [&] {
    return RunnerMakerOf<Model, Policy>::make(
        model, choose_runner_setup(config, batch, max_model_len, Policy::kv.block_size, checkpoint,
                                   weights));
  });
  auto blocks = needing_memory("the KV pools", config, [&] {
    const PoolPlan pool = plan_pool(*runner, backend.kv_share, config, max_model_len);
    const std::int32_t num_outside = Tiers::num_outside(config, pool);
    runner->allocate_kv(pool.num_blocks, num_outside);
    return Tiers::template make_blocks<Blocks>(pool.num_blocks, num_outside,
                                               Policy::kv.prefix_caching && config.prefix_caching);
  });
  // Without deferred steps a processor that reads tokens must have them before the next is planned.
  const bool overlap = config.overlap.value_or(backend.is_asynchronous) &&
                       (!Policy::LogitsProcessors::kReadsTokens || runner->edits_logits());
  const WeightsHash hash = weights ? WeightsHash(*weights) : hash_of(files);
  auto observer = Tiers::template observer<Blocks>(
      {.config = config, .runner = *runner, .keeps_prefixes = blocks.keeps_prefixes()},
      [&] { return kv_identity<Policy>(model, *runner, hash); });
  if (text.tokenizer && head_of(model) == ModelHead::tokens &&
      std::vector<TokenId>(model.eos_token_ids).empty())
    files.warn(
        "the checkpoint names no end token: answers end by max_tokens, stop strings or "
        "stop_token_ids");
  pass_on_warnings(config);
  return {.max_model_len = max_model_len,
          .text = std::move(text),
          .runner = std::move(runner),
          .blocks = std::move(blocks),
          .observer = std::move(observer),
          .weights = hash,
          .label_head = std::move(label_head),
          .core = {.batch = batch, .vocab_size = model.vocab_size, .overlap = overlap}};
}

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/core/math.hpp"
#include "nanovllm/core/random_seed.hpp"

namespace nanovllm {

NANOVLLM_INLINE void throw_no_memory(const char* part, const EngineConfig& config,
                                     const char* reason) {
  const auto number = [](const auto& setting) {
    return setting ? std::to_string(*setting) : std::string("unset");
  };
  throw ConfigError(concat("no memory for ", part, " (", reason,
                           "). Their sizes depend on max_num_seqs = ", config.max_num_seqs,
                           ", max_num_batched_tokens = ", number(config.max_num_batched_tokens),
                           ", max_model_len = ", number(config.max_model_len),
                           ", kv_size = ", config.kv_size ? to_text(*config.kv_size) : "unset",
                           ", tensor_parallel = ", config.tensor_parallel, config.extras.sizes()));
}

NANOVLLM_INLINE void pass_on_warnings(const EngineConfig& config) {
  if (!config.on_warning || !config.checkpoint) return;
  for (const std::string& warning : config.checkpoint->warnings()) config.on_warning(warning);
}

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
                             .extras = config.extras,
                             .first_device = config.device,
                             .limits = {.max_num_batched_tokens = batch.max_num_batched_tokens,
                                        .max_num_seqs = batch.num_logits(),
                                        .max_model_len = max_model_len,
                                        .shares_prefixes = config.share_reads_from.has_value()},
                             .block_size = block_size,
                             .share_reads_from = config.share_reads_from,
                             .processes = config.processes,
                             .step_timeout = config.step_timeout},
                  .weights = {.checkpoint = checkpoint, .seed = weights ? weights->seed : 0}};
  if (!config.on_load) return out;
  const auto loaded = std::make_shared<LoadProgress>();  // the stages after it say that all is
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

NANOVLLM_INLINE PoolPlan plan_pool(StepRunner& runner, double share, const EngineConfig& config,
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
  const std::int64_t block_bytes = shape.block_bytes();
  check<ConfigError>(num_blocks <= available / block_bytes, "kv_size: ", num_blocks, " blocks of ",
                     block_bytes, " bytes were asked for, ", num_blocks * block_bytes,
                     " bytes, but ", available, " are available");
  return {.shape = shape,
          .num_blocks = static_cast<std::int32_t>(num_blocks),
          .available_bytes = available,
          .is_on_device = runner.is_asynchronous()};
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
