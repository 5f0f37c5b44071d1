#pragma once
/// What is behind an `Engine<Model, Policy>`. A program whose engine a library has compiled does
/// not read this (engine/compiled.hpp); policy.hpp brings it to those with a policy or model of
/// their own.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/core.hpp"
#include "nanovllm/engine/core/counters.hpp"
#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/engine_inside.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/engine/kv_identity.hpp"
#include "nanovllm/engine/request/batch_generate.hpp"
#include "nanovllm/engine/request/event_queue.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/engine/setup.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

namespace detail {

/// One line where all elements are the same, else three.
template <class E>
[[nodiscard]] std::string describe_elements() {
  const auto weight = weight_format_name<typename E::Weight>();
  const auto activation = name(kDType<typename E::Activation>);
  const auto kv = kv_format_name<typename E::KvElement>();
  if (weight == activation && weight == kv) return concat("Element        ", weight);
  return concat("Weight         ", weight, "\nActivation     ", activation, "\nKvElement      ",
                kv);
}

}  // namespace detail

/// The slots of `Policy` as they are in force, one a line.
template <class Policy>
[[nodiscard]] std::string describe() {
  using Cache = typename Policy::template PrefixCache<Policy::kv.block_size>;
  return concat(detail::describe_elements<ElementsOf<Policy>>(),                      //
                "\nBackend        ", type_name<typename Policy::Backend>(),           //
                "\nRanks          ", type_name<typename Policy::Ranks>(),             //
                "\nCommunicator   ", type_name<CommunicatorOf<Policy>>(),             //
                "\nScheduling     ", type_name<typename Policy::Scheduling>(),        //
                "\nPreemption     ", type_name<typename Policy::Preemption>(),        //
                "\nProcessors     ", type_name<typename Policy::LogitsProcessors>(),  //
                "\nLogitsFunctor  ", type_name<typename Policy::LogitsFunctor>(),     //
                "\nDraws          ", type_name<typename DrawsOf<Policy>::type>(),     //
                "\nPrefixCache    ", type_name<Cache>(),                              //
                "\nTiers          ", type_name<typename Policy::Tiers>(),             //
                "\nkv             block_size = ", Policy::kv.block_size,              //
                ", prefix_caching = ", Policy::kv.prefix_caching, "\n");
}

/// What runs its steps, and the slots of its policy.
template <class Policy>
[[nodiscard]] std::string describe_engine(const StepRunner& runner, std::int32_t num_kv_blocks) {
  return concat(runner.describe_backend(), ", ", runner.num_ranks(), " rank(s), ", num_kv_blocks,
                " KV blocks of ", Policy::kv.block_size, " tokens\n", describe<Policy>(),
                "Executor       ", runner.executor_name(), "\n");
}

/// The whole way of a request, from text to text:
///
///     text ─ tokenizer ─► Sequence ─ scheduler ─► StepPlan ─ runner ─► StepInputs
///          ─ model ─► logits ─ sampler ─► token ids ─ scheduler.commit ─► detokenizer ─► text
///
/// docs/reading.md leads through the files behind it.
template <class Model, class Policy>
class EngineBody final : public EngineOf<ConfigOf<Model>> {
 public:
  using Config = ConfigOf<Model>;

  /// @param weights  unset: those of the checkpoint of `config`.
  EngineBody(Config model, std::optional<RandomWeights> weights, EngineConfig&& config);
  ~EngineBody() override;

