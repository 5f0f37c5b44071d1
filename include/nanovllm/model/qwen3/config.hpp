#pragma once
/// config.json of a Qwen3 checkpoint, in the spelling of transformers 4.x and of 5.x.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/model/config_fields.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/model/rope_config.hpp"
#include "nanovllm/model/rope_scaling.hpp"

namespace nanovllm {

/// What the engine needs to know about a checkpoint. `load` and `from_json` guarantee the ranges
/// given here and ModelLimits.
struct ModelConfig {
  std::int64_t hidden_size = 0;  ///< ≥ 1, as are all sizes
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;  ///< a multiple of num_key_value_heads
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 128;  ///< even
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;  ///< in (0, 1)
  bool tie_word_embeddings = false;
  DType dtype = DType::bfloat16;  ///< as the file states; bfloat16 when it does not
  RopeConfig rope;
  std::vector<TokenId> eos_token_ids;  ///< of both files; ascending, each once, < vocab_size
  GenerationConfig generation;         ///< of generation_config.json; unset when it is absent

  /// Reads config.json and, if there is one, generation_config.json. Throws LoadError when
  /// config.json cannot be read, ConfigError that lists every problem of the first file that has
  /// any.
  [[nodiscard]] static ModelConfig load(const std::filesystem::path& directory);

  /// The same from the files' texts; an empty `generation_text` stands for an absent file.
  [[nodiscard]] static ModelConfig from_json(std::string_view text,
                                             std::string_view generation_text = {},
                                             std::string_view source = "config.json");
};

/// How many weights a model of these sizes has, within 1%: what its matrices hold. No overflow for
/// sizes within ModelLimits.
[[nodiscard]] std::int64_t num_parameters(const ModelConfig& config);

/// The longest sequence that the positions were made for.
[[nodiscard]] inline std::int64_t max_context_length(const ModelConfig& config) {
  return rope_context_length(config.rope, config.max_position_embeddings);
}

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/model/qwen3/config.inc"
#endif
