#pragma once
/// config.json of a Qwen3 mixture of experts, in the spelling of transformers 4.x and of 5.x.
/// Source: transformers, models/qwen3_moe/configuration_qwen3_moe.py.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/model/config_fields.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"

namespace nanovllm {

/// A Qwen3Config whose layers may have experts in place of one MLP. `intermediate_size` is that of
/// layers without experts. `load` and `from_json` guarantee the ranges given here.
struct Qwen3MoeConfig : Qwen3Config {
  using Shape = struct Qwen3MoeShape;

  std::int64_t num_experts = 0;                 ///< ≥ 1; "num_experts" or "num_local_experts"
  std::int64_t num_experts_per_tok = 0;         ///< in [1, num_experts]
  std::int64_t moe_intermediate_size = 0;       ///< ≥ 1, of an expert
  std::int64_t decoder_sparse_step = 1;         ///< ≥ 1
  std::vector<std::int64_t> mlp_only_layers{};  ///< layers without experts, in any order
  bool norm_topk_prob = false;                  ///< a token's weights add up to 1
  /// Ranks have whole experts, and not a part of each. Not of config.json, but of the engine
  /// (ExpertParallel), as is the next.
  bool expert_parallel = false;
  int expert_tensor_parallel = 1;  ///< ranks that divide the columns of the same experts

  /// Takes the engine's ExpertParallel, if there is one. Throws ConfigError.
  void divide(const Extras& extras);

  /// Whole experts on ranks are another order of sums; see `kv_identity`.
  [[nodiscard]] std::vector<ModelSetting> ranks_in_sums(int num_ranks) const {
    if (!expert_parallel) return {};
    return {{"ranks of experts", num_ranks}};
  }

  /// Whether layer `i`, counted from 0, has experts: it is not listed, and i + 1 is a multiple of
  /// `decoder_sparse_step`.
  [[nodiscard]] bool is_sparse(std::int64_t i) const;

  /// As `Qwen3Config::load`.
  [[nodiscard]] static Qwen3MoeConfig load(const Checkpoint& checkpoint);

