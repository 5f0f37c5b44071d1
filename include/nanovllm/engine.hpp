#pragma once
/// `Engine<Model, Policy>`: the whole way of a request, from text to text.
///
///     nanovllm::Engine<nanovllm::Qwen3<nanovllm::shapes::qwen3_0_6b>> engine({.model =
///     "Qwen3-0.6B"}); auto outputs = engine.generate({"Once upon a time"}, {.temperature = 0.6f,
///     .max_tokens = 256});
///
///     text ─ tokenizer ─► Sequence ─ scheduler ─► StepPlan ─ runner ─► StepInputs ─ model ─►
///     logits
///          ─ sampler ─► token ids ─ scheduler.commit ─► detokenizer ─► text

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <ranges>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/generation.hpp"
#include "nanovllm/engine/inbox.hpp"
#include "nanovllm/engine/request.hpp"
#include "nanovllm/engine/runner.hpp"
#include "nanovllm/engine/step_inputs.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/io/chat_template.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "nanovllm/io/tokenizer.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/config.hpp"
#include "nanovllm/model/qwen3.hpp"
#include "nanovllm/model/rope_scaling.hpp"
#include "nanovllm/model/shapes.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/sched/scheduler.hpp"

namespace nanovllm {

/// An inference engine for one checkpoint. Any number of them live in a process; they share
/// nothing.
///
/// `submit`, `abort` and `stats` may be called from any thread at any time; `step` and `generate`
/// too, but steps run one at a time.
///
/// @tparam Model   e.g. `Qwen3<shapes::qwen3_8b>`, or `Qwen3<shapes::qwen3_any>`.
/// @tparam Policy  see policy.hpp.
template <class Model, class Policy>
class Engine {
 public:
  using BlockManagerType = BlockManager<Policy::kv.block_size>;
  using SchedulerType = Scheduler<typename Policy::Scheduling, BlockManagerType>;
  using RunnerType = Runner<Model, Policy>;

  /// Loads the checkpoint in `config.model`. Throws LoadError or ConfigError.
  explicit Engine(EngineConfig config)
      : Engine(ModelConfig::load(config.model), std::nullopt, std::move(config)) {}

  /// Runs `model` with noise for weights. There is no tokeniser: prompts are token ids.
  Engine(const ModelConfig& model, RandomWeights weights, EngineConfig config)
      : Engine(model, std::optional(weights), std::move(config)) {}

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Queues a request and returns at once; `step` serves it. `callback`, if any, hears of every
  /// token and of the end. Throws RequestError for a request that can never be served.
  RequestId submit(const Prompt& prompt, const SamplingParams& params = {},
                   TokenCallback callback = {}) {
    std::vector<TokenId> tokens = admit(prompt, params);
    const RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
    const SamplingRow sampling = resolve_sampling(params, model_.generation, request_seed(id));
    const std::int64_t limit = std::min<std::int64_t>(
        static_cast<std::int64_t>(tokens.size()) + params.max_tokens, max_total_tokens());
    inbox_.submit(std::make_unique<Generation>(
        id, std::move(tokens), static_cast<std::int32_t>(limit), params, sampling,
        model_.eos_token_ids, tokenizer_ ? &*tokenizer_ : nullptr, std::move(callback)));
    return id;
  }

  /// Takes a request back: it ends with FinishReason::abort in the next step at the latest. Returns
  /// whether it was still alive.
  bool abort(RequestId id) { return inbox_.abort(id); }

  /// Runs one step: everything that is waiting or running moves on by what the scheduling policy
  /// gives it. Returns whether there was anything to do.
  bool step();

  /// Serves one prompt. As below, what cannot be served is an output with an error.
  Output generate(const Prompt& prompt, const SamplingParams& params = {}) {
    return std::move(generate_all({prompt}, std::span(&params, 1)).front());
  }

  /// Serves all `prompts` and returns their outputs in the same order. A prompt that cannot be
  /// served costs itself alone: its output has finish_reason `error` and says why.
  template <std::ranges::input_range Prompts>
  requires std::convertible_to<std::ranges::range_reference_t<Prompts>, Prompt> std::vector<Output>
  generate(const Prompts& prompts, const SamplingParams& params = {}) {
    const std::vector<Prompt> list(std::ranges::begin(prompts), std::ranges::end(prompts));
    return generate_all(list, std::span(&params, 1));
  }

