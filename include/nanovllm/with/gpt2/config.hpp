#pragma once
/// config.json of a GPT-2 checkpoint (GPT2LMHeadModel), and the table of its tensors.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/model/config_fields.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/model/model.hpp"

namespace nanovllm {

/// What tensors a GPT-2 has.
namespace gpt2_modules {

using namespace extents;
using Role = ModuleRole;

inline constexpr FamilyModule embedding{"wte", "token_embd", Role::vocabulary, vocab, hidden},
    positions{"wpe", "position_embd", Role::table, entries, hidden},
    attention_norm{"h.#.ln_1", "blk.#.attn_norm", Role::norm, hidden},
    qkv{"h.#.attn.c_attn", "blk.#.attn_qkv", Role::by_rows, q, hidden, 3},
    out{"h.#.attn.c_proj", "blk.#.attn_output", Role::by_columns, hidden, q},
    mlp_norm{"h.#.ln_2", "blk.#.ffn_norm", Role::norm, hidden},
    fc{"h.#.mlp.c_fc", "blk.#.ffn_up", Role::by_rows, width, hidden},
    proj{"h.#.mlp.c_proj", "blk.#.ffn_down", Role::by_columns, hidden, width},
    final_norm{"ln_f", "output_norm", Role::norm, hidden},
    lm_head{"lm_head", "output", Role::vocabulary, vocab, hidden};
inline constexpr std::array all{embedding, positions, attention_norm, qkv,        out,
                                mlp_norm,  fc,        proj,           final_norm, lm_head};

}  // namespace gpt2_modules

inline constinit FamilyTable kGpt2Table{"gpt2", gpt2_modules::all, "n_head", nullptr, "n_inner"};
inline const bool kHasGpt2Table = FamilyTable::add(kGpt2Table);

/// What the engine needs to know about a checkpoint. `load` and `from_json` guarantee the ranges
/// given here and ModelLimits. In brackets: the names in the file.
struct Gpt2Config {
  using Shape = struct Gpt2Shape;

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
  std::vector<std::string> warnings;   ///< what the files say and is ignored

  /// Reads config.json and, if there is one, generation_config.json. Throws LoadError when
  /// config.json cannot be read, ConfigError that lists every problem, among them each setting that
  /// asks for a model this engine does not compute. A tied model that has a head of its own is
  /// none. The checkpoint gets the warnings.
  [[nodiscard]] static Gpt2Config load(const Checkpoint& checkpoint);

