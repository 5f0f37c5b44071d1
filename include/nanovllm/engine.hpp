#pragma once
/// `Engine<Model, Policy>`: the whole way of a request, from text to text.
///
/// ```cpp
/// nanovllm::Engine<nanovllm::Qwen3<nanovllm::shapes::qwen3_0_6b>> engine({.model = "Qwen3-0.6B"});
/// auto outputs = engine.generate({"Once upon a time"}, {.temperature = 0.6f, .max_tokens = 256});
/// ```
///
///     text ─ tokenizer ─► Sequence ─ scheduler ─► StepPlan ─ runner ─► StepInputs
///          ─ model ─► logits ─ sampler ─► token ids ─ scheduler.commit ─► detokenizer ─► text
///
/// docs/reading.md leads through the files behind it.

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/all_models.hpp"
#include "nanovllm/engine/core.hpp"
#include "nanovllm/engine/core/counters.hpp"
#include "nanovllm/engine/describe_policy.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/make_engine.hpp"
#include "nanovllm/engine/pooling/pooling.hpp"
#include "nanovllm/engine/request/batch_generate.hpp"
#include "nanovllm/engine/request/event_queue.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/engine/runner/health.hpp"
#include "nanovllm/engine/session/conversations.hpp"
#include "nanovllm/engine/session/session_kv.hpp"
#include "nanovllm/engine/setup.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/policy.hpp"

#if defined(__CUDACC__)
#include "nanovllm/cuda.cuh"
#elif defined(NANOVLLM_PREBUILT_CUDA)
#include "nanovllm/cuda_policy.hpp"
#endif

namespace nanovllm {

/// An inference engine for one checkpoint. Engines of a process share nothing. Every member may be
/// called from any thread at any time, and from callbacks; steps run one at a time.
///
/// @tparam Model   e.g. `Qwen3<shapes::qwen3_8b>`, or `Qwen3<shapes::qwen3_any>`.
/// @tparam Policy  see policy.hpp.
template <class Model, class Policy>
class Engine : public Conversations<Engine<Model, Policy>>, public Pooling<Engine<Model, Policy>> {
 public:
  static_assert(check_model_config<Model>() && check_tiers<Policy>());
  using Config = typename Model::Config;

  /// Loads the checkpoint of `config.model`. Throws LoadError or ConfigError.
  explicit Engine(EngineConfig config);

  /// Runs `model` with noise for weights. There is no tokeniser: prompts are token ids.
  Engine(const Config& model, RandomWeights weights, EngineConfig config);

  /// Waits for the steps under way. Requests that have not ended end with FinishReason::abort, and
  /// their callbacks are told here. Other threads may be in calls of its sessions, and only in
  /// those: it waits for them. It must not be called in one, by the callback of a turn.
  ~Engine();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- Requests ----

  /// Queues a request and returns at once; `step` or `run` serves it. `callback`, if any, is told
  /// of every token and of the end; TokenCallback says what becomes of what it throws. Throws
  /// RequestError for a request that can never be served.
  RequestId submit(const Prompt& prompt, const SamplingParams& params = {},
                   TokenCallback callback = {}) {
    return frontend_->submit(prompt, params, std::move(callback))->id();
  }

  /// Aborts a request: in the next call of `step`, of whatever thread, it ends with
  /// FinishReason::abort, and its callback is told. Returns whether it had not ended or been
  /// aborted before; false for an id that was never given.
  bool abort(RequestId id) { return inbox_.abort(id); }

  // ---- Serving them ----

  /// Waits for the oldest step, delivers its results and calls the callbacks. The scheduling policy
  /// chooses what a step computes for the requests that are waiting or running. With
  /// `EngineConfig::overlap`, the next step has been launched by then and is computed meanwhile;
  /// tokens are the same either way. Returns false when there was nothing to do and nothing has
  /// come meanwhile.
  bool step();

