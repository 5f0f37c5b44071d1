#pragma once
/// The config.json and the generation_config.json that a GGUF file stands for.

#include <string>
#include <string_view>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

class GgufFile;

/// `general.architecture`. Throws LoadError where there is none.
[[nodiscard]] std::string_view gguf_architecture(const GgufFile& file);

/// config.json of the model in `file`: of "qwen3", "qwen3moe" or "gpt2". Of any other architecture
/// it has "model_type" alone: the error of `make_engine`, that no model fits, then names it. Throws
/// one LoadError that lists every key that is missing, and every setting that is not supported.
///
/// What the file does not say: the vocabulary is as large as the table of embeddings, the
/// embeddings are tied where there is no `output.weight`, and layers without a router are dense.
/// With `cls.output.weight` the model is a classifier, whose labels have the names that
/// `<architecture>.classifier.output_labels` gives: so llama.cpp converts Qwen3-Reranker.
[[nodiscard]] std::string gguf_config_json(const GgufFile& file);

/// generation_config.json: the end tokens, and how the makers want the model sampled. The ends are
/// the tokens for the end of a text, of a turn and of a message, and "<|endoftext|>" where it is a
/// control token: Qwen's own file has both the end of a turn and that.
[[nodiscard]] std::string gguf_generation_json(const GgufFile& file);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/with/gguf/gguf_file.hpp"
#include "nanovllm/with/gguf/gguf_metadata.hpp"
#include "nanovllm/with/gguf/gguf_tokenizer.hpp"

namespace nanovllm {

namespace detail {

/// Collects the fields of one config.json.
class GgufConfigReader {
 public:
  explicit GgufConfigReader(const GgufFile& file)
      : file_(file), metadata_(file.metadata()), architecture_(gguf_architecture(file)) {}

  [[nodiscard]] std::string read() {
    if (architecture_ == "gpt2") {
      read_gpt2();
    } else if (architecture_ == "qwen3" || architecture_ == "qwen3moe") {
      read_qwen3();
    } else {
      out_["model_type"] = Json(architecture_);
    }
    problems_.raise<LoadError>(concat("'", file_.name(), "'"));
    return out_.dump();
  }

 private:
  /// The key of this architecture: "qwen3.block_count".
  [[nodiscard]] std::string key(std::string_view name) const {
    return concat(architecture_, ".", name);
  }

  /// A size, which may be stated for each layer; those must be equal.
  std::optional<std::int64_t> size(std::string_view name) {
    const GgufValue* const value = metadata_.find(key(name));
    if (value == nullptr || !value->is_array) return metadata_.integer(key(name));
    const std::vector<std::int64_t> sizes = metadata_.integers(key(name)).value();
    if (sizes.empty() || std::ranges::count(sizes, sizes[0]) != std::ssize(sizes)) {
      problems_.add("'", key(name), "' must be the same in all layers");
      return 0;
    }
    return sizes[0];
  }

  std::int64_t required(std::string_view name) {
    const auto found = size(name);
    if (!found) problems_.add("'", key(name), "' is missing");
    return found.value_or(0);
  }

  /// `field` gets the integer of that key.
  void copy(const char* field, std::string_view name) { out_[field] = required(name); }

  void copy_number(const char* field, std::string_view name) {
    const auto found = metadata_.number(key(name));
    if (!found) return problems_.add("'", key(name), "' is missing");
    out_[field] = *found;
  }

  void read_common(const char* model_type, const std::string& architecture) {
    out_["architectures"] = Json::array({architecture});
    out_["model_type"] = model_type;
    const GgufTensor* const table = file_.find("token_embd.weight");
    if (table == nullptr || table->shape.size() != 2) {
      problems_.add("there is no matrix 'token_embd.weight'");
    } else {
      out_["vocab_size"] = table->shape[0];
    }
    out_["tie_word_embeddings"] = file_.find("output.weight") == nullptr;
    const std::int64_t file_type = metadata_.integer("general.file_type").value_or(-1);
    if (file_type == 0) out_["dtype"] = "float32";
    if (file_type == 1) out_["dtype"] = "float16";
    refuse_other_kinds();
  }

