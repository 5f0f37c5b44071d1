#pragma once
/// config.json of a GPT-2 checkpoint (GPT2LMHeadModel).

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/model/config_fields.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/model/model.hpp"

namespace nanovllm {

/// What the engine needs to know about a checkpoint. `load` and `from_json` guarantee the ranges
/// given here and ModelLimits. In brackets: the names in the file.
struct Gpt2Config {
  std::int64_t hidden_size = 0;  ///< [n_embd] ≥ 1, as are all sizes; a multiple of num_heads
  std::int64_t num_layers = 0;   ///< [n_layer]
  std::int64_t num_heads = 0;    ///< [n_head]
  std::int64_t intermediate_size = 0;  ///< [n_inner] 4 · hidden_size where it is absent or null
  std::int64_t vocab_size = 0;
  std::int64_t num_positions = 0;      ///< [n_positions, or n_ctx in old files]
  double layer_norm_eps = 1e-5;        ///< [layer_norm_epsilon] in (0, 1)
  bool tie_word_embeddings = true;     ///< as transformers has it where the file says nothing
  DType dtype = DType::bfloat16;       ///< as the file states; bfloat16 when it does not
  std::vector<TokenId> eos_token_ids;  ///< of both files; ascending, each once, < vocab_size
  GenerationConfig generation;         ///< of generation_config.json; unset when it is absent

  /// Reads config.json and, if there is one, generation_config.json. Throws LoadError when
  /// config.json cannot be read, ConfigError that lists every problem, among them each setting that
  /// asks for a model this engine does not compute.
  [[nodiscard]] static Gpt2Config load(const std::filesystem::path& directory);

  /// The same from the files' texts; an empty `generation_text` stands for an absent file.
  [[nodiscard]] static Gpt2Config from_json(std::string_view text,
                                            std::string_view generation_text = {},
                                            std::string_view source = "config.json");
};

/// How many weights a model of these sizes has, within 1%: what its matrices hold. No overflow for
/// sizes within ModelLimits.
[[nodiscard]] inline std::int64_t num_parameters(const Gpt2Config& config) {
  const std::int64_t layer =
      config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size);
  const std::int64_t vocab = config.vocab_size * config.hidden_size;
  return config.num_layers * layer + config.num_positions * config.hidden_size +
         vocab * (config.tie_word_embeddings ? 1 : 2);
}

/// The longest sequence: there is no row of `wpe` for a later token.
[[nodiscard]] inline std::int64_t max_context_length(const Gpt2Config& config) {
  return config.num_positions;
}

/// Sizes that must be the same in all processes of a group.
[[nodiscard]] inline std::vector<ModelSetting> settings_of(const Gpt2Config& config) {
  return {{"n_embd", config.hidden_size},
          {"n_layer", config.num_layers},
          {"n_head", config.num_heads},
          {"n_positions", config.num_positions},
          {"vocab_size", config.vocab_size}};
}

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/model/gpt2/config.inc"
#endif
