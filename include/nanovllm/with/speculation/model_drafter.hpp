#pragma once
/// The drafter that is a smaller model with the same tokenizer, in an engine of its own.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/text/tokenizer.hpp"
#include "nanovllm/with/speculation/drafter.hpp"

namespace nanovllm {

/// Opens `SpeculativeConfig::model` in a `DraftEngine`, an Engine of any model and policy, and
/// drafts what that generates. The engine's prefix cache has what it computed of a sequence in
/// earlier steps: of its tokens those after the last whole block are computed again, with
/// `PrefixCache = RadixPrefixCache` in its policy only those that are new.
///
/// It draws with the settings of the sequence and the random words of the same seed and positions,
/// so that where the two models agree on the likely tokens, they draw the same one.
template <class DraftEngine>
class ModelDrafter final : public Drafter {
 public:
  static constexpr std::string_view kMethod = "draft_model";

  /// Throws LoadError, and ConfigError where the tokenizers differ.
  explicit ModelDrafter(const DraftSetup& setup)
      : engine_(
            EngineConfig{.model = setup.options.model,
                         .extras = {SpeculativeConfig{.num_speculative_tokens = 0,
                                                      .make_engine = setup.options.make_engine}},
                         .device = setup.engine.device,
                         .num_threads = setup.engine.num_threads,
                         .max_num_seqs = setup.max_num_seqs,
                         .kv_size = setup.options.model_kv_size,
                         .overlap = false}) {
    if (setup.engine.model.empty() && !setup.engine.checkpoint) return;  // noise for weights
    const auto target = Tokenizer::from_checkpoint(checkpoint_of(setup.engine)).encode(kProbe);
    const auto& own = engine_.text().tokenizer;
    check<ConfigError>(own && own->encode(kProbe) == target, "SpeculativeConfig::model, '",
                       setup.options.model.string(),
                       "', must have the tokenizer of the model that it drafts for, but a text has "
                       "other tokens by it");
  }

  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    places_.clear();
    prompts_.clear();
    params_.clear();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const DraftRequest& request = requests[i];
      const std::int64_t room = engine_.max_total_tokens() - std::ssize(request.tokens);
      const std::int64_t count = std::min<std::int64_t>(request.max_tokens, room);
      if (count <= 0) continue;
      places_.push_back(i);
      prompts_.emplace_back(std::vector<TokenId>(request.tokens.begin(), request.tokens.end()));
      params_.push_back({.temperature = request.sampling.temperature,
                         .top_k = request.sampling.top_k,
                         .top_p = request.sampling.top_p,
                         .min_p = request.sampling.min_p,
                         .repetition_penalty = 1.f,
                         .seed = request.sampling.seed,
                         .max_tokens = static_cast<std::int32_t>(count)});
    }
    std::vector<Output> outputs = engine_.generate_each(prompts_, params_);
    for (std::size_t j = 0; j < places_.size(); ++j)
      drafts[places_[j]].tokens = std::move(outputs[j].token_ids);
  }

  [[nodiscard]] const DraftEngine& engine() const { return engine_; }

 private:
  /// Letters, digits, signs and spaces of several kinds: two tokenizers that agree on it are one.
  static constexpr const char* kProbe =
      "The quick brown fox jumps over 13 lazy dogs; it's 27.5% \"faster\"?\n\n\tfor (int i = 0; i "
      "< "
      "n; ++i) { naïve_façade[i] += 0x1F; }  Größe 東京 здравствуй! unbelievably interchangeable";

  DraftEngine engine_;
  std::vector<std::size_t> places_;  ///< of the requests that are drafted for
  std::vector<Prompt> prompts_;
  std::vector<SamplingParams> params_;
};

}  // namespace nanovllm
