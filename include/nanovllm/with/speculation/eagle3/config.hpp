#pragma once
/// The files of an EAGLE-3 draft head: config.json in the forms in which heads are published, the
/// names of tensors, and the map from the draft's vocabulary to the target's.
/// Source: Li et al., "EAGLE-3", 2025, arXiv:2503.01840; vLLM's llama_eagle3.py and speculators'
/// models/eagle3 for names and defaults.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/model/qwen3/config.hpp"

namespace nanovllm {

/// What a head needs to know of the model that it drafts for.
struct Eagle3Target {
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t vocab_size = 0;
};

/// What the files of a head say. `load` and `from_json` guarantee ModelLimits.
struct Eagle3Config {
  /// The head's one layer: sizes, RMSNorm, positions; `vocab_size` is the target's.
  Qwen3Config layer;
  std::int64_t draft_vocab_size = 0;  ///< rows of lm_head, ≤ layer.vocab_size
  /// The residual begins with the normed stream, in place of the stream itself.
  bool norm_before_residual = false;
  bool norm_before_fc = false;  ///< `input_norm` over all captured streams of a token together
  bool fc_norm = false;         ///< `fc_norm.i`, a norm for each of them
  bool norm_output = false;     ///< a step feeds back its output after the final norm
  /// The residual streams of the target that `fc` takes, by the layers that they enter, counted
  /// from 0. Unset: `stream_layers` has the usual ones.
  std::optional<std::vector<std::int64_t>> stream_layers;
  std::optional<std::int64_t> num_speculative_tokens;  ///< that speculators' files propose, ≥ 1

  // What the tensors say; `from_json` leaves it as it is.
  std::string prefix = "layers.0.";  ///< of the layer's tensors: this, or "midlayer."
  bool has_embedding = false;        ///< of its own; else the target's is used
  bool norms_heads = false;          ///< q_norm and k_norm
  bool has_qkv_bias = false;
  bool has_output_bias = false;
  /// The target's id for each of the draft's, [draft_vocab_size]; empty: the same ids.
  std::vector<TokenId> target_ids;
  std::vector<std::string> warnings;  ///< what config.json says and is ignored

  /// Reads config.json and looks at the tensors' names and at d2t. The checkpoint gets the
  /// warnings. Throws LoadError when a file cannot be read, when the tensors are of no head, or
  /// d2t is missing or wrong; ConfigError that lists every problem of config.json.
  [[nodiscard]] static Eagle3Config load(const Checkpoint& checkpoint);