  RequestId submit(const Prompt& prompt, const SamplingParams& params,
                   TokenCallback callback) override {
    return frontend_->submit(prompt, params, std::move(callback))->id();
  }
  bool abort(RequestId id) override { return inbox_.abort(id); }
  bool step() override;
  void run(const std::stop_token& stop) override {
    while (!stop.stop_requested()) {
      if (!step()) inbox_.wait(stop);
    }
  }
  void run_worker() override { core_->runner().run_worker(); }
  std::vector<Output> generate_each(std::span<const Prompt> prompts,
                                    std::span<const SamplingParams> params) override {
    return BatchGenerate(*frontend_, inbox_, on_generate_).run(prompts, params, [this] { step(); });
  }
  /// See EngineOf::InsideMaker.
  [[nodiscard]] std::shared_ptr<EngineInside> make_inside() {
    return inside_.get([this] {
      return std::make_shared<EngineInsideOf<Core>>(
          *core_, extras_, *frontend_, inbox_,
          kv_identity<Policy>(model_, core_->runner(), weights_), [this] { step(); });
    });
  }

  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt) const override {
    return frontend_->encode(prompt);
  }
  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt,
                                            const std::stop_token& stop) const override {
    return frontend_->encode(prompt, true, stop);
  }
  [[nodiscard]] const TextSide& text() const override { return frontend_->text(); }
  [[nodiscard]] const Config& model_config() const override { return model_; }
  [[nodiscard]] std::span<const TokenId> eos_token_ids() const override {
    return frontend_->rules().eos_token_ids;
  }
  [[nodiscard]] std::int64_t vocab_size() const override { return frontend_->rules().vocab_size; }
  [[nodiscard]] std::optional<std::int64_t> hidden_size() const override {
    if constexpr (requires { std::int64_t(model_.hidden_size); }) return model_.hidden_size;
    return {};
  }
  [[nodiscard]] std::shared_ptr<const Pooler> label_head() const override { return label_head_; }
  [[nodiscard]] std::int64_t max_total_tokens() const override {
    return frontend_->rules().max_total_tokens;
  }

  [[nodiscard]] EngineStats stats() const override {
    return with_network(inbox_.stats(), core_->runner());
  }
  [[nodiscard]] Latencies latencies() const override { return inbox_.latencies(); }
  [[nodiscard]] Health health() const override { return core_->runner().health(); }
  void reset() override { core_->reset(); }
  [[nodiscard]] std::string describe() const override {
    return describe_engine<Policy>(std::as_const(*core_).runner(), core_->num_kv_blocks());
  }
  void check_invariants() const override { core_->check_invariants(); }

 private:
  using Blocks = BlocksOf<Policy>;
  using Core = EngineCore<typename Policy::Scheduling, Blocks, typename Policy::Preemption>;

  Config model_;
  const Extras extras_;
  WeightsHash weights_;
  std::shared_ptr<const Pooler> label_head_;
  GenerateCallback on_generate_;
  Inbox inbox_;
  EventQueue events_;
  InsideOwner inside_;
  std::optional<Frontend> frontend_;
  std::optional<Core> core_;
};

template <class Model, class Policy>
EngineBody<Model, Policy>::EngineBody(Config model, std::optional<RandomWeights> weights,
                                      EngineConfig&& config)
    : model_(divided_model<typename Policy::Tiers>(std::move(model), config)),
      extras_(config.extras),
      on_generate_(config.on_generate) {
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
  label_head_ = std::move(parts.label_head);
}

template <class Model, class Policy>
EngineBody<Model, Policy>::~EngineBody() {
  inside_.close();
  core_->shut_down();
  events_.deliver([](const auto&, const std::string&) {});
  inside_.wait();
}

template <class Model, class Policy>
bool EngineBody<Model, Policy>::step() {
  const bool computed = core_->step();
  events_.deliver([this](const std::shared_ptr<Request>& request, const std::string& error) {
    core_->fail(request, error);  // its callback threw
  });
  return computed || !inbox_.empty() || events_.is_delivered_elsewhere();
}

/// Loads the checkpoint of `config`. Throws LoadError or ConfigError.
/// @param shape  that config.json must agree with: the model's, or one of its family.
template <class Model, class Policy>
[[nodiscard]] std::unique_ptr<EngineOf<ConfigOf<Model>>> make_engine_body(
    const detail::ShapeOf<Model>& shape, EngineConfig config) {
  static_assert(check_model_config<Model>());
  auto model = load_model_config<Model, Policy>(config);
  detail::check_shape(shape, model);
  return std::make_unique<EngineBody<Model, Policy>>(std::move(model), std::nullopt,
                                                     std::move(config));
}

/// Runs `model` with noise for weights.
template <class Model, class Policy>
[[nodiscard]] std::unique_ptr<EngineOf<ConfigOf<Model>>> make_engine_body(
    const detail::ShapeOf<Model>& shape, const ConfigOf<Model>& model, RandomWeights weights,
    EngineConfig config) {
  static_assert(check_model_config<Model>());
  detail::check_shape(shape, model);
  return std::make_unique<EngineBody<Model, Policy>>(model, weights, std::move(config));
}

/// The model that an engine of `Model` is compiled from.
template <class Model, class Policy>
using SharedModel =
    std::conditional_t<kReadsHeadShape<typename Policy::Backend>, Model, AnySizeOf<Model>>;

/// See engine/compiled.hpp.
template <class Model, class Policy>
struct detail::BodyMaker {
  static std::unique_ptr<EngineOf<ConfigOf<Model>>> make(EngineConfig&& config) {
    return make_engine_body<SharedModel<Model, Policy>, Policy>(ModelTraits<Model>::kShape,
                                                                std::move(config));
  }
  static std::unique_ptr<EngineOf<ConfigOf<Model>>> make(const ConfigOf<Model>& model,
                                                         RandomWeights weights,
                                                         EngineConfig&& config) {
    return make_engine_body<SharedModel<Model, Policy>, Policy>(ModelTraits<Model>::kShape, model,
                                                                weights, std::move(config));
  }
  static std::shared_ptr<EngineInside> make_inside(EngineOf<ConfigOf<Model>>& engine) {
    return static_cast<EngineBody<SharedModel<Model, Policy>, Policy>&>(engine).make_inside();
  }
};

}  // namespace nanovllm
