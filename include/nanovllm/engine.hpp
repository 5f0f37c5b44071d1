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
#include "nanovllm/fwd.hpp"
#include "nanovllm/model/shape.hpp"

namespace nanovllm {

/// An inference engine for one checkpoint: all that `AnyEngine` can do, and what its config.json
/// says. Engines of a process share nothing.
///
/// @tparam Model   e.g. `Qwen3<shapes::qwen3_8b>`, or `Qwen3<shapes::qwen3_any>`.
/// @tparam Policy  see policy.hpp.
template <class Model, class Policy>
class Engine final : public EngineOf<ConfigOf<Model>> {
 public:
  using Config = ConfigOf<Model>;

  /// Loads the checkpoint of `config.model`. Throws LoadError or ConfigError.
  explicit Engine(EngineConfig config) : body_(detail::body_of<Model, Policy>(std::move(config))) {}

  /// Runs `model` with noise for weights. There is no tokeniser: prompts are token ids.
  Engine(const Config& model, RandomWeights weights, EngineConfig config)
      : body_(detail::body_of<Model, Policy>(model, weights, std::move(config))) {}

  /// Waits for the steps under way. Requests that have not ended end with FinishReason::abort, and
  /// their callbacks are told here. Other threads may be in calls of its sessions, and only in
  /// those: it waits for them. It must not be called in one, by the callback of a turn.
  ~Engine() override = default;

  // As AnyEngine has them.
  RequestId submit(const Prompt& prompt, const SamplingParams& params = {},
                   TokenCallback callback = {}) override {
    return body_->submit(prompt, params, std::move(callback));
  }
  bool abort(RequestId id) override { return body_->abort(id); }
  bool step() override { return body_->step(); }
  void run(const std::stop_token& stop) override { body_->run(stop); }
  void run_worker() override { body_->run_worker(); }
  std::vector<Output> generate_each(std::span<const Prompt> prompts,
                                    std::span<const SamplingParams> params) override {
    return body_->generate_each(prompts, params);
  }
  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt) const override {
    return body_->encode(prompt);
  }
  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt,
                                            const std::stop_token& stop) const override {
    return body_->encode(prompt, stop);
  }
  [[nodiscard]] const TextSide& text() const override { return body_->text(); }
  [[nodiscard]] const Config& model_config() const override { return body_->model_config(); }
  [[nodiscard]] std::span<const TokenId> eos_token_ids() const override {
    return body_->eos_token_ids();
  }
  [[nodiscard]] std::int64_t vocab_size() const override { return body_->vocab_size(); }
  [[nodiscard]] std::optional<std::int64_t> hidden_size() const override {
    return body_->hidden_size();
  }
  [[nodiscard]] std::shared_ptr<const ScoreHead> score_head() const override {
    return body_->score_head();
  }
  [[nodiscard]] std::int64_t max_total_tokens() const override { return body_->max_total_tokens(); }
  [[nodiscard]] EngineStats stats() const override { return body_->stats(); }
  [[nodiscard]] Latencies latencies() const override { return body_->latencies(); }
  [[nodiscard]] Health health() const override { return body_->health(); }
  void reset() override { body_->reset(); }
  [[nodiscard]] std::string describe() const override { return body_->describe(); }
  void check_invariants() const override { body_->check_invariants(); }
  [[nodiscard]] std::shared_ptr<SessionHost> session_host() override {
    return body_->session_host();
  }

 private:
  std::unique_ptr<EngineOf<Config>> body_;
};

}  // namespace nanovllm

// Header-only, or in a file of nvcc, all that an engine is made of. With a library, a program that
// names more than its engine includes it: policy.hpp, engine/make_engine.hpp, text/tokenizer.hpp.
#if !defined(NANOVLLM_SEPARATE) || defined(__CUDACC__)
#include "nanovllm/engine/all_models.hpp"
#include "nanovllm/engine/make_engine.hpp"
#include "nanovllm/policy.hpp"
#if defined(__CUDACC__)
#include "nanovllm/cuda.cuh"
#endif
#endif
