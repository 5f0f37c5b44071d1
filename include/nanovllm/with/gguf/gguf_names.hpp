#pragma once
/// The names that tensors of a GGUF file have in the checkpoints of Hugging Face.

#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// A tensor's name there. Of a tensor with the matrices of all experts, `expert` is where the
/// number of one belongs: `name` is "model.layers.3.mlp.experts." and `rest` ".up_proj.weight".
struct GgufTensorName {
  std::string name{};
  std::optional<std::string> rest{};  ///< of a tensor of experts
};

/// The name of `tensor` in a file of that architecture ("qwen3", "qwen3moe", "gpt2"). One that is
/// not known, and every one of other architectures, stays as it is, so that a loader names it.
[[nodiscard]] GgufTensorName gguf_tensor_name(std::string_view architecture,
                                              std::string_view tensor);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

namespace detail {

/// A module of a model, by its name in a GGUF file and in Hugging Face's.
struct ModuleName {
  std::string_view gguf, hugging_face;
};

/// How the modules of one family are called, ahead of ".weight" and ".bias".
struct ModuleNames {
  std::string_view layers;  ///< "model.layers."; the number of the layer follows
  std::span<const ModuleName> in_layer;
  std::span<const ModuleName> others;
};

inline constexpr std::array<ModuleName, 12> kQwen3Layer{{{"attn_norm", "input_layernorm"},
                                                         {"attn_q", "self_attn.q_proj"},
                                                         {"attn_k", "self_attn.k_proj"},
                                                         {"attn_v", "self_attn.v_proj"},
                                                         {"attn_output", "self_attn.o_proj"},
                                                         {"attn_q_norm", "self_attn.q_norm"},
                                                         {"attn_k_norm", "self_attn.k_norm"},
                                                         {"ffn_norm", "post_attention_layernorm"},
                                                         {"ffn_gate", "mlp.gate_proj"},
                                                         {"ffn_up", "mlp.up_proj"},
                                                         {"ffn_down", "mlp.down_proj"},
                                                         {"ffn_gate_inp", "mlp.gate"}}};
inline constexpr std::array<ModuleName, 4> kQwen3Others{{{"token_embd", "model.embed_tokens"},
                                                         {"output_norm", "model.norm"},
                                                         {"output", "lm_head"},
                                                         {"cls.output", "score"}}};
/// After "model.layers.N.mlp.experts.E.".
inline constexpr std::array<ModuleName, 3> kExperts{
    {{"ffn_gate_exps", "gate_proj"}, {"ffn_up_exps", "up_proj"}, {"ffn_down_exps", "down_proj"}}};

inline constexpr std::array<ModuleName, 6> kGpt2Layer{{{"attn_norm", "ln_1"},
                                                       {"attn_qkv", "attn.c_attn"},
                                                       {"attn_output", "attn.c_proj"},
                                                       {"ffn_norm", "ln_2"},
                                                       {"ffn_up", "mlp.c_fc"},
                                                       {"ffn_down", "mlp.c_proj"}}};
inline constexpr std::array<ModuleName, 4> kGpt2Others{{{"token_embd", "wte"},
                                                        {"position_embd", "wpe"},
                                                        {"output_norm", "ln_f"},
                                                        {"output", "lm_head"}}};

[[nodiscard]] inline const ModuleName* find_module(std::span<const ModuleName> list,
                                                   std::string_view gguf) {
  const auto found = std::ranges::find(list, gguf, &ModuleName::gguf);
  return found == list.end() ? nullptr : &*found;
}

}  // namespace detail

NANOVLLM_INLINE GgufTensorName gguf_tensor_name(std::string_view architecture,
                                                std::string_view tensor) {
  constexpr std::string_view kBlock = "blk.";
  const GgufTensorName unknown{.name = std::string(tensor)};
  const bool has_experts = architecture == "qwen3moe";
  detail::ModuleNames names{"model.layers.", detail::kQwen3Layer, detail::kQwen3Others};
  if (architecture == "gpt2") {
    names = {"h.", detail::kGpt2Layer, detail::kGpt2Others};
  } else if (architecture != "qwen3" && !has_experts) {
    return unknown;
  }
  const std::size_t dot = tensor.rfind('.');
  if (dot == tensor.npos) return unknown;
  const std::string_view end = tensor.substr(dot), module = tensor.substr(0, dot);
  if (!module.starts_with(kBlock)) {
    const detail::ModuleName* const found = detail::find_module(names.others, module);
    return found == nullptr ? unknown : GgufTensorName{concat(found->hugging_face, end)};
  }
  const std::size_t behind = module.find('.', kBlock.size());
  if (behind == module.npos) return unknown;
  const std::string_view number = module.substr(kBlock.size(), behind - kBlock.size());
  const std::string_view in_layer = module.substr(behind + 1);
  const std::string layer = concat(names.layers, number, ".");
  if (const auto* const found = detail::find_module(names.in_layer, in_layer); found != nullptr)
    return {concat(layer, found->hugging_face, end)};
  const detail::ModuleName* const experts =
      has_experts ? detail::find_module(detail::kExperts, in_layer) : nullptr;
  if (experts == nullptr) return unknown;
  return {concat(layer, "mlp.experts."), concat(".", experts->hugging_face, end)};
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
