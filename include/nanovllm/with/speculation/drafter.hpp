#pragma once
/// What drafts tokens of running sequences, and what it is asked.

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/with/speculation/config.hpp"

namespace nanovllm {

class StepRunner;
struct StepPlan;

/// An engine that is being made, as its drafter sees it. References are valid during the call.
struct DraftSetup {
  const SpeculativeConfig& options;
  const EngineConfig& engine;
  StepRunner* runner = nullptr;  ///< of the target; outlives the drafter
  std::int64_t vocab_size = 0;
  std::int64_t max_model_len = 0;  ///< most tokens of a sequence
  std::int32_t max_num_seqs = 0;   ///< most sequences that are asked for at once
};

/// One sequence that is to be drafted for. What else a drafter may read of the target becomes a
/// further member.
struct DraftRequest {
  std::uint64_t sequence = 0;         ///< no other has the number, ever
  std::span<const TokenId> tokens{};  ///< all: the prompt and what was generated; at least one
  std::int32_t num_prompt_tokens = 0;
  std::int32_t max_tokens = 0;  ///< most to draft, ≥ 1
  /// Of the draft before, those that were drawn: they follow the tokens of that call, and after
  /// them there is at least one more.
  std::int32_t num_accepted = 0;
  /// How the token after `tokens` is drawn, without penalties and rules.
  SamplingRow sampling{};
};

/// What may follow a sequence's tokens: a chain, the likeliest token after another.
struct Draft {
  std::vector<TokenId> tokens{};
};

/// Drafts for an engine's sequences. All calls come under the engine's lock, one at a time.
///
/// A sequence's `tokens` only grow. What a drafter keeps of tokens that it drafted and that are not
/// among them, it takes back when it is asked again. A sequence is not asked for in every step, so
/// more tokens may have come than were drafted.
class Drafter {
 public:
  Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;
  virtual ~Drafter() = default;

  /// Drafts for each of `requests` into the draft of its place, which is empty: none to
  /// `max_tokens` tokens. What is longer is cut, and a draft ends before the first token that does
  /// not exist. What it throws costs the step its drafts, and nothing else.
  virtual void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) = 0;

  /// Whether it follows the target's steps. Then no step is planned while another is computed, the
  /// three calls below come for each step, and `propose` before each step, without requests where
  /// nothing is to be drafted.
  [[nodiscard]] virtual bool reads_steps() const { return false; }
  /// A step begins: the sequences of `plan` have their blocks.
  virtual void begin(const StepPlan& /*plan*/) {}
  /// The step that began last is done, and its sequences have their tokens. Those that have ended
  /// have no blocks any more, and may be gone after this call.
  virtual void commit(const StepPlan& /*plan*/) {}
  /// Instead: it was undone.
  virtual void cancel() noexcept {}

  /// The sequence is not asked for again.
  virtual void forget(std::uint64_t /*sequence*/) noexcept {}
};

/// A type for DraftedBy: a Drafter that is made from a DraftSetup, throwing ConfigError or
/// LoadError, and has a name for `SpeculativeConfig::method`.
template <class D>
concept DrafterLike =
    std::derived_from<D, Drafter> && std::constructible_from<D, const DraftSetup&> && requires {
  { D::kMethod } -> std::convertible_to<std::string_view>;
};

}  // namespace nanovllm
