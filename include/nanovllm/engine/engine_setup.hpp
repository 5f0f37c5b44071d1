#pragma once
/// The rest of `Engine`: how it is made, `generate` on top of `submit` and `step`, and statistics.
/// Included by engine.hpp.

#include "nanovllm/engine.hpp"

namespace nanovllm {

template <class Model, class Policy>
Engine<Model, Policy>::Engine(Config model, std::optional<RandomWeights> weights,
                              EngineConfig&& config)
    : config_(std::move(config)), model_(std::move(model)) {
  const std::int64_t own = max_context_length(model_);
  check<ConfigError>(config_.max_model_len >= 0 && config_.max_model_len <= own,
                     "max_model_len must be in [1, ", own,
                     "], the model's own, or 0 for that; got ", config_.max_model_len);
  max_model_len_ = config_.max_model_len == 0 ? own : config_.max_model_len;
  check<ConfigError>(max_model_len_ >= 2, "max_model_len must be >= 2, got ", max_model_len_);
  seed_ = config_.seed ? *config_.seed
                       : std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();

  if (!weights) load_text_side();
  const BatchConfig batch = batch_config(config_);
  runner_ = make_runner(model_, weights, config_, batch, max_model_len_);
  // The KV pool comes after everything else has its memory.
  const std::int32_t num_blocks = choose_num_kv_blocks();
  runner_->allocate_kv(num_blocks);
  const bool prefix_caching = Policy::kv.prefix_caching && config_.prefix_caching;
  scheduler_ = std::make_unique<SchedulerType>(batch, BlockManagerType(num_blocks, prefix_caching));
  max_under_way_ = config_.overlap.value_or(Policy::Backend::kAsynchronous) ? 2 : 1;
  stats_.num_kv_blocks = stats_.num_free_kv_blocks = num_blocks;
}

template <class Model, class Policy>
BatchConfig Engine<Model, Policy>::batch_config(const EngineConfig& config) {
  BatchConfig batch;
  batch.max_num_batched_tokens =
      config.max_num_batched_tokens != 0
          ? config.max_num_batched_tokens
          : std::max(Policy::Backend::kDefaultBatchedTokens, config.max_num_seqs);
  check<ConfigError>(batch.max_num_batched_tokens >= 1, "max_num_batched_tokens must be >= 1, got ",
                     batch.max_num_batched_tokens);
  batch.max_num_seqs = std::min(config.max_num_seqs, batch.max_num_batched_tokens);
  validate(batch);
  return batch;
}

/// The tokeniser and the chat template, where the checkpoint has them. A template that is missing
/// or unknown is an error only for requests that need it.
template <class Model, class Policy>
void Engine<Model, Policy>::load_text_side() {
  constexpr TextHints kText = text_hints_of<Model>();
  if (kText.has_tokenizer && std::filesystem::exists(config_.model / "tokenizer.json")) {
    tokenizer_.emplace(Tokenizer::from_file(config_.model / "tokenizer.json"));
  }
  chat_template_ = config_.chat_template;
  if (chat_template_) return;
  if (!kText.has_chat_template) {
    no_chat_template_ = "this model has no chat template";
    return;
  }
  try {
    chat_template_ = ChatTemplate::from_directory(config_.model);
  } catch (const Error& error) {
    no_chat_template_ = error.what();
  }
}

template <class Model, class Policy>
std::unique_ptr<Runner<Model, Policy>> Engine<Model, Policy>::make_runner(
    const Config& model, const std::optional<RandomWeights>& weights, const EngineConfig& config,
    const BatchConfig& batch, std::int64_t max_model_len) {
  std::optional<Checkpoint> checkpoint;
  if (!weights) checkpoint.emplace(config.model);
  RunnerConfig runner{.num_ranks = config.tensor_parallel,
                      .num_threads = config.num_threads,
                      .first_device = config.device,
                      .max_tokens = batch.max_num_batched_tokens,
                      .max_context = max_model_len,
                      .max_samples = batch.max_num_seqs,
                      .processes = config.processes};
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
  return std::make_unique<RunnerType>(model, runner, fill);
}

template <class Model, class Policy>
std::int32_t Engine<Model, Policy>::choose_num_kv_blocks() const {
  const KvShape shape = runner_->kv_shape();
  const auto available = static_cast<std::int64_t>(runner_->available_memory());
  if (config_.kv_size) return num_kv_blocks(*config_.kv_size, shape, available);
  const std::int64_t useful = config_.max_num_seqs * ceil_div(max_model_len_, shape.block_size);
  const std::int64_t affordable =
      num_kv_blocks(KvSize::memory_share(Policy::Backend::kKvShare), shape, available);
  return static_cast<std::int32_t>(std::min(useful, affordable));
}

template <class Model, class Policy>
std::vector<Output> Engine<Model, Policy>::generate_all(const std::vector<Prompt>& prompts,
                                                        std::span<const SamplingParams> params) {
  // Callbacks may outlive this call when a step throws, so what they write to is shared.
  struct Results {
    std::vector<Output> outputs;
    std::atomic<std::int64_t> num_left;
  };
  auto results = std::make_shared<Results>();
  const auto count = static_cast<std::int64_t>(prompts.size());
  results->outputs.resize(prompts.size());
  results->num_left = count;
  const EngineStats before = stats();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    try {
      submit(prompts[i], params[params.size() == 1 ? 0 : i], [results, i](const TokenEvent& event) {
        if (!event.output) return;
        results->outputs[i] = *event.output;
        results->num_left.fetch_sub(1, std::memory_order_release);
      });
    } catch (const RequestError& error) {
      results->outputs[i].finish_reason = FinishReason::error;
      results->outputs[i].error = error.what();
      results->num_left.fetch_sub(1, std::memory_order_release);
    }
  }
  report_progress(count - results->num_left, count, before);
  while (results->num_left.load(std::memory_order_acquire) > 0) {
    step();
    report_progress(count - results->num_left, count, before);
  }
  return std::move(results->outputs);
}

