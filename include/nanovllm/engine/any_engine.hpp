#pragma once
/// An engine of whatever model and policy: what every engine can do, for code that is compiled
/// once, such as servers and bindings.
///
/// ```cpp
/// nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_0_6b>> engine({.model = "Qwen3-0.6B"});
/// run_server(engine);  // void run_server(nvllm::AnyEngine&)
/// ```

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
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
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/engine/runner/health.hpp"
#include "nanovllm/kv/block_map.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

class Tokenizer;
struct EngineInside;
struct TextSide;

/// What `Engine` and `AnyEngine` both offer on top of `AnyEngine::generate_each`.
/// @tparam Self  derives from this, and has `AnyEngine& any()`.
template <class Self>
class EngineCalls {
 public:
  /// Serves one prompt. As below, what cannot be served is an output with an error.
  Output generate(const Prompt& prompt, const SamplingParams& params = {}) {
    return std::move(any().generate_each(std::span(&prompt, 1), std::span(&params, 1)).front());
  }

  /// Serves all `prompts` and returns their outputs in the same order. A prompt that cannot be
  /// served fails alone: its output has finish_reason `error` and the reason. If this throws,
  /// its requests are taken back.
  template <RangeOf<Prompt> Prompts>
  std::vector<Output> generate(const Prompts& prompts, const SamplingParams& params = {}) {
    return any().generate_each(list_of(prompts), std::span(&params, 1));
  }
  std::vector<Output> generate(std::initializer_list<Prompt> prompts,
                               const SamplingParams& params = {}) {
    return any().generate_each(prompts, std::span(&params, 1));
  }

  /// The same with settings for every prompt. Throws RequestError when their numbers differ.
  template <RangeOf<Prompt> Prompts, std::convertible_to<std::span<const SamplingParams>> Params>
  std::vector<Output> generate(const Prompts& prompts, const Params& params) {
    const std::vector<Prompt> list = list_of(prompts);
    const std::span<const SamplingParams> settings(params);
    check<RequestError>(settings.size() == list.size(), "generate: ", list.size(),
                        " prompts need as many SamplingParams, got ", settings.size());
    return any().generate_each(list, settings);
  }

 protected:
  EngineCalls() = default;
  ~EngineCalls() = default;

 private:
  auto& any() { return static_cast<Self&>(*this).any(); }

  template <class Prompts>
  static std::vector<Prompt> list_of(const Prompts& prompts) {
    return std::vector<Prompt>(std::begin(prompts), std::end(prompts));
  }
};

/// What an engine can do. Every member may be called from any thread at any time, and from
/// callbacks; steps run one at a time. An `Engine` converts to it; one of your own need not have
/// `generate_each`, whose default throws Error, and `inside`.
class AnyEngine : public EngineCalls<AnyEngine> {
 public:
  AnyEngine() = default;
  AnyEngine(const AnyEngine&) = delete;
  AnyEngine& operator=(const AnyEngine&) = delete;
  virtual ~AnyEngine() = default;

  // ---- Requests ----

  /// Queues a request and returns at once; `step` or `run` serves it. `callback`, if any, is told
  /// of every token and of the end; TokenCallback says what becomes of what it throws. Throws
  /// RequestError for a request that can never be served.
  virtual RequestId submit(const Prompt& prompt, const SamplingParams& params = {},
                           TokenCallback callback = {}) = 0;

  /// Aborts a request: in the next call of `step`, of whatever thread, it ends with
  /// FinishReason::abort, and its callback is told. Returns whether it had not ended or been
  /// aborted before; false for an id that was never given.
  virtual bool abort(RequestId id) = 0;

  // ---- Serving them ----

  /// Waits for the oldest step, delivers its results and calls the callbacks. The scheduling policy
  /// chooses what a step computes for the requests that are waiting or running. With
  /// `EngineConfig::overlap`, the next step has been launched by then and is computed meanwhile;
  /// tokens are the same either way. Returns false when there was nothing to do and nothing has
  /// come meanwhile.
  virtual bool step() = 0;

  /// Serves requests until `stop` is requested, and sleeps while there are none. What is not done
  /// by then stays where it is. While a thread is in `run`, every request is served to its end,
  /// even if other threads call `step`. Throws what `step` throws.
  virtual void run(const std::stop_token& stop) = 0;

  /// With `EngineConfig::processes`, every process makes the same engine. That of rank 0 serves
  /// requests; the others call this, which does their part of its steps and returns when rank 0's
  /// engine is destroyed. Throws what fails here, or an Error that says which other rank failed or
  /// was lost.
  virtual void run_worker() = 0;

  // ---- Both in one: the rest is in EngineCalls ----

