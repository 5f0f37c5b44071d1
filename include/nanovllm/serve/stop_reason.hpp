#pragma once
/// What ended a choice, as vLLM's field `stop_reason` says it.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

/// What a request may be ended by, beside its length.
struct StopRules {
  std::vector<std::string> stop{};
  std::vector<TokenId> stop_token_ids{};
  std::vector<TokenId> eos_token_ids{};  ///< none with ignore_eos
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;

  [[nodiscard]] static StopRules of(const SamplingParams& params, std::span<const TokenId> eos);

  /// Whether reasons need to know the tokens of a choice.
  [[nodiscard]] bool need_tokens() const { return !stop.empty() || !stop_token_ids.empty(); }

  /// The stop string, or the id of the stop token, that ended a choice; null where it was an end
  /// token of the model.
  /// @param tokens     all tokens of the choice.
  /// @param text_size  bytes of its text.
  [[nodiscard]] Json reason(const std::optional<Tokenizer>& tokenizer,
                            std::span<const TokenId> tokens, std::size_t text_size) const;
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/stop_reason.inc"
#endif
