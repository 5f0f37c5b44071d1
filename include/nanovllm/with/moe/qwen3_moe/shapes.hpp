#pragma once
/// The sizes of a Qwen3 mixture of experts as a template value, and the shapes of the published
/// checkpoints.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/with/moe/qwen3_moe/config.hpp"

namespace nanovllm {

/// Sizes of a Qwen3 mixture of experts. A field that is `std::dynamic_extent` (or `Tie::dynamic`)
/// is taken from config.json at run time; any other is fixed at compile time and checked against
/// config.json. Which layers have experts, and what those without have, is config.json's alone.
struct Qwen3MoeShape {
  std::size_t hidden_size = std::dynamic_extent;
  std::size_t num_layers = std::dynamic_extent;
  std::size_t num_heads = std::dynamic_extent;     ///< query heads
  std::size_t num_kv_heads = std::dynamic_extent;  ///< divides num_heads
  std::size_t head_dim = std::dynamic_extent;
  std::size_t num_experts = std::dynamic_extent;
  std::size_t num_experts_per_tok = std::dynamic_extent;
  std::size_t moe_intermediate_size = std::dynamic_extent;
  std::size_t vocab_size = std::dynamic_extent;
  Tie tie = Tie::dynamic;

  using Config = Qwen3MoeConfig;
  static constexpr void for_each_field(const auto& visit) {
    visit("hidden_size", &Qwen3MoeShape::hidden_size, &Config::hidden_size);
    visit("num_hidden_layers", &Qwen3MoeShape::num_layers, &Config::num_hidden_layers);
    visit("num_attention_heads", &Qwen3MoeShape::num_heads, &Config::num_attention_heads);
    visit("num_key_value_heads", &Qwen3MoeShape::num_kv_heads, &Config::num_key_value_heads);
    visit("head_dim", &Qwen3MoeShape::head_dim, &Config::head_dim);
    visit("num_experts", &Qwen3MoeShape::num_experts, &Config::num_experts);
    visit("num_experts_per_tok", &Qwen3MoeShape::num_experts_per_tok, &Config::num_experts_per_tok);
    visit("moe_intermediate_size", &Qwen3MoeShape::moe_intermediate_size,
          &Config::moe_intermediate_size);
    visit("vocab_size", &Qwen3MoeShape::vocab_size, &Config::vocab_size);
    visit("tie_word_embeddings", &Qwen3MoeShape::tie, &Config::tie_word_embeddings);
  }

  friend bool operator==(const Qwen3MoeShape&, const Qwen3MoeShape&) = default;
};

template <Qwen3MoeShape kShape>
struct Qwen3Moe;

template <>
struct detail::ModelOfShape<Qwen3MoeShape> {
  template <Qwen3MoeShape kShape>
  using type = Qwen3Moe<kShape>;
};

namespace shapes {

// clang-format off
//                                             hidden layers heads kv head_dim
inline constexpr Qwen3MoeShape qwen3_30b_a3b{   2048,  48,    32,   4,  128,
//                                            experts k inter  vocab   tied
                                                128,  8,  768, 151936, Tie::no};
inline constexpr Qwen3MoeShape qwen3_235b_a22b{ 4096,  94,    64,   4,  128,
                                                128,  8, 1536, 151936, Tie::no};
// clang-format on
/// Every size from config.json.
inline constexpr Qwen3MoeShape qwen3_moe_any{};

}  // namespace shapes

template <>
inline constexpr auto detail::kNamedShapes<Qwen3MoeShape> =
    std::to_array<detail::NamedShape<Qwen3MoeShape>>({{"qwen3_30b_a3b", shapes::qwen3_30b_a3b},
                                                      {"qwen3_235b_a22b", shapes::qwen3_235b_a22b},
                                                      {"qwen3_moe_any", shapes::qwen3_moe_any}});

}  // namespace nanovllm