  /// The same from the files' texts; an empty `generation_text` stands for an absent file.
  [[nodiscard]] static Gpt2Config from_json(std::string_view text,
                                            std::string_view generation_text = {},
                                            std::string_view source = "config.json");
};

/// The sizes of all ranks together.
[[nodiscard]] inline DecoderSizes sizes_of(const Gpt2Config& config) {
  const std::int64_t heads = std::max<std::int64_t>(config.num_heads, 1);  // 0 was refused
  return {config.hidden_size,
          config.num_layers,
          config.vocab_size,
          config.intermediate_size,
          {heads, heads, config.hidden_size / heads},
          config.num_positions};
}

/// How many weights a model of these sizes has, within 1%: what its matrices hold. No overflow for
/// sizes within ModelLimits.
[[nodiscard]] inline std::int64_t num_parameters(const Gpt2Config& config) {
  const DecoderSizes sizes = sizes_of(config);
  return size_of(gpt2_modules::all, sizes) -
         (config.tie_word_embeddings ? size_of({&gpt2_modules::lm_head, 1}, sizes) : 0);
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

#include "nanovllm/io/json_fields.hpp"

namespace nanovllm {

namespace detail {

/// Reads the fields that say how large the model is.
NANOVLLM_INLINE void read_gpt2_sizes(const JsonFields& fields, Gpt2Config& out,
                                     Problems& problems) {
  // 0 stands for a size that is missing or refused; what depends on it is then not judged.
  const auto size = [&](const char* key, std::int64_t limit) {
    return fields.required_integer(key, 1, limit).value_or(0);
  };
  using Limits = ModelLimits;
  out.hidden_size = size("n_embd", Limits::kHiddenSize);
  out.num_layers = size("n_layer", Limits::kNumLayers);
  out.num_heads = size("n_head", Limits::kNumHeads);
  out.vocab_size = size("vocab_size", Limits::kVocabSize);
  out.intermediate_size =
      fields.integer("n_inner", 1, Limits::kIntermediateSize).value_or(4 * out.hidden_size);
  // Files of the first releases have both names, and some have the old one alone.
  const auto old_name = fields.integer("n_ctx", 1, Limits::kNumPositions);
  const bool has_new_name = fields.find("n_positions") != nullptr || !old_name;
  out.num_positions =
      has_new_name ? size("n_positions", Limits::kNumPositions) : old_name.value_or(0);
  if (old_name && out.num_positions > 0 && *old_name != out.num_positions) {
    problems.add("'n_positions' (", out.num_positions, ") and 'n_ctx' (", *old_name, ") disagree");
  }
  if (out.hidden_size > 0 && out.num_heads > 0) {
    if (out.hidden_size % out.num_heads != 0) {
      problems.add("'n_embd' (", out.hidden_size, ") must be a multiple of 'n_head' (",
                   out.num_heads, ")");
    } else if (out.hidden_size / out.num_heads > Limits::kHeadDim) {
      problems.add("'n_embd' / 'n_head' must be at most ", Limits::kHeadDim, ", got ",
                   out.hidden_size / out.num_heads);
    }
  }
  check_num_parameters(num_parameters(out), problems);
}

/// Adds a problem for each setting that asks for a model this engine does not compute.
NANOVLLM_INLINE void check_gpt2_supported(const JsonFields& fields, Problems& problems) {
  check_model_type(fields, "gpt2", problems);
  if (const auto act = fields.string("activation_function"); act && *act != "gelu_new") {
    fields.wrong("activation_function", "\"gelu_new\"", *fields.find("activation_function"));
  }
  if (fields.boolean("scale_attn_weights") == false) {
    problems.add("'scale_attn_weights' must be true: attention is scaled by head_dim^-0.5");
  }
  const auto must_be_false = [&](const char* key, const char* what) {
    if (fields.boolean(key) == true)
      problems.add("'", key, "' must be false: ", what, " not supported");
  };
  must_be_false("scale_attn_by_inverse_layer_idx", "a scale of each layer's own is");
  must_be_false("reorder_and_upcast_attn", "another precision of attention is");
  must_be_false("add_cross_attention", "cross-attention is");
}

}  // namespace detail

NANOVLLM_INLINE Gpt2Config Gpt2Config::from_json(std::string_view text,
                                                 std::string_view generation_text,
                                                 std::string_view source) {
  const Json json = parse_json_object<ConfigError>(text, source);
  Problems problems;
  const JsonFields fields(json, "", problems);
  Gpt2Config out;
  detail::read_gpt2_sizes(fields, out, problems);
  detail::check_gpt2_supported(fields, problems);
  out.layer_norm_eps = fields
                           .number("layer_norm_epsilon", "a number in (0, 1)",
                                   [](double x) { return x > 0 && x < 1; })
                           .value_or(1e-5);
  out.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(true);
  out.dtype = read_dtype(fields, problems);
  read_generation(fields, generation_text, out.vocab_size, out.generation, out.eos_token_ids,
                  problems);
  problems.raise<ConfigError>(source);
  out.warnings = problems.warnings();
  return out;
}

NANOVLLM_INLINE Gpt2Config Gpt2Config::load(const Checkpoint& checkpoint) {
  const ConfigTexts texts = read_config_texts(checkpoint);
  Gpt2Config out = from_json(texts.config, texts.generation, texts.source);
  check_forms(checkpoint, texts, out.warnings);
  for (const char* table : {"wte.weight", "transformer.wte.weight"}) {
    if (out.tie_word_embeddings && has_own_head(checkpoint, table, out.warnings))
      out.tie_word_embeddings = false;
  }
  pass_warnings(out.warnings, checkpoint);
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