  /// Serves requests until `stop` is requested, and sleeps while there are none. What is not done
  /// by then stays where it is. While a thread is in `run`, every request is served to its end,
  /// even if other threads call `step`. Throws what `step` throws.
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!step()) inbox_.wait(stop);
    }
  }

  /// With `EngineConfig::processes`, every process makes the same engine. That of rank 0 serves
  /// requests; the others call this, which does their part of its steps and returns when rank 0's
  /// engine is destroyed. Throws what fails here, or an Error that says which other rank failed or
  /// was lost.
  void run_worker() { core_->runner().run_worker(); }

  // ---- Both in one ----

  /// Serves one prompt. As below, what cannot be served is an output with an error.
  Output generate(const Prompt& prompt, const SamplingParams& params = {}) {
    return std::move(generate_all(std::span(&prompt, 1), std::span(&params, 1)).front());
  }

  /// Serves all `prompts` and returns their outputs in the same order. A prompt that cannot be
  /// served fails alone: its output has finish_reason `error` and the reason. If this throws,
  /// its requests are taken back.
  template <RangeOf<Prompt> Prompts>
  std::vector<Output> generate(const Prompts& prompts, const SamplingParams& params = {}) {
    return generate_all(to_list(prompts), std::span(&params, 1));
  }

  /// The same with settings for every prompt. Throws RequestError when their numbers differ.
  template <RangeOf<Prompt> Prompts, std::convertible_to<std::span<const SamplingParams>> Params>
  std::vector<Output> generate(const Prompts& prompts, const Params& params) {
    const std::vector<Prompt> list = to_list(prompts);
    const std::span<const SamplingParams> settings(params);
    check<RequestError>(settings.size() == list.size(), "generate: ", list.size(),
                        " prompts need as many SamplingParams, got ", settings.size());
    return generate_all(list, settings);
  }

  std::vector<Output> generate(std::initializer_list<Prompt> prompts,
                               const SamplingParams& params = {}) {
    return generate_all(prompts, std::span(&params, 1));
  }

  // ---- What it is, and how it does ----

  /// Counters and state. Every request submitted is counted once: as waiting, running or finished.
  [[nodiscard]] EngineStats stats() const { return with_load(inbox_.stats(), core_->runner()); }

  /// The histograms behind the percentiles of `stats`; a copy takes 17 KB. The difference of two
  /// copies has what came between them.
  [[nodiscard]] Latencies latencies() const { return inbox_.latencies(); }

  /// The tokens of `prompt`, as `submit` takes them. Throws RequestError if they are more than fit,
  /// or want a tokeniser or a chat template; and Cancelled soon after a request to stop.
  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt,
                                            const std::stop_token& stop = {}) const {
    return frontend_->encode(prompt, true, stop);
  }

  /// The tokeniser and the chat template of the checkpoint, as far as it has them.
  [[nodiscard]] const TextSide& text() const { return frontend_->text(); }

  /// The tokeniser of the checkpoint. Throws ConfigError when it has none.
  [[nodiscard]] const Tokenizer& tokenizer() const {
    check<ConfigError>(frontend_->text().tokenizer.has_value(),
                       "the checkpoint has no tokenizer.json");
    return *frontend_->text().tokenizer;
  }

  [[nodiscard]] const Config& model_config() const { return model_; }
  /// The head of a checkpoint for classification, or null.
  [[nodiscard]] const std::shared_ptr<const ScoreHead>& score_head() const { return score_head_; }

  /// Most tokens of a sequence: the model's context, or what the KV pool holds and one more.
  [[nodiscard]] std::int64_t max_total_tokens() const {
    return frontend_->rules().max_total_tokens;
  }

  /// Backend, threads, ranks, KV pool, policy and what runs the steps, for people.
  [[nodiscard]] std::string describe() const;

  /// Whether its ranks work. Answers also while a step hangs.
  [[nodiscard]] Health health() const { return core_->runner().health(); }

  /// Makes tensor-parallel ranks able to compute again that have failed, and fail every request
  /// since. Requests that wait or run stay, and are computed from the start. Throws Error when it
  /// cannot be done: a rank or its device hangs or is lost, or ranks are in other processes.
  void reset() { core_->reset(); }

  /// Throws Error naming the first broken invariant of the scheduler and its block manager.
  void check_invariants() const { core_->check_invariants(); }

 private:
  // By reference, so that the arguments of the delegating constructors may be made from it.
  Engine(Config model, std::optional<RandomWeights> weights, EngineConfig&& config);

  template <class Prompts>
  static std::vector<Prompt> to_list(const Prompts& prompts) {
    return std::vector<Prompt>(std::begin(prompts), std::end(prompts));
  }

  std::vector<Output> generate_all(std::span<const Prompt> prompts,
                                   std::span<const SamplingParams> params);

  friend class Conversations<Engine>;
  SessionHost make_session_host();

  using Blocks = BlocksOf<Policy>;
  using Core = EngineCore<typename Policy::Scheduling, Blocks, typename Policy::Preemption>;

  Config model_;
  WeightsHash weights_;
  std::shared_ptr<const ScoreHead> score_head_;
  GenerateCallback on_generate_;
  Inbox inbox_;
  EventQueue events_;
  std::optional<Frontend> frontend_;
  std::optional<Core> core_;
};

