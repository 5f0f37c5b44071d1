#pragma once
/// The policy slot `Guesses` of programs whose users say whether they want speculative decoding.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/core/no_guesses.hpp"
#include "nanovllm/with/speculation/config.hpp"
#include "nanovllm/with/speculation/drafted_by.hpp"
#include "nanovllm/with/speculation/eagle3/config.hpp"
#include "nanovllm/with/speculation/eagle3_drafter.hpp"
#include "nanovllm/with/speculation/model_drafter.hpp"
#include "nanovllm/with/speculation/ngram_drafter.hpp"

namespace nanovllm {

/// The engine that `SpeculativeConfig::make_engine` makes. With that function a program has one
/// engine compiled for the model and for its draft model.
class MadeEngine {
 public:
  explicit MadeEngine(const EngineConfig& config) {
    const auto options = config.extras.of<SpeculativeConfig>();
    check<ConfigError>(options.make_engine != nullptr,
                       "SpeculativeConfig::make_engine must be set for the method draft_model of a "
                       "policy with DraftsOnDemand");
    try {
      engine_ = options.make_engine(config);
    } catch (const LoadError& error) {
      throw LoadError(concat("the draft model: ", error.what()));
    } catch (const ConfigError& error) {
      throw ConfigError(concat("the draft model: ", error.what()));
    }
  }

  [[nodiscard]] const TextSide& text() const { return engine_->text(); }
  [[nodiscard]] std::int64_t max_total_tokens() const { return engine_->max_total_tokens(); }
  std::vector<Output> generate_each(std::span<const Prompt> prompts,
                                    std::span<const SamplingParams> params) {
    return engine_->generate_each(prompts, params);
  }

 private:
  std::unique_ptr<AnyEngine> engine_;
};

/// The library's drafters where `EngineConfig::extras` has a SpeculativeConfig, and otherwise
/// NoGuesses.
struct DraftsOnDemand {
  using Drafters = DraftedBy<NgramDrafter, ModelDrafter<MadeEngine>, Eagle3Drafter>;
  /// None where nothing is wanted: of no options the method is the first.
  using RankParts = Drafters::RankParts;

  static void validate(const EngineConfig& config) {
    if (!is_wanted(config)) return;
    Drafters::validate(config);
    const auto options = config.extras.of<SpeculativeConfig>();
    check<ConfigError>(options.method != "draft_model" || !is_eagle3_head(options.model), "'",
                       options.model.string(), "' is an EAGLE-3 head: expected the speculative ",
                       "method eagle3 for it, got draft_model");
  }
  [[nodiscard]] static std::int32_t num_logits(const EngineConfig& config,
                                               const BatchConfig& batch) {
    return is_wanted(config) ? Drafters::num_logits(config, batch)
                             : NoGuesses::num_logits(config, batch);
  }
  [[nodiscard]] static std::unique_ptr<StepObserver> observer(const GuessSetup& setup) {
    return is_wanted(setup.config) ? Drafters::observer(setup) : nullptr;
  }

 private:
  [[nodiscard]] static bool is_wanted(const EngineConfig& config) {
    return config.extras.find<SpeculativeConfig>() != nullptr;
  }
};

}  // namespace nanovllm