template <class Model, class Policy>
void Engine<Model, Policy>::report_progress(std::int64_t num_finished, std::int64_t num_requests,
                                            const EngineStats& before) const {
  if (!config_.on_generate) return;
  const EngineStats now = stats();
  const auto rate = [](std::int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  config_.on_generate(
      {.num_finished = num_finished,
       .num_requests = num_requests,
       .prefill_tokens_per_second = rate(now.num_prefill_tokens - before.num_prefill_tokens,
                                         now.prefill_seconds - before.prefill_seconds),
       .decode_tokens_per_second = rate(now.num_decode_tokens - before.num_decode_tokens,
                                        now.decode_seconds - before.decode_seconds)});
}

/// Time is split between prefill and decode by the tokens of a step.
template <class Model, class Policy>
void Engine<Model, Policy>::update_stats(const StepPlan& plan, double device_seconds,
                                         double host_seconds) {
  const std::lock_guard lock(stats_mutex_);
  const double decode_share =
      static_cast<double>(plan.num_decodes) / static_cast<double>(plan.num_tokens);
  ++stats_.num_steps;
  stats_.num_waiting = scheduler_->num_waiting();
  stats_.num_running = scheduler_->num_running();
  stats_.num_preemptions = scheduler_->num_preemptions();
  stats_.num_prefill_tokens += plan.num_tokens - plan.num_decodes;
  stats_.num_decode_tokens += plan.num_decodes;
  stats_.num_sampled_tokens += static_cast<std::int64_t>(outcomes_.size());
  stats_.num_queried_tokens = scheduler_->blocks().stats().num_queried_tokens;
  stats_.num_hit_tokens = scheduler_->blocks().stats().num_hit_tokens;
  stats_.num_free_kv_blocks = scheduler_->blocks().num_free();
  stats_.prefill_seconds += device_seconds * (1.0 - decode_share);
  stats_.decode_seconds += device_seconds * decode_share;
  stats_.host_seconds += host_seconds;
}

}  // namespace nanovllm