  /// As `Qwen3Config::from_json`. Without "head_dim" it is hidden_size / num_attention_heads, and
  /// without "norm_topk_prob" that is false, as in transformers.
  [[nodiscard]] static Qwen3MoeConfig from_json(std::string_view text,
                                                std::string_view generation_text = {},
                                                std::string_view source = "config.json");
};

/// What layers with experts have in place of a dense Qwen3's MLP.
namespace qwen3_moe_modules {

using namespace qwen3_modules;

/// The router, and the projections of an expert.
inline constexpr std::array<FamilyModule, 4> in_sparse_layer{
    {{"model.layers.#.mlp.gate", "blk.#.ffn_gate_inp", Role::table, entries, hidden},
     {"model.layers.#.mlp.experts.#.gate_proj", "blk.#.ffn_gate_exps", Role::by_rows, width,
      hidden},
     {"model.layers.#.mlp.experts.#.up_proj", "blk.#.ffn_up_exps", Role::by_rows, width, hidden},
     {"model.layers.#.mlp.experts.#.down_proj", "blk.#.ffn_down_exps", Role::by_columns, hidden,
      width}}};

}  // namespace qwen3_moe_modules

inline constinit FamilyTable kQwen3InMoeTable{"qwen3moe", qwen3_modules::all};
inline constinit FamilyTable kQwen3MoeTable{"qwen3moe", qwen3_moe_modules::in_sparse_layer};
inline const bool kHasQwen3MoeTable =
    FamilyTable::add(kQwen3InMoeTable) && FamilyTable::add(kQwen3MoeTable);

/// How many layers have experts.
[[nodiscard]] std::int64_t num_sparse_layers(const Qwen3MoeConfig& config);

/// How many weights a model of these sizes has, within 1%, all experts included. No overflow for
/// sizes within ModelLimits.
[[nodiscard]] std::int64_t num_parameters(const Qwen3MoeConfig& config);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json_fields.hpp"

namespace nanovllm {

NANOVLLM_INLINE void Qwen3MoeConfig::divide(const Extras& extras) {
  const auto* const experts = extras.find<ExpertParallel>();
  if (experts == nullptr) return;
  if (!experts->on && experts->tensor_parallel != 1) throw ConfigError(experts->unread());
  expert_parallel = experts->on;
  expert_tensor_parallel = experts->tensor_parallel;
}

NANOVLLM_INLINE bool Qwen3MoeConfig::is_sparse(std::int64_t i) const {
  return (i + 1) % decoder_sparse_step == 0 &&
         std::find(mlp_only_layers.begin(), mlp_only_layers.end(), i) == mlp_only_layers.end();
}

NANOVLLM_INLINE std::int64_t num_sparse_layers(const Qwen3MoeConfig& config) {
  std::int64_t out = 0;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) out += config.is_sparse(i) ? 1 : 0;
  return out;
}

NANOVLLM_INLINE std::int64_t num_parameters(const Qwen3MoeConfig& config) {
  DecoderSizes dense = sizes_of(config);
  dense.num_layers = num_sparse_layers(config);
  DecoderSizes sparse = dense;
  sparse.num_entries = config.num_experts;
  sparse.intermediate_size = config.num_experts * config.moe_intermediate_size;  // of all
  return num_parameters(static_cast<const Qwen3Config&>(config)) +
         size_of(qwen3_moe_modules::in_sparse_layer, sparse) - size_of(qwen3_modules::mlp, dense);
}

namespace detail {

/// Reads "mlp_only_layers", a list of layers.
NANOVLLM_INLINE std::vector<std::int64_t> read_dense_layers(const JsonFields& fields,
                                                            std::int64_t num_layers,
                                                            Problems& problems) {
  std::vector<std::int64_t> out;
  const Json* list = fields.find("mlp_only_layers");
  if (list == nullptr) return out;
  if (!list->is_array() || list->size() > std::size_t{ModelLimits::kNumLayers}) {
    fields.wrong("mlp_only_layers",
                 concat("a list of at most ", ModelLimits::kNumLayers, " layers"), *list);
    return out;
  }
  for (const Json& entry : *list) {
    const auto layer = JsonFields::as_integer(entry);
    if (!layer || *layer < 0 || (num_layers > 0 && *layer >= num_layers)) {
      const std::string range = num_layers > 0 ? concat(", in [0, ", num_layers, ")") : "";
      problems.add("'mlp_only_layers' must list layers", range, ", got ", shown(entry));
    } else {
      out.push_back(*layer);
    }
  }
  return out;
}

/// Reads the number of experts in the spelling of transformers 4.x or of 5.x.
NANOVLLM_INLINE std::int64_t read_num_experts(const JsonFields& fields, Problems& problems) {
  const auto old_name = fields.integer("num_experts", 1, ModelLimits::kNumExperts);
  const auto new_name = fields.integer("num_local_experts", 1, ModelLimits::kNumExperts);
  if (fields.find("num_experts") == nullptr && fields.find("num_local_experts") == nullptr)
    problems.add("there is neither 'num_experts' nor 'num_local_experts'");
  if (old_name && new_name && *old_name != *new_name) {
    problems.add("'num_experts' (", *old_name, ") and 'num_local_experts' (", *new_name,
                 ") disagree");
  }
  return old_name.value_or(new_name.value_or(0));
}

/// Adds a problem for each setting that asks for a mixture of experts of another kind.
NANOVLLM_INLINE void check_experts_supported(const JsonFields& fields, Problems& problems) {
  if (fields.boolean("qkv_bias") == true)
    problems.add("'qkv_bias' must be false: biases are not supported");
  if (fields.boolean("use_qk_norm") == false)
    problems.add("'use_qk_norm' must be true: q and k are always normed");
  if (const Json* size = fields.find("shared_expert_intermediate_size"); size && *size != Json(0))
    fields.wrong("shared_expert_intermediate_size", "0: shared experts are not supported", *size);
}

}  // namespace detail

NANOVLLM_INLINE Qwen3MoeConfig Qwen3MoeConfig::from_json(std::string_view text,
                                                         std::string_view generation_text,
                                                         std::string_view source) {
  using Limits = ModelLimits;
  const Json json = parse_json_object<ConfigError>(text, source);
  Problems problems;
  const JsonFields fields(json, "", problems);
  Qwen3MoeConfig out;
  read_qwen3(fields, generation_text,
             {.model_type = "qwen3_moe", .class_prefix = "Qwen3Moe", .windows_all_layers = true},
             out, problems);
  out.num_experts = detail::read_num_experts(fields, problems);
  out.num_experts_per_tok =
      fields.required_integer("num_experts_per_tok", 1, Limits::kNumExperts).value_or(0);
  if (out.num_experts > 0 && out.num_experts_per_tok > out.num_experts) {
    problems.add("'num_experts_per_tok' (", out.num_experts_per_tok,
                 ") must be at most the number of experts (", out.num_experts, ")");
  }
  out.moe_intermediate_size =
      fields.required_integer("moe_intermediate_size", 1, Limits::kIntermediateSize).value_or(0);
  out.decoder_sparse_step =
      fields.integer("decoder_sparse_step", 1, Limits::kNumLayers).value_or(1);
  out.mlp_only_layers = detail::read_dense_layers(fields, out.num_hidden_layers, problems);
  out.norm_topk_prob = fields.boolean("norm_topk_prob").value_or(false);
  detail::check_experts_supported(fields, problems);
  if (const std::int64_t all = num_sparse_layers(out) * out.num_experts;
      all > Limits::kNumExpertsOfAllLayers) {
    problems.add("the experts of all layers must be at most ", Limits::kNumExpertsOfAllLayers,
                 ", got ", all);
  }
  check_num_parameters(num_parameters(out), problems);
  problems.raise<ConfigError>(source);
  out.warnings = problems.warnings();
  return out;
}

NANOVLLM_INLINE Qwen3MoeConfig Qwen3MoeConfig::load(const Checkpoint& checkpoint) {
  const ConfigTexts texts = read_config_texts(checkpoint);
  Qwen3MoeConfig out = from_json(texts.config, texts.generation, texts.source);
  look_at_tensors(checkpoint, texts, out);
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
