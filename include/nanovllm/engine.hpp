#pragma once
/// `Engine<Model, Policy>`: the whole way of a request, from text to text.
///
///     nanovllm::Engine<nanovllm::Qwen3<nanovllm::shapes::qwen3_0_6b>> engine({.model = "Qwen3-0.6B"});
///     auto outputs = engine.generate({"Once upon a time"}, {.temperature = 0.6f, .max_tokens = 256});
///
///     text ─ tokenizer ─► Sequence ─ scheduler ─► StepPlan ─ runner ─► StepInputs ─ model ─► logits
///          ─ sampler ─► token ids ─ scheduler.commit ─► detokenizer ─► text

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <iterator>
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

#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/generation.hpp"
#include "nanovllm/engine/inbox.hpp"
#include "nanovllm/engine/request.hpp"
#include "nanovllm/engine/runner.hpp"
#include "nanovllm/engine/step_inputs.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/config.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/rope_scaling.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/sched/scheduler.hpp"
#include "nanovllm/text/tokenizer.hpp"

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
  using Config = typename Model::Config;

  /// Loads the checkpoint in `config.model`. Throws LoadError or ConfigError.
  explicit Engine(EngineConfig config)
      : Engine(Config::load(config.model), std::nullopt, std::move(config)) {}

  /// Runs `model` with noise for weights. There is no tokeniser: prompts are token ids.
  Engine(const Config& model, RandomWeights weights, EngineConfig config)
      : Engine(model, std::optional(weights), std::move(config)) {}

  /// Waits for the steps under way.
  ~Engine() { drain(); }

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

  /// Delivers the results of one step: everything that is waiting or running moves on by what the
  /// scheduling policy gives it. With `EngineConfig::overlap`, the step behind it has been planned
  /// and handed to the backend before, and is computed while these results are delivered. Tokens
  /// are the same either way. Returns whether there was anything to do.
  bool step();

  /// With `EngineConfig::processes`, every process makes the same engine. That of rank 0 serves
  /// requests; the others call this, which does their part of its steps and returns when it is
  /// destroyed. Throws what fails here, or an Error that says which other rank failed or was lost.
  void run_worker() { runner_->run_worker(); }

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

  [[nodiscard]] const Config& model_config() const { return model_; }

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
  Engine(Config model, std::optional<RandomWeights> weights, EngineConfig&& config);

  [[nodiscard]] static BatchConfig batch_config(const EngineConfig& config);
  [[nodiscard]] static std::unique_ptr<RunnerType> make_runner(
      const Config& model, const std::optional<RandomWeights>& weights,
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

  /// A step between `launch` and the end of `deliver`.
  struct Step {
    StepPlan plan;
    double device_seconds = 0;
    /// Requests that ended meanwhile: this plan, or an older one, may have their sequences.
    std::vector<std::unique_ptr<Generation>> ended{};
  };

  // One step.
  void take_inbox();
  [[nodiscard]] bool launch();
  void build_inputs(const StepPlan& plan);
  void deliver(const StepPlan& plan, const StepResults& results);
  [[nodiscard]] std::optional<TokenLogprobs> logprobs_of(const StepResults& results, std::int64_t i,
                                                         std::int32_t count) const;
  void finish(Generation& generation, FinishReason reason, bool has_token, std::string error = {});
  void fail(const std::string& error);
  void drain();
  void update_stats(const StepPlan& plan, double device_seconds, double host_seconds);

  std::vector<Output> generate_all(const std::vector<Prompt>& prompts,
                                   std::span<const SamplingParams> params);
  void report_progress(std::int64_t num_finished, std::int64_t num_requests,
                       const EngineStats& before) const;

  EngineConfig config_;
  Config model_;
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
  std::deque<Step> under_way_;  // oldest first
  std::size_t max_under_way_ = 1;
  StepInputs inputs_;
  std::vector<StepInputs::Sample> samples_;
  std::vector<StepOutcome> outcomes_;

  mutable std::mutex stats_mutex_;
  EngineStats stats_;
};

// ---- The way of a request ------------------------------------------------------------------------

/// Text, tokens or messages to token ids that the engine can serve, or RequestError.
template <class Model, class Policy>
std::vector<TokenId> Engine<Model, Policy>::admit(const Prompt& prompt,
                                                  const SamplingParams& params) const {
  check<RequestError>(!config_.processes || config_.processes->rank() == 0,
                      "requests go to the engine of rank 0; this one follows it");
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
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const Clock::time_point begin = Clock::now();
  double device_seconds = 0;  // of this call
  take_inbox();
  while (under_way_.size() < max_under_way_ && launch())
    device_seconds += under_way_.back().device_seconds;
  if (under_way_.empty()) return false;

  const Clock::time_point wait = Clock::now();
  StepResults results;
  try {
    results = runner_->wait();
  } catch (const std::exception& error) {
    fail(error.what());
    return true;
  }
  Step& oldest = under_way_.front();
  const double waited = seconds_since(wait);
  oldest.device_seconds += waited;
  device_seconds += waited;
  deliver(oldest.plan, results);
  update_stats(oldest.plan, oldest.device_seconds, seconds_since(begin) - device_seconds);
  under_way_.pop_front();
  return true;
}