  /// The first part of that, from a text. Forms of config.json:
  ///
  /// - speculators (RedHatAI): "speculators_model_type": "eagle3", the layer under
  ///   "transformer_layer_config";
  /// - vLLM and AngelSlim: all fields at the top, "architectures" Eagle3LlamaForCausalLM or
  ///   Eagle3Qwen3ForCausalLM, "eagle_config" {"eagle_aux_hidden_state_layer_ids",
  ///   "norm_before_fc"};
  /// - SafeAILab and SGLang: the same with LlamaForCausalLMEagle3, or LlamaForCausalLM and
  ///   "draft_vocab_size".
  [[nodiscard]] static Eagle3Config from_json(std::string_view text,
                                              std::string_view source = "config.json");
};

/// Whether `path` is a directory whose config.json is that of an EAGLE-3 head, be it a broken one.
[[nodiscard]] bool is_eagle3_head(const std::filesystem::path& path);

/// The layers whose streams a head takes by default, 2, L / 2 and L - 3 of the target's L, or those
/// that its file has. Throws ConfigError for layers that the target has not, and where its hidden
/// size or vocabulary is not the head's.
[[nodiscard]] std::vector<std::int64_t> stream_layers(const Eagle3Config& config,
                                                      const Eagle3Target& target);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/model/config_fields.hpp"
#include "nanovllm/model/rope_config.hpp"

namespace nanovllm {

namespace detail {

/// Adds a problem unless "architectures", at the top of config.json, is that of a head.
NANOVLLM_INLINE void check_eagle3_class(const JsonFields& fields, bool is_speculators,
                                        Problems& problems) {
  if (is_speculators) {
    if (fields.string("speculators_model_type").value_or("eagle3") != "eagle3")
      fields.wrong("speculators_model_type", "\"eagle3\"", *fields.find("speculators_model_type"));
    return;
  }
  constexpr std::array<std::string_view, 3> kClasses{
      "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"};
  const Json* const list = fields.find("architectures");
  const auto is_head = [&](const Json& name) {
    if (!name.is_string()) return false;
    return std::ranges::find(kClasses, name.string()) != kClasses.end() ||
           (name.string() == "LlamaForCausalLM" && fields.find("draft_vocab_size") != nullptr);
  };
  if (list != nullptr && list->is_array() && std::any_of(list->begin(), list->end(), is_head))
    return;
  problems.add(
      "this is no EAGLE-3 head: expected \"speculators_model_type\": \"eagle3\", or "
      "'architectures' with LlamaForCausalLMEagle3, Eagle3LlamaForCausalLM or "
      "Eagle3Qwen3ForCausalLM, got ",
      list == nullptr                         ? "no 'architectures'"
      : list->is_array() && list->size() == 1 ? shown((*list)[0])
                                              : shown(*list));
}

/// Reads "eagle_aux_hidden_state_layer_ids", if it is there.
NANOVLLM_INLINE void read_stream_layers(const JsonFields& fields, Eagle3Config& out,
                                        Problems& problems) {
  constexpr const char* kKey = "eagle_aux_hidden_state_layer_ids";
  const Json* const list = fields.find(kKey);
  if (list == nullptr) return;
  constexpr std::size_t kMost = 16;
  std::vector<std::int64_t> layers;
  const auto add = [&](const Json& item) {
    const auto id = JsonFields::as_integer(item);
    layers.push_back(id.value_or(-1));
    return layers.back() >= 0 && layers.back() <= ModelLimits::kNumLayers;
  };
  const Json* const wrong = JsonFields::first_wrong(*list, add);
  if (wrong != nullptr || layers.empty() || layers.size() > kMost)
    return fields.wrong(kKey, "a list of 1 to 16 numbers of layers, counted from 0",
                        wrong != nullptr ? *wrong : *list);
  if (out.stream_layers && *out.stream_layers != layers)
    problems.add("two values for '", kKey, "'");
  out.stream_layers = std::move(layers);
}

/// Reads what heads have at the top of config.json, or under "eagle_config".
NANOVLLM_INLINE void read_eagle3_fields(const JsonFields& fields, Eagle3Config& out,
                                        Problems& problems) {
  const auto read = [&](const char* key, bool& value) {
    value = fields.boolean(key).value_or(value);
  };
  read("norm_before_residual", out.norm_before_residual);
  read("norm_before_fc", out.norm_before_fc);
  read("fc_norm", out.fc_norm);
  read("norm_output", out.norm_output);
  read_stream_layers(fields, out, problems);
}

/// How many tokens the first of "proposal_methods" drafts.
NANOVLLM_INLINE void read_proposal(const JsonFields& fields, Eagle3Config& out,
                                   Problems& problems) {
  const Json* const speculators = fields.find("speculators_config");
  const Json* const methods = speculators == nullptr || !speculators->is_object()
                                  ? nullptr
                                  : speculators->find("proposal_methods");
  if (methods == nullptr || !methods->is_array() || methods->size() == 0) return;
  if (const Json& first = (*methods)[0]; first.is_object()) {
    out.num_speculative_tokens =
        JsonFields(first, "speculators_config.proposal_methods[0].", problems)
            .integer("speculative_tokens", 1, 1024);
  }
}

/// Reads the layer from the object that describes it.
NANOVLLM_INLINE void read_eagle3_layer(Json json, Eagle3Config& out, Problems& problems) {
  json["attention_bias"] = Json(false);  // the tensors say whether there are biases
  const JsonFields fields(json, "", problems);
  const std::string type = fields.string("model_type").value_or("");
  const bool is_qwen3 = type == "qwen3";
  if (!is_qwen3 && !type.empty() && type != "llama")
    return fields.wrong("model_type", "\"llama\" or \"qwen3\"", *fields.find("model_type"));
  read_qwen3(fields, {},
             {.model_type = is_qwen3 ? "qwen3" : "llama",
              .class_prefix = "",
              .head_dim = is_qwen3 ? std::optional<std::int64_t>(128) : std::nullopt,
              .windows_all_layers = true,
              .rope = is_qwen3 ? RopeType::yarn : RopeType::llama3},
             out.layer, problems);
  if (fields.boolean("mlp_bias") == true) problems.add("'mlp_bias' must be false");
  if (out.layer.num_hidden_layers > 1)
    problems.add("'num_hidden_layers' must be 1: heads of several layers are not supported, got ",
                 out.layer.num_hidden_layers);
}

/// The elements of `d2t`. Throws LoadError unless they map to [0, vocab_size).
NANOVLLM_INLINE std::vector<TokenId> read_target_ids(const Checkpoint& checkpoint,
                                                     const Eagle3Config& config) {
  const CheckpointTensor* const d2t = checkpoint.find("d2t");
  const std::int64_t count = config.draft_vocab_size, vocab = config.layer.vocab_size;
  if (d2t == nullptr) {
    check<LoadError>(count == vocab, "'", checkpoint.name(), "': 'd2t' is missing; 'vocab_size' ",
                     vocab, " and 'draft_vocab_size' ", count,
                     " differ, so that it must say which token each of the draft's is");
    return {};
  }
  check<LoadError>(d2t->dtype == FileDType::i64 &&
                       d2t->shape == std::vector<std::uint64_t>{static_cast<std::uint64_t>(count)},
                   "'", checkpoint.name(), "': 'd2t' must be I64 of shape [", count, "], got ",
                   d2t->type_name(), " ", shape_string(d2t->shape));
  std::vector<TokenId> out;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    std::memcpy(&offset, d2t->data.data() + static_cast<std::size_t>(i) * sizeof offset,
                sizeof offset);
    check<LoadError>(offset >= -i && offset < vocab - i, "'", checkpoint.name(), "': 'd2t' has ",
                     offset, " for token ", i, " of the draft, which is not in [0, ", vocab,
                     ") of the target");
    out.push_back(static_cast<TokenId>(i + offset));
  }
  return out;
}

}  // namespace detail

NANOVLLM_INLINE Eagle3Config Eagle3Config::from_json(std::string_view text,
                                                     std::string_view source) {
  const Json json = parse_json_object<ConfigError>(text, source);
  Problems problems;
  Eagle3Config out;
  const JsonFields fields(json, "", problems);
  const Json* const layer = fields.find("transformer_layer_config");
  const bool is_speculators = fields.find("speculators_model_type") != nullptr;
  detail::check_eagle3_class(fields, is_speculators, problems);
  problems.raise<ConfigError>(source);  // of another model there is nothing more to say
  if (is_speculators && (layer == nullptr || !layer->is_object()))
    problems.add("'transformer_layer_config' must be an object, which describes the head's layer");
  problems.raise<ConfigError>(source);
  detail::read_eagle3_layer(is_speculators ? *layer : json, out, problems);
  const std::int64_t vocab = out.layer.vocab_size;
  out.draft_vocab_size =
      fields.integer("draft_vocab_size", 1, ModelLimits::kVocabSize).value_or(vocab);
  if (vocab > 0 && out.draft_vocab_size > vocab)
    problems.add("'draft_vocab_size' (", out.draft_vocab_size, ") must be at most 'vocab_size' (",
                 vocab, ")");
  const auto target = fields.integer("target_hidden_size", 1, ModelLimits::kHiddenSize);
  if (target && out.layer.hidden_size > 0 && *target != out.layer.hidden_size)
    problems.add("'target_hidden_size' (", *target, ") must be 'hidden_size' (",
                 out.layer.hidden_size, "): heads of another width are not supported");
  detail::read_eagle3_fields(fields, out, problems);
  if (const Json* const eagle = fields.find("eagle_config"); eagle && eagle->is_object()) {
    const JsonFields inner(*eagle, "eagle_config.", problems);
    detail::read_eagle3_fields(inner, out, problems);
    if (inner.boolean("use_aux_hidden_state") == false)
      problems.add("'eagle_config.use_aux_hidden_state' must be true: a head without residual ",
                   "streams is not EAGLE-3");
  }
  if (out.norm_before_fc && out.fc_norm)
    problems.add("'norm_before_fc' and 'fc_norm' exclude each other");
  detail::read_proposal(fields, out, problems);
  problems.raise<ConfigError>(source);
  out.warnings = problems.warnings();
  return out;
}

NANOVLLM_INLINE Eagle3Config Eagle3Config::load(const Checkpoint& checkpoint) {
  const ConfigTexts texts = read_config_texts(checkpoint);
  Eagle3Config out = from_json(texts.config, texts.source);
  const auto has = [&](std::string_view name) { return checkpoint.find(name) != nullptr; };
  if (has("midlayer.hidden_norm.weight")) {
    out.prefix = "midlayer.";
  } else {
    check<LoadError>(has("layers.0.hidden_norm.weight"), "'", checkpoint.name(),
                     "' has neither 'midlayer.hidden_norm.weight' nor "
                     "'layers.0.hidden_norm.weight': it is no EAGLE-3 head");
  }
  out.has_embedding = has("embed_tokens.weight");
  // One of a kind is enough: those that are missing beside it are named when they are read.
  const auto has_any = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(
        names, [&](const char* name) { return has(concat(out.prefix, "self_attn.", name)); });
  };
  out.norms_heads = has_any({"q_norm.weight", "k_norm.weight"});
  out.has_qkv_bias = has_any({"q_proj.bias", "k_proj.bias", "v_proj.bias"});
  out.has_output_bias = has_any({"o_proj.bias"});
  out.target_ids = detail::read_target_ids(checkpoint, out);
  pass_warnings(out.warnings, checkpoint);
  return out;
}