// Not inline: a file that uses an engine of prebuilt.hpp compiles neither these nor the core.

template <class Model, class Policy>
Engine<Model, Policy>::Engine(EngineConfig config)
    : Engine(load_model_config<Model>(config), std::nullopt, std::move(config)) {}

template <class Model, class Policy>
Engine<Model, Policy>::Engine(const Config& model, RandomWeights weights, EngineConfig config)
    : Engine(model, std::optional(weights), std::move(config)) {}

template <class Model, class Policy>
Engine<Model, Policy>::Engine(Config model, std::optional<RandomWeights> weights,
                              EngineConfig&& config)
    : model_(divided_model(std::move(model), config)), on_generate_(config.on_generate) {
  auto parts = make_parts<Model, Policy, Blocks>(model_, weights, config);
  needing_memory("the queues", config, [&] {
    core_.emplace(std::move(parts.runner), parts.core, std::move(parts.blocks), parts.observer,
                  inbox_, events_);
  });
  frontend_.emplace(std::move(parts.text),
                    make_admission_rules<Policy>(model_, config, parts.max_model_len,
                                                 core_->capacity_tokens(), core_->runner()),
                    inbox_);
  weights_ = parts.weights;
  score_head_ = std::move(parts.score_head);
}

template <class Model, class Policy>
Engine<Model, Policy>::~Engine() {
  this->close();
  core_->shut_down();
  events_.deliver([](const auto&, const std::string&) {});
  this->wait_for_calls();
}

template <class Model, class Policy>
SessionHost Engine<Model, Policy>::make_session_host() {
  return session_host_on<Blocks>(*core_, *frontend_, inbox_,
                                 kv_identity<Policy>(model_, core_->runner(), weights_),
                                 [this] { step(); });
}

template <class Model, class Policy>
bool Engine<Model, Policy>::step() {
  const bool computed = core_->step();
  events_.deliver([this](const std::shared_ptr<Request>& request, const std::string& error) {
    core_->fail(request, error);  // its callback threw
  });
  return computed || !inbox_.empty() || events_.is_delivered_elsewhere();
}

template <class Model, class Policy>
std::vector<Output> Engine<Model, Policy>::generate_all(std::span<const Prompt> prompts,
                                                        std::span<const SamplingParams> params) {
  return BatchGenerate(*frontend_, inbox_, on_generate_).run(prompts, params, [this] { step(); });
}

template <class Model, class Policy>
std::string Engine<Model, Policy>::describe() const {
  return describe_engine<Policy>(std::as_const(*core_).runner(), core_->num_kv_blocks());
}

}  // namespace nanovllm

#if defined(NANOVLLM_PREBUILT)
#include "nanovllm/engine/prebuilt.hpp"
#endif
