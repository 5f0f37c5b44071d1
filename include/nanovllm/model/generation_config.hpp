#pragma once
/// generation_config.json: how the checkpoint's makers want it sampled.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm {

/// Default sampling settings and end tokens. What the file does not say is unset; the fields have
/// the ranges of the same fields of SamplingParams.
struct GenerationConfig {
  std::vector<TokenId> eos_token_ids;  ///< ascending, each once
  std::optional<float> temperature;    ///< 0, greedy, when the file says do_sample false
  std::optional<std::int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;

  /// Reads the file's text. Throws ConfigError that lists every problem.
  [[nodiscard]] static GenerationConfig from_json(
      std::string_view text, std::string_view source = "generation_config.json");
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/model/generation_config.inc"
#endif