  /// The same with settings of its own for every prompt. Throws RequestError when their numbers
  /// differ.
  template <std::ranges::input_range Prompts, std::ranges::contiguous_range Params>
  requires std::convertible_to<std::ranges::range_reference_t<Prompts>, Prompt> &&
      std::same_as<std::ranges::range_value_t<Params>, SamplingParams>
          std::vector<Output> generate(const Prompts& prompts, const Params& params) {
    const std::vector<Prompt> list(std::ranges::begin(prompts), std::ranges::end(prompts));
    check<RequestError>(std::ranges::size(params) == list.size(), "generate: ", list.size(),
                        " prompts need as many SamplingParams, got ", std::ranges::size(params));
    return generate_all(list, std::span(std::ranges::data(params), std::ranges::size(params)));
  }

  std::vector<Output> generate(std::initializer_list<Prompt> prompts,
                               const SamplingParams& params = {}) {
    return generate_all(std::vector<Prompt>(prompts), std::span(&params, 1));
  }

  [[nodiscard]] EngineStats stats() const {
    const auto num_submitted = static_cast<std::int64_t>(inbox_.num_submitted());
    const std::lock_guard lock(stats_mutex_);
    EngineStats out = stats_;
    out.num_waiting += num_submitted;
    return out;
  }

  /// The tokeniser of the checkpoint. Throws ConfigError when it has none.
  [[nodiscard]] const Tokenizer& tokenizer() const {
    check<ConfigError>(tokenizer_.has_value(), "the checkpoint has no tokenizer.json");
    return *tokenizer_;
  }

  [[nodiscard]] const ModelConfig& model_config() const { return model_; }

  /// Tokens of a sequence at the most, prompt and generated: the model's context, or what the KV
  /// pool holds and one more.
  [[nodiscard]] std::int64_t max_total_tokens() const {
    return std::min<std::int64_t>(max_model_len_, scheduler_->capacity_tokens());
  }

  /// Backend, threads, ranks, KV pool and policy, for people.
  [[nodiscard]] std::string describe() const {
    return concat(runner_->backend().describe(), ", ", runner_->num_ranks(), " rank(s), ",
                  scheduler_->blocks().num_blocks(), " KV blocks of ", Policy::kv.block_size,
                  " tokens\n", nanovllm::describe<Policy>());
  }

  /// Throws Error naming the first broken invariant of the scheduler and its block manager.
  void check_invariants() const {
    const std::lock_guard lock(step_mutex_);
    scheduler_->check_invariants();
  }

 private:
  using Clock = std::chrono::steady_clock;

  // By reference, so that the arguments of the delegating constructors may be made from it.
  Engine(ModelConfig model, std::optional<RandomWeights> weights, EngineConfig&& config);

  [[nodiscard]] static BatchConfig batch_config(const EngineConfig& config);
  [[nodiscard]] static std::unique_ptr<RunnerType> make_runner(
      const ModelConfig& model, const std::optional<RandomWeights>& weights,
      const EngineConfig& config, const BatchConfig& batch, std::int64_t max_model_len);
  void load_text_side();
  [[nodiscard]] std::int32_t choose_num_kv_blocks() const;

