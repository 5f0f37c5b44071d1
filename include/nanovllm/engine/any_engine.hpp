#pragma once
/// An engine of whatever model and policy, for code that is compiled once: servers, bindings.
///
/// ```cpp
/// nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_0_6b>> engine({.model = "Qwen3-0.6B"});
/// nvllm::EngineAdapter any(engine);
/// run_server(any);  // void run_server(nvllm::AnyEngine&)
/// ```

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/pooling/pooling.hpp"
#include "nanovllm/engine/pooling/score_head.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/engine/runner/health.hpp"
#include "nanovllm/engine/session/session.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// The members of `Engine` that name neither its model nor its policy, with the same guarantees;
/// those of `Pooling` included.
class AnyEngine : public Pooling<AnyEngine> {
 public:
  virtual ~AnyEngine() = default;

  virtual RequestId submit(const Prompt& prompt, const SamplingParams& params,
                           TokenCallback callback) = 0;
  virtual bool abort(RequestId id) = 0;
  // As `Engine::generate`. All throw Error for an engine that serves only what is submitted.
  [[nodiscard]] virtual std::vector<Output> generate(std::span<const Prompt> prompts,
                                                     const SamplingParams& params);
  [[nodiscard]] Output generate(const Prompt& prompt, const SamplingParams& params = {}) {
    return std::move(generate(std::span(&prompt, 1), params).front());
  }
  template <RangeOf<Prompt> Prompts>
  [[nodiscard]] std::vector<Output> generate(const Prompts& prompts,
                                             const SamplingParams& params = {}) {
    const std::vector<Prompt> list(std::begin(prompts), std::end(prompts));
    return generate(std::span(list), params);
  }
  template <RangeOf<Prompt> Prompts, std::convertible_to<std::span<const SamplingParams>> Params>
  [[nodiscard]] std::vector<Output> generate(const Prompts& prompts, const Params& params) {
    const std::vector<Prompt> list(std::begin(prompts), std::end(prompts));
    return generate_each(list, std::span<const SamplingParams>(params));
  }
  [[nodiscard]] std::vector<Output> generate(std::initializer_list<Prompt> prompts,
                                             const SamplingParams& params = {}) {
    return generate(std::span(prompts.begin(), prompts.size()), params);
  }
  /// With settings for every prompt.
  [[nodiscard]] virtual std::vector<Output> generate_each(std::span<const Prompt> prompts,
                                                          std::span<const SamplingParams> params);

  virtual bool step() = 0;
  virtual void run(const std::stop_token& stop) = 0;
  virtual void run_worker() = 0;

  /// Throws Error for an engine without sessions, as the next.
  [[nodiscard]] virtual Session session() { throw Error("this engine has no sessions"); }
  [[nodiscard]] virtual Session load_session(const std::filesystem::path&) { return session(); }

  /// The head of a checkpoint for classification, or null.
  [[nodiscard]] virtual std::shared_ptr<const ScoreHead> score_head() const { return nullptr; }

  [[nodiscard]] virtual std::vector<TokenId> encode(const Prompt& prompt) const = 0;
  [[nodiscard]] virtual const TextSide& text() const = 0;
  /// The tokeniser of the checkpoint. Throws ConfigError when it has none.
  [[nodiscard]] const Tokenizer& tokenizer() const {
    check<ConfigError>(text().tokenizer.has_value(), "the checkpoint has no tokenizer.json");
    return *text().tokenizer;
  }
  [[nodiscard]] virtual std::span<const TokenId> eos_token_ids() const = 0;
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  /// Elements of a hidden state, and so of a whole embedding; unset if it is not known.
  [[nodiscard]] virtual std::optional<std::int64_t> hidden_size() const { return {}; }
  [[nodiscard]] virtual std::int64_t max_total_tokens() const = 0;

  [[nodiscard]] virtual EngineStats stats() const = 0;
  [[nodiscard]] virtual Latencies latencies() const = 0;
  [[nodiscard]] virtual Health health() const = 0;
  virtual void reset() = 0;
  [[nodiscard]] virtual std::string describe() const = 0;
  virtual void check_invariants() const = 0;
};

inline std::vector<Output> AnyEngine::generate(std::span<const Prompt>, const SamplingParams&) {
  throw Error("this engine serves requests that are submitted, and has no 'generate'");
}

inline std::vector<Output> AnyEngine::generate_each(std::span<const Prompt> prompts,
                                                    std::span<const SamplingParams>) {
  return generate(prompts, SamplingParams{});  // throws, too
}

/// `AnyEngine` on an `Engine`, or anything with its members.
/// @tparam Engine  an engine, which is made with the constructor's arguments and lives in here; or
///                 a reference to one, `Engine&`, which must outlive this.
template <class Engine>
class EngineAdapter final : public AnyEngine {
 public:
  template <class... Arguments>
  explicit EngineAdapter(Arguments&&... arguments)
      : engine_(std::forward<Arguments>(arguments)...) {}

  RequestId submit(const Prompt& prompt, const SamplingParams& params,
                   TokenCallback callback) override {
    return engine_.submit(prompt, params, std::move(callback));
  }
  bool abort(RequestId id) override { return engine_.abort(id); }
  using AnyEngine::generate;
  [[nodiscard]] std::vector<Output> generate(std::span<const Prompt> prompts,
                                             const SamplingParams& params) override {
    if constexpr (requires { engine_.generate(prompts, params); })
      return engine_.generate(prompts, params);
    return AnyEngine::generate(prompts, params);
  }
  [[nodiscard]] std::vector<Output> generate_each(std::span<const Prompt> prompts,
                                                  std::span<const SamplingParams> params) override {
    if constexpr (requires { engine_.generate(prompts, params); })
      return engine_.generate(prompts, params);
    return AnyEngine::generate_each(prompts, params);
  }
  bool step() override { return engine_.step(); }
  void run(const std::stop_token& stop) override { engine_.run(stop); }
  void run_worker() override { engine_.run_worker(); }

  [[nodiscard]] Session session() override { return engine_.session(); }
  [[nodiscard]] Session load_session(const std::filesystem::path& path) override {
    return engine_.load_session(path);
  }

  [[nodiscard]] std::shared_ptr<const ScoreHead> score_head() const override {
    if constexpr (requires { engine_.score_head(); }) return engine_.score_head();
    return nullptr;
  }

  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt) const override {
    return engine_.encode(prompt);
  }
  [[nodiscard]] const TextSide& text() const override { return engine_.text(); }
  [[nodiscard]] std::span<const TokenId> eos_token_ids() const override {
    return engine_.model_config().eos_token_ids;
  }
  [[nodiscard]] std::int64_t vocab_size() const override {
    return engine_.model_config().vocab_size;
  }
  [[nodiscard]] std::optional<std::int64_t> hidden_size() const override {
    if constexpr (requires { engine_.model_config().hidden_size; })
      return engine_.model_config().hidden_size;
    return {};
  }
  [[nodiscard]] std::int64_t max_total_tokens() const override {
    return engine_.max_total_tokens();
  }

  [[nodiscard]] EngineStats stats() const override { return engine_.stats(); }
  [[nodiscard]] Latencies latencies() const override { return engine_.latencies(); }
  [[nodiscard]] Health health() const override { return engine_.health(); }
  void reset() override { engine_.reset(); }
  [[nodiscard]] std::string describe() const override { return engine_.describe(); }
  void check_invariants() const override { engine_.check_invariants(); }

 private:
  Engine engine_;
};

template <class Engine>
EngineAdapter(Engine&) -> EngineAdapter<Engine&>;

}  // namespace nanovllm
