#pragma once
/// The policy slot `Guesses` with drafters: speculative decoding.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/core/no_guesses.hpp"
#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/step/rank_part.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/with/speculation/config.hpp"
#include "nanovllm/with/speculation/drafter.hpp"
#include "nanovllm/with/speculation/drafting_observer.hpp"

namespace nanovllm {

namespace detail {

/// Whether `options` name drafter `D`, the first of a policy or another.
template <class D>
[[nodiscard]] bool is_chosen(const SpeculativeConfig& options, bool is_first) {
  return options.method == D::kMethod || (is_first && options.method.empty());
}

/// `RankParts` of guesses by these drafters: of the one that is chosen. None if no drafter has any.
template <class First, class... Others>
struct DrafterParts {};
template <class D>
concept HasRankParts = requires {
  typename D::RankParts;
};
template <class First, class... Others>
requires(HasRankParts<First> || ... || HasRankParts<Others>) struct DrafterParts<First, Others...> {
  struct RankParts {
    template <class Rank>
    [[nodiscard]] static std::unique_ptr<RankPart> make(Rank& rank,
                                                        const typename Rank::Config& model,
                                                        const RunnerConfig& config,
                                                        const BackendConfig& made_from) {
      const auto options = config.extras.of<SpeculativeConfig>();
      std::unique_ptr<RankPart> part;
      const auto make_of = [&]<class D>(std::type_identity<D>, [[maybe_unused]] bool is_first) {
        if constexpr (HasRankParts<D>) {
          if (options.num_speculative_tokens > 0 && is_chosen<D>(options, is_first))
            part = D::RankParts::make(rank, model, config, made_from);
        }
      };
      make_of(std::type_identity<First>(), true);
      (make_of(std::type_identity<Others>(), false), ...);
      return part;
    }
  };
};

}  // namespace detail

/// A policy's Guesses: one of these drafters, which `SpeculativeConfig::method` names.
///
/// ```cpp
/// struct Policy : nanovllm::DefaultPolicy {
///   using Guesses = nanovllm::DraftedBy<nanovllm::NgramDrafter>;
/// };
/// ```
template <DrafterLike First, DrafterLike... Others>
struct DraftedBy : detail::DrafterParts<First, Others...> {
  /// Rows of logits up to which drafts are worth memory of their own; beyond, drafts have the rows
  /// that sequences leave. A row is 4 bytes a token of the vocabulary.
  static constexpr std::int32_t kMostRows = 128;

  static void validate(const EngineConfig& config) {
    const auto options = config.extras.of<SpeculativeConfig>();
    options.validate();
    const bool has_method = (detail::is_chosen<First>(options, true) || ... ||
                             detail::is_chosen<Others>(options, false));
    std::string methods(First::kMethod);
    ((methods += ", ", methods += Others::kMethod), ...);
    check<ConfigError>(has_method,
                       "SpeculativeConfig::method must be empty or one of the policy's: ", methods,
                       "; got '", options.method, "'");
  }

  [[nodiscard]] static std::int32_t num_logits(const EngineConfig& config,
                                               const BatchConfig& batch) {
    const auto options = config.extras.of<SpeculativeConfig>();
    const std::int32_t wanted =
        std::min({batch.max_num_seqs, kMostRows}) * (1 + options.num_speculative_tokens);
    return std::max(batch.max_num_seqs,
                    std::min({wanted, kMostRows, batch.max_num_batched_tokens}));
  }

  [[nodiscard]] static std::unique_ptr<StepObserver> observer(const GuessSetup& setup) {
    const auto options = setup.config.extras.of<SpeculativeConfig>();
    if (options.num_speculative_tokens == 0) return nullptr;
    const DraftSetup drafts{.options = options,
                            .engine = setup.config,
                            .runner = &setup.runner,
                            .vocab_size = setup.vocab_size,
                            .max_model_len = setup.max_model_len,
                            .max_num_seqs = setup.batch.max_num_seqs};
    return std::make_unique<DraftingObserver>(make<First, Others...>(drafts), options,
                                              setup.vocab_size, setup.batch);
  }

 private:
  template <class D, class... Rest>
  [[nodiscard]] static std::unique_ptr<Drafter> make(const DraftSetup& setup) {
    if constexpr (sizeof...(Rest) > 0) {
      if (!setup.options.method.empty() && setup.options.method != D::kMethod)
        return make<Rest...>(setup);
    }
    return std::make_unique<D>(setup);
  }
};

}  // namespace nanovllm
