#pragma once
/// `Engine<Model, Policy>`: the whole way of a request, from text to text.
///
/// ```cpp
/// nanovllm::Engine<nanovllm::Qwen3<nanovllm::shapes::qwen3_0_6b>> engine({.model = "Qwen3-0.6B"});
/// auto outputs = engine.generate({"Once upon a time"}, {.temperature = 0.6f, .max_tokens = 256});
/// ```
///
/// What an engine does is in engine/engine_body.hpp.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/compiled.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/policy_checks.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/model/shape.hpp"

namespace nanovllm {

/// An inference engine for one checkpoint: all that `AnyEngine` can do, which it converts to, and
/// what its config.json says. Engines of a process share nothing.
///
/// @tparam Model   e.g. `Qwen3<shapes::qwen3_8b>`, or `Qwen3<shapes::qwen3_any>`.
/// @tparam Policy  see policy.hpp.
template <class Model, class Policy>
class Engine : public EngineCalls<Engine<Model, Policy>> {
 public:
  using Config = ConfigOf<Model>;
  using Checked = detail::PolicyToCheck<Model, Policy>;
  /// The policy, or the default one where a check has told of a fault.
  using Sound = CheckedPolicy<Policy, check_policy_names<Checked>(), check_policy_slots<Checked>(),
                              check_backend<BackendOf<Checked>, BackendElements<Checked>>(),
                              check_policy_executor<detail::ExecutorToCheck<Model, Checked>>()>;
  using Slots = CheckedPolicy<Sound, check_policy_runner<detail::RunnerToCheck<Model, Sound>>()>;

  /// Loads the checkpoint of `config.model`. Throws LoadError or ConfigError.
  explicit Engine(EngineConfig config) : body_(detail::body_of<Model, Slots>(std::move(config))) {}

  /// Runs `model` with noise for weights. There is no tokeniser: prompts are token ids.
  Engine(const Config& model, RandomWeights weights, EngineConfig config)
      : body_(detail::body_of<Model, Slots>(model, weights, std::move(config))) {}

  /// Waits for the steps under way. Requests that have not ended end with FinishReason::abort, and
  /// their callbacks are told here. Other threads may be in calls of what was added to it, such as
  /// sessions, and only in those: it waits for them. It must not be called in one, by a callback.
  ~Engine() = default;

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  operator AnyEngine&() { return any(); }               // NOLINT(google-explicit-constructor)
  operator const AnyEngine&() const { return *body_; }  // NOLINT(google-explicit-constructor)

  // As AnyEngine has them.
  RequestId submit(const Prompt& prompt, const SamplingParams& params = {},
                   TokenCallback callback = {}) {
    return body_->submit(prompt, params, std::move(callback));
  }
  bool abort(RequestId id) { return body_->abort(id); }
  bool step() { return body_->step(); }
  void run(const std::stop_token& stop) { body_->run(stop); }
  void run_worker() { body_->run_worker(); }
  std::vector<Output> generate_each(std::span<const Prompt> prompts,
                                    std::span<const SamplingParams> params) {
    return body_->generate_each(prompts, params);
  }
  /// Throws Cancelled, too, soon after a request to stop.
  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt,
                                            const std::stop_token& stop = {}) const {
    return body_->encode(prompt, stop);
  }
  [[nodiscard]] const TextSide& text() const { return body_->text(); }
  [[nodiscard]] const Config& model_config() const { return body_->model_config(); }
  [[nodiscard]] std::span<const TokenId> eos_token_ids() const { return body_->eos_token_ids(); }
  [[nodiscard]] std::int64_t vocab_size() const { return body_->vocab_size(); }
  [[nodiscard]] std::optional<std::int64_t> hidden_size() const { return body_->hidden_size(); }
  [[nodiscard]] std::shared_ptr<const Pooler> label_head() const { return body_->label_head(); }
  [[nodiscard]] const Tokenizer& tokenizer() const { return body_->tokenizer(); }
  [[nodiscard]] std::int64_t max_total_tokens() const { return body_->max_total_tokens(); }
  [[nodiscard]] EngineStats stats() const { return body_->stats(); }
  [[nodiscard]] std::shared_ptr<const BlockMap> block_map() { return body_->block_map(); }
  [[nodiscard]] Latencies latencies() const { return body_->latencies(); }
  [[nodiscard]] Health health() const { return body_->health(); }
  void reset() { body_->reset(); }
  [[nodiscard]] std::string describe() const { return body_->describe(); }
  void check_invariants() const { body_->check_invariants(); }

 private:
  friend class EngineCalls<Engine>;

  AnyEngine& any() {
    detail::open_inside<Model, Policy>(*body_);
    return *body_;
  }

  std::unique_ptr<EngineOf<Config>> body_;
};

}  // namespace nanovllm

// Header-only, or in a file of nvcc, all that an engine of Qwen3 is made of. Programs that name
// engines of other models, make_engine or AllModels include them in every mode; with a library
// policy.hpp and text/tokenizer.hpp, too. docs/building.md lists what a header-only program
// includes for chat templates, GGUF files, packed integers and embeddings (core/door.hpp).
#if !defined(NANOVLLM_SEPARATE) || defined(__CUDACC__)
#include "nanovllm/policy.hpp"
#if defined(__CUDACC__)
#include "nanovllm/cuda.cuh"
#endif
#endif
