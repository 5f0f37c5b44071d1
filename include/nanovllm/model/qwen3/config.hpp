#pragma once
/// config.json of a Qwen3 checkpoint, in the spelling of transformers 4.x and of 5.x, and the table
/// of its tensors.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/model/config_fields.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/model/model_head.hpp"
#include "nanovllm/model/rope_config.hpp"
#include "nanovllm/model/rope_scaling.hpp"

namespace nanovllm {

/// What tensors a Qwen3 has.
namespace qwen3_modules {

using namespace extents;
using Role = ModuleRole;

inline constexpr FamilyModule embedding{"model.embed_tokens", "token_embd", Role::vocabulary, vocab,
                                        hidden},
    input_norm{"model.layers.#.input_layernorm", "blk.#.attn_norm", Role::norm, hidden},
    q_proj{"model.layers.#.self_attn.q_proj", "blk.#.attn_q", Role::by_rows, q, hidden},
    k_proj{"model.layers.#.self_attn.k_proj", "blk.#.attn_k", Role::by_rows, kv, hidden},
    v_proj{"model.layers.#.self_attn.v_proj", "blk.#.attn_v", Role::by_rows, kv, hidden},
    q_norm{"model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm", Role::norm, head},
    k_norm{"model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm", Role::norm, head},
    o_proj{"model.layers.#.self_attn.o_proj", "blk.#.attn_output", Role::by_columns, hidden, q},
    post_norm{"model.layers.#.post_attention_layernorm", "blk.#.ffn_norm", Role::norm, hidden},
    gate_proj{"model.layers.#.mlp.gate_proj", "blk.#.ffn_gate", Role::by_rows, width, hidden},
    up_proj{"model.layers.#.mlp.up_proj", "blk.#.ffn_up", Role::by_rows, width, hidden},
    down_proj{"model.layers.#.mlp.down_proj", "blk.#.ffn_down", Role::by_columns, hidden, width},
    final_norm{"model.norm", "output_norm", Role::norm, hidden},
    lm_head{"lm_head", "output", Role::vocabulary, vocab, hidden},
    score{"score", "cls.output", Role::table};
inline constexpr std::array qkv{q_proj, k_proj, v_proj};
inline constexpr std::array mlp{gate_proj, up_proj, down_proj};
inline constexpr std::array all{input_norm, q_proj,    k_proj,     v_proj,    q_norm,
                                k_norm,     o_proj,    post_norm,  gate_proj, up_proj,
                                down_proj,  embedding, final_norm, lm_head,   score};

}  // namespace qwen3_modules

inline constinit FamilyTable kQwen3Table{"qwen3", qwen3_modules::all, "num_attention_heads",
                                         "num_key_value_heads", "intermediate_size"};
inline const bool kHasQwen3Table = FamilyTable::add(kQwen3Table);

/// What the engine needs to know about a checkpoint. `load` and `from_json` guarantee the ranges
/// given here and ModelLimits.
struct Qwen3Config {
  using Shape = struct Qwen3Shape;

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
  /// By "architectures": labels of …ForSequenceClassification, none of …Model. `load` also finds
  /// none where it is …ForCausalLM, not tied, and the tensors have neither `model.` in front of
  /// their names nor lm_head: so Qwen3-Embedding-8B was saved.
  ModelHead head = ModelHead::tokens;
  DType dtype = DType::bfloat16;  ///< as the file states; bfloat16 when it does not
  RopeConfig rope;
  std::vector<TokenId> eos_token_ids;  ///< of both files; ascending, each once, < vocab_size
  GenerationConfig generation;         ///< of generation_config.json; unset when it is absent
  std::vector<std::string> warnings;   ///< what the files say and is ignored

  /// Reads config.json and, if there is one, generation_config.json, and looks at the checkpoint's
  /// tensors where these decide: whether there is a head, whether a tied model has one of its own,
  /// whether any matrix is quantised. The checkpoint gets the warnings. Throws LoadError when
  /// config.json cannot be read, ConfigError that lists every problem of the first file that has
  /// any.
  [[nodiscard]] static Qwen3Config load(const Checkpoint& checkpoint);