  // Admission.
  [[nodiscard]] std::vector<TokenId> admit(const Prompt& prompt,
                                           const SamplingParams& params) const;
  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt) const;
  [[nodiscard]] std::uint64_t request_seed(RequestId id) const {
    const auto words = philox4x32(
        seed_, {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32), 0, 1});
    return std::uint64_t{words[0]} << 32 | words[1];
  }

  // One step.
  void take_inbox();
  void build_inputs(const StepPlan& plan);
  void deliver(const StepPlan& plan, const StepResults& results);
  [[nodiscard]] std::optional<TokenLogprobs> logprobs_of(const StepResults& results, std::int64_t i,
                                                         std::int32_t count) const;
  void finish(Generation& generation, FinishReason reason, bool has_token, std::string error = {});
  void fail_step(const StepPlan& plan, const std::string& error);
  void update_stats(const StepPlan& plan, double device_seconds, double total_seconds);

  std::vector<Output> generate_all(const std::vector<Prompt>& prompts,
                                   std::span<const SamplingParams> params);
  void report_progress(std::int64_t num_finished, std::int64_t num_requests,
                       const EngineStats& before) const;

  EngineConfig config_;
  ModelConfig model_;
  std::int64_t max_model_len_ = 0;
  std::uint64_t seed_ = 0;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  std::string no_chat_template_;  // why there is none
  std::unique_ptr<RunnerType> runner_;
  std::unique_ptr<SchedulerType> scheduler_;

  std::atomic<RequestId> next_id_{1};
  Inbox inbox_;

  mutable std::mutex step_mutex_;  // guards everything below, the scheduler and the runner
  std::unordered_map<RequestId, std::unique_ptr<Generation>> generations_;
  StepInputs inputs_;
  std::vector<StepInputs::Sample> samples_;
  std::vector<StepOutcome> outcomes_;

  mutable std::mutex stats_mutex_;
  EngineStats stats_;
};

// ---- The way of a request
// ------------------------------------------------------------------------

/// Text, tokens or messages to token ids that the engine can serve, or RequestError.
template <class Model, class Policy>
std::vector<TokenId> Engine<Model, Policy>::admit(const Prompt& prompt,
                                                  const SamplingParams& params) const {
  validate(params);
  std::vector<TokenId> tokens = encode(prompt);
  const auto count = static_cast<std::int64_t>(tokens.size());
  check<RequestError>(count >= 1, "the prompt has no tokens");
  const std::int64_t most = max_total_tokens() - 1;
  check<RequestError>(count <= most, "the prompt has ", count, " tokens, but at most ", most,
                      " and one generated token fit (max_model_len ", max_model_len_, ", KV pool ",
                      scheduler_->capacity_tokens() - 1, " tokens)");
  const auto check_token = [&](TokenId token, const char* where) {
    check<RequestError>(token >= 0 && token < model_.vocab_size, "token id ", token, " in ", where,
                        " is not in [0, vocab_size = ", model_.vocab_size, ")");
  };
  for (const TokenId token : tokens) check_token(token, "the prompt");
  for (const TokenId token : params.stop_token_ids) check_token(token, "stop_token_ids");
  check<RequestError>(params.stop.empty() || tokenizer_,
                      "stop strings need a tokeniser, and the checkpoint has no tokenizer.json");
  return tokens;
}

template <class Model, class Policy>
std::vector<TokenId> Engine<Model, Policy>::encode(const Prompt& prompt) const {
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt)) return *tokens;
  check<RequestError>(tokenizer_.has_value(),
                      "a text prompt needs a tokeniser, and the checkpoint has no tokenizer.json; "
                      "pass token ids");
  if (const auto* text = std::get_if<std::string>(&prompt)) return tokenizer_->encode(*text);
  const ChatPrompt& chat = std::get<ChatPrompt>(prompt);
  check<RequestError>(chat_template_.has_value(),
                      "messages need a chat template: ", no_chat_template_);
  return tokenizer_->encode(chat_template_->render(chat.messages, chat.options));
}

template <class Model, class Policy>
bool Engine<Model, Policy>::step() {
  const std::lock_guard lock(step_mutex_);
  const Clock::time_point begin = Clock::now();
  take_inbox();
  if (!scheduler_->has_work()) return false;

  const StepPlan plan = scheduler_->schedule();  // decides, changes nothing
  check(!plan.empty(), "engine: there is work, but the scheduling policy planned nothing");
  scheduler_->begin(plan);  // gives the planned sequences their blocks
  build_inputs(plan);
  const Clock::time_point launch = Clock::now();
  StepResults results;
  try {
    results = runner_->run(inputs_);
  } catch (const std::exception& error) {
    fail_step(plan, error.what());
    return true;
  }
  const double device_seconds = std::chrono::duration<double>(Clock::now() - launch).count();
  deliver(plan, results);
  update_stats(plan, device_seconds, std::chrono::duration<double>(Clock::now() - begin).count());
  return true;
}