  /// What every `generate` calls.
  /// @param params  one for all of `prompts`, or one each.
  virtual std::vector<Output> generate_each(std::span<const Prompt> prompts,
                                            std::span<const SamplingParams> params);

  // ---- What it is, and how it does ----

  /// The tokens of `prompt`, as `submit` takes them. Throws RequestError if they are more than fit,
  /// or want a tokeniser or a chat template.
  [[nodiscard]] virtual std::vector<TokenId> encode(const Prompt& prompt) const = 0;

  /// The tokeniser and the chat template of the checkpoint, as far as it has them; the type is in
  /// engine/request/frontend.hpp.
  [[nodiscard]] virtual const TextSide& text() const = 0;

  /// The tokeniser of the checkpoint, of text/tokenizer.hpp. Throws ConfigError when it has none.
  [[nodiscard]] const Tokenizer& tokenizer() const;

  [[nodiscard]] virtual std::span<const TokenId> eos_token_ids() const = 0;
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  /// Elements of a hidden state, and so of a whole embedding; unset if it is not known.
  [[nodiscard]] virtual std::optional<std::int64_t> hidden_size() const { return {}; }
  /// What reads labels from the hidden states of a checkpoint for classification; null for others.
  [[nodiscard]] virtual std::shared_ptr<const Pooler> label_head() const { return nullptr; }
  /// Most tokens of a sequence: the model's context, or what the KV pool holds and one more.
  [[nodiscard]] virtual std::int64_t max_total_tokens() const = 0;

  /// Counters and state. Every request submitted is counted once: as waiting, running or finished.
  [[nodiscard]] virtual EngineStats stats() const = 0;

  /// What each block of the KV pool is used for, for a picture. Never waits for a step: while the
  /// engine computes one, this is the map of an earlier call, or null, and the engine makes a new
  /// map at the step's end, for the next call. A step costs nothing more unless there was a call
  /// before it. Null from an engine without such maps.
  [[nodiscard]] virtual std::shared_ptr<const BlockMap> block_map() { return nullptr; }

  /// The histograms behind the percentiles of `stats`; a copy takes 17 KB. The difference of two
  /// copies has what came between them.
  [[nodiscard]] virtual Latencies latencies() const = 0;

  /// Whether its ranks work. Answers also while a step hangs.
  [[nodiscard]] virtual Health health() const = 0;

  /// Makes tensor-parallel ranks able to compute again that have failed, and fail every request
  /// since. Requests that wait or run stay, and are computed from the start. Throws Error when it
  /// cannot be done: a rank or its device hangs or is lost, or ranks are in other processes.
  virtual void reset() = 0;

  /// Backend, threads, ranks, KV pool, policy and what runs the steps, for people.
  [[nodiscard]] virtual std::string describe() const = 0;

  /// Throws Error naming the first broken invariant of the scheduler and its block manager.
  virtual void check_invariants() const = 0;

  /// Its scheduler and what is around it, for what is added to an engine from outside; the type is
  /// in engine/engine_inside.hpp. Null where nothing can be.
  [[nodiscard]] virtual std::shared_ptr<EngineInside> inside() { return nullptr; }

 private:
  template <class Self>
  friend class EngineCalls;

  AnyEngine& any() { return *this; }
};

/// An engine of a model with this config.
template <class Config>
class EngineOf : public AnyEngine {
 public:
  /// What config.json says.
  [[nodiscard]] virtual const Config& model_config() const = 0;

  /// As AnyEngine has it; throws Cancelled soon after a request to stop.
  [[nodiscard]] virtual std::vector<TokenId> encode(const Prompt& prompt,
                                                    const std::stop_token& stop) const = 0;
  using AnyEngine::encode;

  /// Makes its inside. A function of its own, so that a program without such additions compiles
  /// nothing for them.
  using InsideMaker = std::shared_ptr<EngineInside> (*)(EngineOf&);
  void set_inside_maker(InsideMaker make) { make_inside_.store(make, std::memory_order_relaxed); }
  [[nodiscard]] std::shared_ptr<EngineInside> inside() override {
    const InsideMaker make = make_inside_.load(std::memory_order_relaxed);
    return make != nullptr ? make(*this) : nullptr;
  }

 private:
  std::atomic<InsideMaker> make_inside_{nullptr};
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

NANOVLLM_INLINE std::vector<Output> AnyEngine::generate_each(std::span<const Prompt>,
                                                             std::span<const SamplingParams>) {
  throw Error("this engine serves requests that are submitted, and has no 'generate'");
}

NANOVLLM_INLINE const Tokenizer& AnyEngine::tokenizer() const {
  check<ConfigError>(text().tokenizer.has_value(), "the checkpoint has no tokenizer.json");
  return *text().tokenizer;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