/// What other threads left since the last step.
template <class Model, class Policy>
void Engine<Model, Policy>::take_inbox() {
  Inbox::Content content = inbox_.take();
  for (std::unique_ptr<Generation>& generation : content.submitted) {
    Generation& added = *generation;
    generations_.emplace(added.id, std::move(generation));
    scheduler_->add(added);
  }
  for (const RequestId id : content.aborted) {
    const auto found = generations_.find(id);
    if (found == generations_.end()) continue;
    scheduler_->abort(*found->second);
    finish(*found->second, FinishReason::abort, false);
  }
}

/// Plans a step and hands it to the runner. Returns whether there was anything to plan: behind a
/// step under way there may be nothing before that one's results are known.
template <class Model, class Policy>
bool Engine<Model, Policy>::launch() {
  if (!scheduler_->has_work()) return false;
  StepPlan plan = scheduler_->schedule();  // decides, changes nothing
  if (plan.empty()) {
    check(!under_way_.empty(), "engine: there is work, but the scheduling policy planned nothing");
    return false;
  }
  scheduler_->begin(plan);  // gives the planned sequences their blocks
  build_inputs(plan);
  const Clock::time_point begin = Clock::now();
  runner_->launch(inputs_);
  // A backend that is not asynchronous computes the step right here.
  const std::chrono::duration<double> computed = Clock::now() - begin;
  under_way_.push_back({std::move(plan), Policy::Backend::kAsynchronous ? 0.0 : computed.count()});
  return true;
}

/// Flattens the plan, and the sampler's settings of those sequences that get a token.
template <class Model, class Policy>
void Engine<Model, Policy>::build_inputs(const StepPlan& plan) {
  samples_.clear();
  for (const PlannedSequence& planned : plan.sequences) {
    Generation& generation = Generation::of(*planned.sequence);
    generation.mark_scheduled();
    if (!planned.samples) continue;
    samples_.push_back(
        {generation.sampling_row(planned.end), generation.banned_tokens(planned.end)});
  }
  inputs_.build(plan, Policy::kv.block_size, samples_);
}

/// Gives every sampled sequence its token, commits the step, and tells the callbacks. Sequences
/// that ended while the step was under way get nothing from it.
template <class Model, class Policy>
void Engine<Model, Policy>::deliver(const StepPlan& plan, const StepResults& results) {
  outcomes_.clear();
  std::int64_t i = -1;  // of the step's samples
  for (const PlannedSequence& planned : plan.sequences) {
    if (!planned.samples) continue;
    ++i;
    if (planned.sequence->status == SequenceStatus::finished) continue;
    Generation& generation = Generation::of(*planned.sequence);
    const TokenId token = *results.tokens.at(i);
    const FinishReason reason =
        generation.accept(token, logprobs_of(results, i, generation.num_logprobs()));
    outcomes_.push_back({planned.sequence, token, reason});
  }
  scheduler_->commit(plan, outcomes_);
  for (const StepOutcome& outcome : outcomes_) {
    Generation& generation = Generation::of(*outcome.sequence);
    if (outcome.finish_reason != FinishReason::none) {
      finish(generation, outcome.finish_reason, true);
    } else if (std::string error = generation.notify(true); !error.empty()) {
      scheduler_->abort(generation);
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

/// Ends a request that the scheduler has let go of, and forgets it as soon as no step under way has
/// its sequence.
template <class Model, class Policy>
void Engine<Model, Policy>::finish(Generation& generation, FinishReason reason, bool has_token,
                                   std::string error) {
  const RequestId id = generation.id;
  inbox_.retire(id);
  generation.finish(reason, std::move(error));
  // An error of the last callback has nobody left to hear of it.
  static_cast<void>(generation.notify(has_token));
  auto ended = generations_.extract(id);
  if (!under_way_.empty()) under_way_.back().ended.push_back(std::move(ended.mapped()));
  const std::lock_guard lock(stats_mutex_);
  ++stats_.num_finished;
}

/// A step that could not be computed, the oldest, costs the requests in it, and no others: the step
/// behind it is undone and planned again.
template <class Model, class Policy>
void Engine<Model, Policy>::fail(const std::string& error) {
  for (std::size_t i = 1; i < under_way_.size(); ++i) {
    try {
      static_cast<void>(runner_->wait());
    } catch (const std::exception&) {
      // It failed, too; if not because of the first, it will say so again.
    }
  }
  for (; under_way_.size() > 1; under_way_.pop_back()) {
    scheduler_->cancel(under_way_.back().plan);
    std::move(under_way_.back().ended.begin(), under_way_.back().ended.end(),
              std::back_inserter(under_way_.front().ended));
  }
  const StepPlan& plan = under_way_.front().plan;
  scheduler_->cancel(plan);
  for (const PlannedSequence& planned : plan.sequences) {
    if (planned.sequence->status == SequenceStatus::finished) continue;
    scheduler_->abort(*planned.sequence);
    finish(Generation::of(*planned.sequence), FinishReason::error, false, error);
  }
  under_way_.pop_front();
}

template <class Model, class Policy>
void Engine<Model, Policy>::drain() {
  for (; !under_way_.empty(); under_way_.pop_front()) {
    try {
      static_cast<void>(runner_->wait());
    } catch (const std::exception&) {
      // Nobody is left to hear of it.
    }
  }
}

}  // namespace nanovllm

#include "nanovllm/engine/engine_setup.hpp"  // construction, generate, statistics