/// Moves new requests to the scheduler and ends aborted ones.
template <class Model, class Policy>
void Engine<Model, Policy>::take_inbox() {
  Inbox::Content content = inbox_.take();
  for (std::unique_ptr<Generation>& generation : content.submitted) {
    Sequence& sequence = generation->sequence();
    generations_.emplace(sequence.id, std::move(generation));
    scheduler_->add(sequence);
  }
  for (const RequestId id : content.aborted) {
    const auto found = generations_.find(id);
    if (found == generations_.end()) continue;
    scheduler_->abort(found->second->sequence());
    finish(*found->second, FinishReason::abort, false);
  }
}

/// Flattens the plan, and the sampler's settings of those sequences that get a token.
template <class Model, class Policy>
void Engine<Model, Policy>::build_inputs(const StepPlan& plan) {
  samples_.clear();
  for (const PlannedSequence& planned : plan.sequences) {
    Generation& generation = *generations_.at(planned.sequence->id);
    generation.mark_scheduled();
    if (planned.samples)
      samples_.push_back(
          {generation.sampling_row(planned.end), generation.banned_tokens(planned.end)});
  }
  inputs_.build(plan, Policy::kv.block_size, samples_);
}

/// Gives every sampled sequence its token, commits the step, and tells the callbacks.
template <class Model, class Policy>
void Engine<Model, Policy>::deliver(const StepPlan& plan, const StepResults& results) {
  outcomes_.clear();
  for (const PlannedSequence& planned : plan.sequences) {
    if (!planned.samples) continue;
    const auto i = static_cast<std::int64_t>(outcomes_.size());
    const TokenId token = *results.tokens.at(i);
    const std::int32_t num_logprobs = samples_[outcomes_.size()].row.num_logprobs;
    const FinishReason reason =
        generations_.at(planned.sequence->id)->accept(token, logprobs_of(results, i, num_logprobs));
    outcomes_.push_back({planned.sequence, token, reason});
  }
  scheduler_->commit(plan, outcomes_);
  for (const StepOutcome& outcome : outcomes_) {
    Generation& generation = *generations_.at(outcome.sequence->id);
    if (outcome.finish_reason != FinishReason::none) {
      finish(generation, outcome.finish_reason, true);
    } else if (std::string error = generation.notify(true); !error.empty()) {
      scheduler_->abort(*outcome.sequence);
      finish(generation, FinishReason::error, false, std::move(error));
    }
  }
}

template <class Model, class Policy>
std::optional<TokenLogprobs> Engine<Model, Policy>::logprobs_of(const StepResults& results,
                                                                std::int64_t i,
                                                                std::int32_t count) const {
  if (count < 0) return std::nullopt;
  TokenLogprobs out{.token_id = *results.tokens.at(i), .logprob = *results.logprobs.at(i)};
  for (std::int64_t j = 0; j < std::min<std::int64_t>(count, model_.vocab_size); ++j) {
    out.top.emplace_back(*results.top_tokens.at(i, j), *results.top_logprobs.at(i, j));
  }
  return out;
}

/// Ends a request that the scheduler has let go of, and forgets it.
template <class Model, class Policy>
void Engine<Model, Policy>::finish(Generation& generation, FinishReason reason, bool has_token,
                                   std::string error) {
  const RequestId id = generation.sequence().id;
  inbox_.retire(id);
  generation.finish(reason, std::move(error));
  // An error of the last callback has nobody left to hear of it.
  static_cast<void>(generation.notify(has_token));
  generations_.erase(id);
  const std::lock_guard lock(stats_mutex_);
  ++stats_.num_finished;
}

/// A step that could not be computed costs the requests in it, and no others.
template <class Model, class Policy>
void Engine<Model, Policy>::fail_step(const StepPlan& plan, const std::string& error) {
  scheduler_->cancel(plan);
  for (const PlannedSequence& planned : plan.sequences) {
    scheduler_->abort(*planned.sequence);
    finish(*generations_.at(planned.sequence->id), FinishReason::error, false, error);
  }
}

}  // namespace nanovllm

#include "nanovllm/engine/engine_setup.hpp"  // construction, generate, statistics
