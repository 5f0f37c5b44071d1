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
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/core.hpp"
#include "nanovllm/engine/core/counters.hpp"
#include "nanovllm/engine/core/no_guesses.hpp"
#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/engine_inside.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/engine/kv_identity.hpp"
#include "nanovllm/engine/policy_checks.hpp"
#include "nanovllm/engine/request/batch_generate.hpp"
#include "nanovllm/engine/request/event_queue.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/engine/setup.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

/// The slots of a policy by name.
struct NamedSlots {
  ElementNames elements;
  std::vector<std::pair<std::string_view, std::string_view>> types;  ///< slot and type
  KvConfig kv;
};

/// One a line.
[[nodiscard]] std::string describe(const NamedSlots& slots);

/// The slots of `Policy` as they are in force, one a line.
template <class Policy>
[[nodiscard]] std::string describe() {
  using Cache = typename Policy::template PrefixCache<Policy::kv.block_size>;
  return describe({.elements = ElementNames::of<ElementsOf<Policy>>(),
                   .types = {{"Backend", type_name<typename Policy::Backend>()},
                             {"Ranks", type_name<typename Policy::Ranks>()},
                             {"Communicator", type_name<CommunicatorOf<Policy>>()},
                             {"Scheduling", type_name<typename Policy::Scheduling>()},
                             {"Preemption", type_name<typename Policy::Preemption>()},
                             {"Processors", type_name<typename Policy::LogitsProcessors>()},
                             {"LogitsFunctor", type_name<typename Policy::LogitsFunctor>()},
                             {"Draws", type_name<typename DrawsOf<Policy>::type>()},
                             {"Guesses", type_name<typename GuessesOf<Policy>::type>()},
                             {"PrefixCache", type_name<Cache>()},
                             {"Tiers", type_name<typename Policy::Tiers>()}},
                   .kv = Policy::kv});
}

/// What runs an engine's steps, and the slots of its policy.
/// @param slots  `describe` of the policy.
[[nodiscard]] std::string describe_engine(const StepRunner& runner, std::int32_t num_kv_blocks,
                                          int block_size, const std::string& slots);

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
  [[nodiscard]] std::shared_ptr<const BlockMap> block_map() override { return core_->block_map(); }
  [[nodiscard]] Latencies latencies() const override { return inbox_.latencies(); }
  [[nodiscard]] Health health() const override { return core_->runner().health(); }
  void reset() override { core_->reset(); }
  [[nodiscard]] std::string describe() const override {
    return describe_engine(std::as_const(*core_).runner(), core_->num_kv_blocks(),
                           Policy::kv.block_size, nanovllm::describe<Policy>());
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
    : model_(divided_model<Policy>(std::move(model), config)),
      extras_(config.extras),
      on_generate_(config.on_generate) {
  auto parts = make_parts<Model, Policy, Blocks>(model_, weights, config);
  needing_memory("the queues", config, [&] {
    const ObserverMaker<Blocks> observers = [&](StepRunner& runner, Blocks& blocks) {
      StepObservers all = parts.observer(runner, blocks);
      if (auto guesses = GuessesOf<Policy>::type::observer(
              {config, runner, parts.core.vocab_size, parts.max_model_len, parts.core.batch}))
        all.add(std::move(guesses));
      return all;
    };
    core_.emplace(std::move(parts.runner), parts.core, std::move(parts.blocks), observers, inbox_,
                  events_);
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

/// Whether the steps of this engine can be computed; a compile error that says what to write if
/// not. `Slot` has the model and the policy.
template <class Slot>
consteval bool check_policy_runner() {
  using Policy = typename Slot::Policy;
  constexpr bool kHas = kHasRunner<SharedModel<typename Slot::Model, Policy>, Policy>;
  static_assert(kHas,
                "nanovllm: no library here has compiled what computes the steps of this model with "
                "this policy's Element, Backend and Ranks. '#include <nanovllm/cpu.hpp>' compiles "
                "it in this file, one for a GPU in a .cu file. See docs/building.md");
  return kHas;
}

/// See engine/compiled.hpp.
template <class Model, class Policy>
struct detail::BodyMaker {
  static std::unique_ptr<EngineOf<ConfigOf<Model>>> make(EngineConfig&& config) {
    if constexpr (check_policy_runner<ModelAndPolicy<Model, Policy>>())
      return make_engine_body<SharedModel<Model, Policy>, Policy>(ModelTraits<Model>::kShape,
                                                                  std::move(config));
    else
      return nullptr;
  }
  static std::unique_ptr<EngineOf<ConfigOf<Model>>> make(const ConfigOf<Model>& model,
                                                         RandomWeights weights,
                                                         EngineConfig&& config) {
    if constexpr (check_policy_runner<ModelAndPolicy<Model, Policy>>())
      return make_engine_body<SharedModel<Model, Policy>, Policy>(ModelTraits<Model>::kShape, model,
                                                                  weights, std::move(config));
    else
      return nullptr;
  }
  static std::shared_ptr<EngineInside> make_inside(EngineOf<ConfigOf<Model>>& engine) {
    return static_cast<EngineBody<SharedModel<Model, Policy>, Policy>&>(engine).make_inside();
  }
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

namespace nanovllm {

NANOVLLM_INLINE std::string describe(const NamedSlots& slots) {
  std::string out;
  const auto add = [&out](std::string_view slot, std::string_view value) {
    out.append(slot).append(15 - slot.size(), ' ').append(value).append("\n");
  };
  const ElementNames& e = slots.elements;
  const bool is_one = e.weight == e.activation && e.weight == e.kv;
  add(is_one ? "Element" : "Weight", e.weight);
  if (!is_one) {
    add("Activation", e.activation);
    add("KvElement", e.kv);
  }
  for (const auto& [slot, type] : slots.types) add(slot, type);
  add("kv",
      concat("block_size = ", slots.kv.block_size, ", prefix_caching = ", slots.kv.prefix_caching));
  return out;
}

NANOVLLM_INLINE std::string describe_engine(const StepRunner& runner, std::int32_t num_kv_blocks,
                                            int block_size, const std::string& slots) {
  return concat(runner.describe_backend(), ", ", runner.num_ranks(), " rank(s), ", num_kv_blocks,
                " KV blocks of ", block_size, " tokens\n", slots, "Executor       ",
                runner.executor_name(), "\n");
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
