#pragma once
/// vLLM's field `stop_reason`: what ended a choice.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

/// What may end a request, apart from its length.
struct StopRules {
  std::vector<std::string> stop{};
  std::vector<TokenId> stop_token_ids{};
  std::vector<TokenId> eos_token_ids{};  ///< none with ignore_eos
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;

  [[nodiscard]] static StopRules of(const SamplingParams& params, std::span<const TokenId> eos);

  /// Whether `reason` needs the tokens of a choice.
  [[nodiscard]] bool need_tokens() const { return !stop.empty() || !stop_token_ids.empty(); }

  /// The stop string, or the id of the stop token, that ended a choice; null if it was an end token
  /// of the model.
  /// @param tokens     all tokens of the choice.
  /// @param text_size  bytes of its text.
  [[nodiscard]] Json reason(const std::optional<Tokenizer>& tokenizer,
                            std::span<const TokenId> tokens, std::size_t text_size) const;
};

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <algorithm>

namespace nanovllm::serve {

NANOVLLM_SERVE_INLINE StopRules StopRules::of(const SamplingParams& params,
                                              std::span<const TokenId> eos) {
  StopRules out{.stop = params.stop,
                .stop_token_ids = params.stop_token_ids,
                .include_stop_str_in_output = params.include_stop_str_in_output,
                .skip_special_tokens = params.skip_special_tokens};
  if (!params.ignore_eos) out.eos_token_ids.assign(eos.begin(), eos.end());
  return out;
}

NANOVLLM_SERVE_INLINE Json StopRules::reason(const std::optional<Tokenizer>& tokenizer,
                                             std::span<const TokenId> tokens,
                                             std::size_t text_size) const {
  if (tokens.empty()) return nullptr;
  const auto is_last = [&](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), tokens.back()) != ids.end();
  };
  if (is_last(eos_token_ids)) return nullptr;
  if (is_last(stop_token_ids)) return tokens.back();
  if (!tokenizer || stop.empty()) return nullptr;
  // The text ends before the stop string, or after it.
  const std::string all = tokenizer->decode(tokens, skip_special_tokens);
  const std::string_view before = std::string_view(all).substr(0, text_size);
  const std::string_view behind = std::string_view(all).substr(before.size());
  for (const std::string& text : stop) {
    if (include_stop_str_in_output ? before.ends_with(text) : behind.starts_with(text)) return text;
  }
  return nullptr;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
