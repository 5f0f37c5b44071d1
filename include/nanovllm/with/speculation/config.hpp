#pragma once
/// The settings of speculative decoding, and what it adds to an engine's statistics.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/kv/kv_config.hpp"

namespace nanovllm {

class AnyEngine;
struct EngineConfig;

/// One of `EngineConfig::extras`, for policies whose `Guesses` are DraftedBy. The names are those
/// of vLLM's `--speculative-config`.
struct SpeculativeConfig {
  static constexpr std::int32_t kMaxTokens = 63;
  static constexpr std::int32_t kMaxLookup = 256;

  /// Which of the policy's drafters: its `kMethod`. Empty: the first.
  std::string method{};
  /// Files of a drafter that has some.
  std::filesystem::path model{};
  /// The KV pool of `ModelDrafter`; unset: as an engine chooses it. On a GPU it has what the target
  /// leaves.
  std::optional<KvSize> model_kv_size{};
  /// Most tokens that are drafted for a sequence in a step, [0, 63]; 0 turns drafting off.
  std::int32_t num_speculative_tokens = 5;
  /// Of `NgramDrafter`: tokens of the longest and of the shortest suffix that is looked up, in [1,
  /// kMaxLookup]: each length costs time and memory. If one is unset, it is as the other; if both
  /// are, 5 and 3.
  std::optional<std::int32_t> prompt_lookup_max{};
  std::optional<std::int32_t> prompt_lookup_min{};
  /// Each step drafts as many tokens, 0 included, as give most tokens a second, by measured times
  /// of steps (DraftLength). False: num_speculative_tokens always.
  bool adaptive = true;
  /// Of policies with `DraftsOnDemand`: makes the engine of `model`.
  std::function<std::unique_ptr<AnyEngine>(const EngineConfig&)> make_engine{};

  [[nodiscard]] std::int32_t lookup_max() const {
    return prompt_lookup_max.value_or(prompt_lookup_min.value_or(5));
  }
  [[nodiscard]] std::int32_t lookup_min() const {
    return prompt_lookup_min.value_or(prompt_lookup_max.value_or(3));
  }

  /// See Extras.
  void validate() const {
    check<ConfigError>(num_speculative_tokens >= 0 && num_speculative_tokens <= kMaxTokens,
                       "SpeculativeConfig::num_speculative_tokens must be in [0, ", kMaxTokens,
                       "], got ", num_speculative_tokens);
    check<ConfigError>(lookup_max() <= kMaxLookup,
                       "SpeculativeConfig: prompt_lookup_max must be at most ", kMaxLookup,
                       ", got ", lookup_max());
    check<ConfigError>(lookup_min() >= 1 && lookup_min() <= lookup_max(),
                       "SpeculativeConfig: prompt_lookup_min must be in [1, prompt_lookup_max = ",
                       lookup_max(), "], got ", lookup_min());
  }
  [[nodiscard]] Extras::Numbers shared() const {
    return {{"num_speculative_tokens", num_speculative_tokens}};
  }
  [[nodiscard]] std::string unread() const {
    if (num_speculative_tokens == 0) return {};
    return "SpeculativeConfig is set, but the policy has no drafters; include "
           "nanovllm/with/speculation.hpp and give it 'using Guesses = "
           "nanovllm::DraftedBy<nanovllm::NgramDrafter>;'";
  }
};

/// One of `EngineStats::extras`.
struct SpeculationStats {
  std::int64_t num_steps = 0;     ///< that checked drafted tokens
  std::int64_t num_drafts = 0;    ///< chains that steps checked, one of a sequence
  std::int64_t num_drafted = 0;   ///< tokens of these chains
  std::int64_t num_accepted = 0;  ///< of them, those that were drawn
  std::int64_t num_failed = 0;    ///< times that the drafter threw
  /// Of num_accepted, those at each place of a chain: num_speculative_tokens places.
  std::vector<std::int64_t> accepted_by_position{};
};

}  // namespace nanovllm
