#pragma once
/// The policy slot `Guesses`, and its simplest type: no step checks guesses.

#include <concepts>
#include <cstdint>
#include <memory>

#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/sched/batch_config.hpp"

namespace nanovllm {

/// An engine that is being made, as what guesses for it sees it. References are valid during the
/// call.
struct GuessSetup {
  const EngineConfig& config;
  StepRunner& runner;
  std::int64_t vocab_size = 0;
  std::int64_t max_model_len = 0;  ///< most tokens of a sequence
  BatchConfig batch{};
};

/// A policy's `Guesses`: what guesses tokens of running sequences (`Sequence::guesses`), which a
/// step then checks beside its draws.
///
/// - `validate(config)`: reads the settings that these guesses have, of `config.extras`. Throws
///   ConfigError for what is out of range.
/// - `num_logits(config, batch)`: rows of logits that a step should have, at least
///   `batch.max_num_seqs`.
/// - `observer(setup)`: an observer of the engine's steps that guesses when it is asked to
///   `prepare` one; null for none. Throws ConfigError.
/// - `RankParts`, optional: what these guesses need beside the network of each rank, see
///   NoRankParts.
struct NoGuesses {
  static void validate(const EngineConfig&) {}
  [[nodiscard]] static std::int32_t num_logits(const EngineConfig&, const BatchConfig& batch) {
    return batch.max_num_seqs;
  }
  [[nodiscard]] static std::unique_ptr<StepObserver> observer(const GuessSetup&) { return nullptr; }
};

/// See NoGuesses.
template <class G>
concept GuessesLike = requires(const EngineConfig& config, const BatchConfig& batch,
                               const GuessSetup& setup) {
  G::validate(config);
  { G::num_logits(config, batch) } -> std::same_as<std::int32_t>;
  { G::observer(setup) } -> std::same_as<std::unique_ptr<StepObserver>>;
};

/// The policy's Guesses; NoGuesses where it has none.
template <class Policy>
struct GuessesOf {
  using type = NoGuesses;
};
template <class Policy>
requires requires { typename Policy::Guesses; }
struct GuessesOf<Policy> {
  using type = typename Policy::Guesses;
};

}  // namespace nanovllm