  /// Adds a problem for each setting that changes results and is not computed here.
  void refuse_other_kinds() {
    struct Neutral {
      const char* name;
      double value;
      double also;
    };
    constexpr std::array<Neutral, 16> kNeutral{{{"attention.sliding_window", 0, 0},
                                                {"attention.clamp_kqv", 0, 0},
                                                {"attention.max_alibi_bias", 0, 0},
                                                {"attn_logit_softcapping", 0, 0},
                                                {"final_logit_softcapping", 0, 0},
                                                {"logit_scale", 1, 0},
                                                {"expert_shared_count", 0, 0},
                                                {"expert_gating_func", 1, 0},
                                                {"expert_weights_scale", 1, 0},
                                                {"expert_group_count", 1, 0},
                                                {"nextn_predict_layers", 0, 0},
                                                {"rope.scale_linear", 1, 0},
                                                {"rope.scaling.attn_factor", 1, 1},
                                                {"rope.scaling.yarn_attn_factor", 1, 1},
                                                {"rope.scaling.yarn_ext_factor", 1, 1},
                                                {"rope.scaling.yarn_log_multiplier", 0, 0}}};
    for (const Neutral& setting : kNeutral) {
      const auto found = metadata_.number(key(setting.name));
      if (found && *found != setting.value && *found != setting.also)
        problems_.add("'", key(setting.name), "' must be ", Json(setting.value).dump(), ", got ",
                      Json(*found).dump(), ": nothing else is supported");
    }
    if (metadata_.boolean(key("attention.causal")) == false)
      problems_.add("'", key("attention.causal"), "' must be true: attention is causal");
  }

  /// The names of a classifier's labels, by their numbers.
  void read_labels() {
    const auto labels = metadata_.strings(key("classifier.output_labels"));
    if (!labels) return;
    constexpr std::size_t kMostLabels = 1 << 16;
    if (labels->size() > kMostLabels)
      return problems_.add("'", key("classifier.output_labels"), "' must be at most ", kMostLabels,
                           " labels, got ", labels->size());
    Json names = Json::object();
    for (std::size_t i = 0; i < labels->size(); ++i) names[concat(i)] = (*labels)[i];
    out_["id2label"] = std::move(names);
  }

  void read_qwen3() {
    const bool has_experts = architecture_ == "qwen3moe";
    const bool has_labels = file_.find("cls.output.weight") != nullptr;
    read_common(has_experts ? "qwen3_moe" : "qwen3",
                concat(has_experts ? "Qwen3Moe" : "Qwen3",
                       has_labels ? "ForSequenceClassification" : "ForCausalLM"));
    if (has_labels) read_labels();
    copy("hidden_size", "embedding_length");
    copy("num_hidden_layers", "block_count");
    copy("num_attention_heads", "attention.head_count");
    const std::int64_t heads = out_["num_attention_heads"].get<std::int64_t>();
    out_["num_key_value_heads"] = size("attention.head_count_kv").value_or(heads);
    copy("max_position_embeddings", "context_length");
    copy_number("rms_norm_eps", "attention.layer_norm_rms_epsilon");
    read_head_dim(heads);
    read_rope();
    if (has_experts) {
      read_experts();
    } else {
      copy("intermediate_size", "feed_forward_length");
    }
  }

  void read_head_dim(std::int64_t heads) {
    const std::int64_t hidden = out_["hidden_size"].get<std::int64_t>();
    const std::int64_t head_dim =
        metadata_.integer(key("attention.key_length")).value_or(heads > 0 ? hidden / heads : 0);
    out_["head_dim"] = head_dim;
    for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
      const std::int64_t found = metadata_.integer(key(name)).value_or(head_dim);
      if (found != head_dim)
        problems_.add("'", key(name), "' must be the size of a head, ", head_dim, ", got ", found);
    }
  }