NANOVLLM_INLINE bool is_eagle3_head(const std::filesystem::path& path) try {
  if (!std::filesystem::is_directory(path)) return false;
  const Json json = parse_json_object<ConfigError>(read_config_texts(path).config, "config.json");
  Problems problems;
  const JsonFields fields(json, "", problems);
  detail::check_eagle3_class(fields, fields.find("speculators_model_type") != nullptr, problems);
  return problems.empty();
} catch (const std::exception&) {  // who opens it says what is wrong
  return false;
}

NANOVLLM_INLINE std::vector<std::int64_t> stream_layers(const Eagle3Config& config,
                                                        const Eagle3Target& target) {
  Problems problems;
  const Qwen3Config& layer = config.layer;
  if (layer.hidden_size != target.hidden_size)
    problems.add("its 'hidden_size' is ", layer.hidden_size, ", the target's ", target.hidden_size);
  if (layer.vocab_size != target.vocab_size)
    problems.add("its 'vocab_size' is ", layer.vocab_size, ", the target's ", target.vocab_size);
  const std::int64_t count = target.num_layers;
  const std::vector<std::int64_t> out =
      config.stream_layers.value_or(std::vector<std::int64_t>{2, count / 2, count - 3});
  for (const std::int64_t id : out) {
    if (id < 0 || id > count)
      problems.add("it reads the stream that enters layer ", id, " of the target, which has ",
                   count);
  }
  problems.raise<ConfigError>("the EAGLE-3 head is of another model");
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