  /// The same from the files' texts; an empty `generation_text` stands for an absent file.
  [[nodiscard]] static Qwen3Config from_json(std::string_view text,
                                             std::string_view generation_text = {},
                                             std::string_view source = "config.json");
};

/// The sizes of all ranks together.
[[nodiscard]] DecoderSizes sizes_of(const Qwen3Config& config);

/// How many weights a model of these sizes has, within 1%: what its matrices hold. No overflow for
/// sizes within ModelLimits.
[[nodiscard]] std::int64_t num_parameters(const Qwen3Config& config);

/// The longest sequence that the positions were made for.
[[nodiscard]] inline std::int64_t max_context_length(const Qwen3Config& config) {
  return rope_context_length(config.rope, config.max_position_embeddings);
}

/// How the config.json of a family differs from that of Qwen3.
struct Qwen3Spelling {
  std::string_view model_type;
  std::string_view class_prefix;           ///< of "architectures": "Qwen3"
  std::optional<std::int64_t> head_dim{};  ///< without "head_dim"; unset: hidden_size / heads
  bool windows_all_layers = false;         ///< a sliding window is that of every layer
  RopeType rope = RopeType::yarn;          ///< how positions may be stretched
};

/// Reads what all families have that are built as Qwen3 is: RMSNorm, rotary positions, heads in
/// groups, a gated MLP. Who calls this checks `num_parameters`.
void read_qwen3(const JsonFields& fields, std::string_view generation_text,
                const Qwen3Spelling& spelling, Qwen3Config& out, Problems& problems);

/// What the tensors of `checkpoint` say. Sets `head` to none if they are of a decoder that was
/// saved without one, and `tie_word_embeddings` to false if they have a head of their own.
void look_at_tensors(const Checkpoint& checkpoint, const ConfigTexts& texts, Qwen3Config& config);

/// Reads the config of a family that is built so. Throws as `Qwen3Config::load`.
/// @param read_more  reads what the family has more, and adds a problem for what it has not.
void load_as_qwen3(const Checkpoint& checkpoint, const Qwen3Spelling& spelling, Qwen3Config& out,
                   const std::function<void(const JsonFields&, Problems&)>& read_more = {});

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstddef>
#include <limits>

#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/model/prefixed_checkpoint.hpp"

namespace nanovllm {

NANOVLLM_INLINE DecoderSizes sizes_of(const Qwen3Config& config) {
  return {config.hidden_size,
          config.num_hidden_layers,
          config.vocab_size,
          config.intermediate_size,
          {config.num_attention_heads, config.num_key_value_heads, config.head_dim}};
}

NANOVLLM_INLINE std::int64_t num_parameters(const Qwen3Config& config) {
  const DecoderSizes sizes = sizes_of(config);
  const bool has_head = config.head == ModelHead::tokens && !config.tie_word_embeddings;
  return size_of(qwen3_modules::all, sizes) -
         (has_head ? 0 : size_of({&qwen3_modules::lm_head, 1}, sizes));
}

namespace detail {

/// Reads the fields that say how large the model is.
NANOVLLM_INLINE void read_sizes(const JsonFields& fields, const Qwen3Spelling& spelling,
                                Qwen3Config& out, Problems& problems) {
  // 0 stands for a size that is missing or refused; what depends on it is then not judged.
  const auto size = [&](const char* key, std::int64_t limit) {
    return fields.required_integer(key, 1, limit).value_or(0);
  };
  using Limits = ModelLimits;
  out.hidden_size = size("hidden_size", Limits::kHiddenSize);
  out.num_hidden_layers = size("num_hidden_layers", Limits::kNumLayers);
  out.num_attention_heads = size("num_attention_heads", Limits::kNumHeads);
  out.num_key_value_heads = size("num_key_value_heads", Limits::kNumHeads);
  out.intermediate_size = size("intermediate_size", Limits::kIntermediateSize);
  out.vocab_size = size("vocab_size", Limits::kVocabSize);
  out.max_position_embeddings = size("max_position_embeddings", Limits::kNumPositions);
  const auto head_dim = fields.integer("head_dim", 1, Limits::kHeadDim);
  if (head_dim || spelling.head_dim) {
    out.head_dim = head_dim ? *head_dim : *spelling.head_dim;
    if (out.head_dim % 2 != 0) problems.add("'head_dim' must be even, got ", out.head_dim);
  } else if (out.hidden_size > 0 && out.num_attention_heads > 0) {
    out.head_dim = out.hidden_size / out.num_attention_heads;
    const bool is_refused = fields.find("head_dim") != nullptr && !fields.is_null("head_dim");
    if (!is_refused &&
        (out.head_dim < 2 || out.head_dim > Limits::kHeadDim || out.head_dim % 2 != 0)) {
      problems.add("'hidden_size' / 'num_attention_heads' must be even and in [2, ",
                   Limits::kHeadDim, "] where 'head_dim' is absent, got ", out.head_dim);
    }
  }
  if (out.num_attention_heads > 0 && out.num_key_value_heads > 0 &&
      out.num_attention_heads % out.num_key_value_heads != 0) {
    problems.add("'num_attention_heads' (", out.num_attention_heads,
                 ") must be a multiple of 'num_key_value_heads' (", out.num_key_value_heads, ")");
  }
}

/// Adds a problem for each setting that asks for a model this engine does not compute.
NANOVLLM_INLINE void check_supported(const JsonFields& fields, const Qwen3Spelling& spelling,
                                     std::int64_t num_layers, Problems& problems) {
  check_model_type(fields, spelling.model_type, problems);
  if (const auto act = fields.string("hidden_act"); act && *act != "silu") {
    fields.wrong("hidden_act", "\"silu\"", *fields.find("hidden_act"));
  }
  if (fields.boolean("attention_bias") == true) {
    problems.add("'attention_bias' must be false: biases are not supported");
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const bool use_window =
      fields.boolean("use_sliding_window").value_or(false) && !fields.is_null("sliding_window");
  const auto first_sliding = fields.integer("max_window_layers", 0, kMax).value_or(28);
  if (use_window && spelling.windows_all_layers) {
    problems.add("'use_sliding_window' must be false: sliding-window attention is not supported");
  } else if (const Json* layers = fields.find("layer_types"); layers != nullptr) {
    // The list decides; the other fields only say how it was made.
    const auto full = [](const Json& layer) {
      return layer.is_string() && layer.string() == "full_attention";
    };
    if (const Json* const wrong = JsonFields::first_wrong(*layers, full)) {
      fields.wrong("layer_types", "a list of \"full_attention\" only", *wrong);
    } else if (num_layers > 0 && static_cast<std::int64_t>(layers->size()) != num_layers) {
      problems.add("'layer_types' must have 'num_hidden_layers' (", num_layers, ") entries, got ",
                   layers->size());
    }
  } else if (use_window && first_sliding < num_layers) {
    problems.add("'use_sliding_window' is true, and layers from ", first_sliding,
                 " on would use it: sliding-window attention is not supported");
  }
}

/// By the first of "architectures" that is one of the family; what is wrong with the list is said
/// elsewhere.
NANOVLLM_INLINE ModelHead read_head(const JsonFields& fields, const std::string& class_prefix) {
  const Json* list = fields.find("architectures");
  if (list == nullptr || !list->is_array()) return ModelHead::tokens;
  for (const Json& name : *list) {
    if (name == Json(class_prefix + "ForCausalLM")) return ModelHead::tokens;
    if (name == Json(class_prefix + "ForSequenceClassification")) return ModelHead::labels;
    if (name == Json(class_prefix + "Model")) return ModelHead::none;
  }
  return ModelHead::tokens;
}

NANOVLLM_INLINE void find_missing_head(const Checkpoint& checkpoint, Qwen3Config& config) {
  try {
    const bool lacks_prefix = lacks_model_prefix(checkpoint);
    if (config.tie_word_embeddings) {
      const char* const table = lacks_prefix ? "embed_tokens.weight" : "model.embed_tokens.weight";
      if (has_own_head(checkpoint, table, config.warnings)) config.tie_word_embeddings = false;
    } else if (lacks_prefix && checkpoint.find("lm_head.weight") == nullptr) {
      config.head = ModelHead::none;
    }
  } catch (const LoadError&) {  // a config.json without weights can be read; their loading says so
  }
}

}  // namespace detail

NANOVLLM_INLINE void look_at_tensors(const Checkpoint& checkpoint, const ConfigTexts& texts,
                                     Qwen3Config& config) {
  check_forms(checkpoint, texts, config.warnings);
  if (config.head == ModelHead::tokens) detail::find_missing_head(checkpoint, config);
  pass_warnings(config.warnings, checkpoint);
}

NANOVLLM_INLINE void read_qwen3(const JsonFields& fields, std::string_view generation_text,
                                const Qwen3Spelling& spelling, Qwen3Config& out,
                                Problems& problems) {
  detail::read_sizes(fields, spelling, out, problems);
  detail::check_supported(fields, spelling, out.num_hidden_layers, problems);
  const auto eps =
      fields.number("rms_norm_eps", "a number in (0, 1)", [](double x) { return x > 0 && x < 1; });
  if (fields.find("rms_norm_eps") == nullptr) problems.add("'rms_norm_eps' is missing");
  out.rms_norm_eps = eps.value_or(0);
  out.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(false);
  out.head = detail::read_head(fields, std::string(spelling.class_prefix));
  out.dtype = read_dtype(fields, problems);
  out.rope = read_rope(fields, spelling.rope, out.max_position_embeddings, problems);
  check_rope_size(out.rope, out.max_position_embeddings, out.head_dim, problems);
  read_generation(fields, generation_text, out.vocab_size, out.generation, out.eos_token_ids,
                  problems);
}

NANOVLLM_INLINE void load_as_qwen3(
    const Checkpoint& checkpoint, const Qwen3Spelling& spelling, Qwen3Config& out,
    const std::function<void(const JsonFields&, Problems&)>& read_more) {
  const ConfigTexts texts = read_config_texts(checkpoint);
  const Json json = parse_json_object<ConfigError>(texts.config, texts.source);
  Problems problems;
  const JsonFields fields(json, "", problems);
  read_qwen3(fields, texts.generation, spelling, out, problems);
  if (read_more) read_more(fields, problems);
  check_num_parameters(num_parameters(out), problems);
  problems.raise<ConfigError>(texts.source);
  out.warnings = problems.warnings();
  look_at_tensors(checkpoint, texts, out);
}

NANOVLLM_INLINE Qwen3Config Qwen3Config::from_json(std::string_view text,
                                                   std::string_view generation_text,
                                                   std::string_view source) {
  const Json json = parse_json_object<ConfigError>(text, source);
  Problems problems;
  Qwen3Config out;
  read_qwen3(JsonFields(json, "", problems), generation_text,
             {.model_type = "qwen3", .class_prefix = "Qwen3", .head_dim = 128}, out, problems);
  check_num_parameters(num_parameters(out), problems);
  problems.raise<ConfigError>(source);
  out.warnings = problems.warnings();
  return out;
}

NANOVLLM_INLINE Qwen3Config Qwen3Config::load(const Checkpoint& checkpoint) {
  const ConfigTexts texts = read_config_texts(checkpoint);
  Qwen3Config out = from_json(texts.config, texts.generation, texts.source);
  look_at_tensors(checkpoint, texts, out);
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