  void read_rope() {
    out_["rope_theta"] = metadata_.number(key("rope.freq_base")).value_or(10000.0);
    // Without a type, as old files have it, positions are divided by the factor.
    const std::string type(metadata_.string(key("rope.scaling.type")).value_or("linear"));
    const double factor = metadata_.number(key("rope.scaling.factor")).value_or(0);
    if (type == "none" || (type == "linear" && (factor == 0 || factor == 1))) return;
    Json scaling = Json::object();
    scaling["rope_type"] = type;
    const auto copy_to = [&](const char* field, std::string_view name) {
      const auto found = metadata_.number(key(name));
      if (found) scaling[field] = *found;
    };
    copy_to("factor", "rope.scaling.factor");
    const auto original = metadata_.integer(key("rope.scaling.original_context_length"));
    if (original) scaling["original_max_position_embeddings"] = *original;
    copy_to("beta_fast", "rope.scaling.yarn_beta_fast");
    copy_to("beta_slow", "rope.scaling.yarn_beta_slow");
    out_["rope_scaling"] = std::move(scaling);
  }

  void read_experts() {
    copy("num_experts", "expert_count");
    copy("num_experts_per_tok", "expert_used_count");
    copy("moe_intermediate_size", "expert_feed_forward_length");
    out_["norm_topk_prob"] = metadata_.boolean(key("expert_weights_norm")).value_or(true);
    constexpr std::int64_t kMostLayers = 1 << 16;  // what a config may have is less
    Json dense = Json::array();
    const std::int64_t layers =
        std::min(out_["num_hidden_layers"].get<std::int64_t>(), kMostLayers);
    for (std::int64_t i = 0; i < layers; ++i) {
      if (file_.find(concat("blk.", i, ".ffn_gate_inp.weight")) == nullptr) dense.push_back(i);
    }
    // Without dense layers it is the size of nothing.
    const auto width = size("feed_forward_length");
    if (width && *width > 0) {
      out_["intermediate_size"] = *width;
    } else if (dense.empty()) {
      out_["intermediate_size"] = out_["moe_intermediate_size"];
    } else {
      out_["intermediate_size"] = required("feed_forward_length");
    }
    out_["mlp_only_layers"] = std::move(dense);
  }

  void read_gpt2() {
    read_common("gpt2", "GPT2LMHeadModel");
    copy("n_embd", "embedding_length");
    copy("n_layer", "block_count");
    copy("n_head", "attention.head_count");
    copy("n_positions", "context_length");
    copy("n_inner", "feed_forward_length");
    copy_number("layer_norm_epsilon", "attention.layer_norm_epsilon");
  }

  const GgufFile& file_;
  const GgufMetadata& metadata_;
  std::string_view architecture_;
  Json out_ = Json::object();
  Problems problems_;
};

}  // namespace detail

NANOVLLM_INLINE std::string_view gguf_architecture(const GgufFile& file) {
  constexpr const char* kKey = "general.architecture";
  const auto found = file.metadata().string(kKey);
  check<LoadError>(found.has_value(), "'", file.name(), "': '", kKey, "' is missing");
  return *found;
}

NANOVLLM_INLINE std::string gguf_config_json(const GgufFile& file) {
  return detail::GgufConfigReader(file).read();
}

NANOVLLM_INLINE std::string gguf_generation_json(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  Json out = Json::object();
  std::vector<std::int64_t> ends;
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    const auto id = metadata.integer(concat("tokenizer.ggml.", name));
    if (id) ends.push_back(*id);
  }
  if (const auto id = find_gguf_control_token(file, "<|endoftext|>")) ends.push_back(*id);
  std::ranges::sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  if (!ends.empty()) out["eos_token_id"] = Json(ends);

  const auto copy = [&](const char* field, const char* name) {
    const auto found = metadata.number(concat("general.sampling.", name));
    if (found) out[field] = *found;
  };
  copy("temperature", "temp");
  if (const auto top_k = metadata.integer("general.sampling.top_k")) out["top_k"] = *top_k;
  copy("top_p", "top_p");
  copy("min_p", "min_p");
  copy("repetition_penalty", "penalty_repeat");
  return out.dump();
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
