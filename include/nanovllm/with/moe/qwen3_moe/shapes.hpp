#pragma once
/// The sizes of a Qwen3 mixture of experts as a template value, and the shapes of the published
/// checkpoints.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/attention.hpp"
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

  friend bool operator==(const Qwen3MoeShape&, const Qwen3MoeShape&) = default;
};

template <Qwen3MoeShape kShape>
struct Qwen3Moe;

template <>
struct detail::ModelOfShape<Qwen3MoeShape> {
  template <Qwen3MoeShape kShape>
  using type = Qwen3Moe<kShape>;
};
template <Qwen3MoeShape kModelShape>
struct detail::ModelTraits<Qwen3Moe<kModelShape>> {
  static constexpr Qwen3MoeShape kShape = kModelShape;
  using Config = Qwen3MoeConfig;
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

/// What a shape fixes about the heads of attention, as for `Qwen3Shape`.
template <Qwen3MoeShape kShape>
[[nodiscard]] constexpr auto head_shape_of() {
  return head_shape_of<Qwen3Shape{.num_heads = kShape.num_heads,
                                  .num_kv_heads = kShape.num_kv_heads,
                                  .head_dim = kShape.head_dim}>();
}

/// The sizes that `config` states, every field known.
[[nodiscard]] inline Qwen3MoeShape shape_of(const Qwen3MoeConfig& config) {
  return {.hidden_size = static_cast<std::size_t>(config.hidden_size),
          .num_layers = static_cast<std::size_t>(config.num_hidden_layers),
          .num_heads = static_cast<std::size_t>(config.num_attention_heads),
          .num_kv_heads = static_cast<std::size_t>(config.num_key_value_heads),
          .head_dim = static_cast<std::size_t>(config.head_dim),
          .num_experts = static_cast<std::size_t>(config.num_experts),
          .num_experts_per_tok = static_cast<std::size_t>(config.num_experts_per_tok),
          .moe_intermediate_size = static_cast<std::size_t>(config.moe_intermediate_size),
          .vocab_size = static_cast<std::size_t>(config.vocab_size),
          .tie = config.tie_word_embeddings ? Tie::yes : Tie::no};
}

namespace detail {

/// In what `given`, of config.json, differs from `fixed`.
[[nodiscard]] inline ShapeDifferences shape_differences(const Qwen3MoeShape& fixed,
                                                        const Qwen3MoeShape& given) {
  ShapeDifferences out;
  out.compare("hidden_size", fixed.hidden_size, given.hidden_size);
  out.compare("num_hidden_layers", fixed.num_layers, given.num_layers);
  out.compare("num_attention_heads", fixed.num_heads, given.num_heads);
  out.compare("num_key_value_heads", fixed.num_kv_heads, given.num_kv_heads);
  out.compare("head_dim", fixed.head_dim, given.head_dim);
  out.compare("num_experts", fixed.num_experts, given.num_experts);
  out.compare("num_experts_per_tok", fixed.num_experts_per_tok, given.num_experts_per_tok);
  out.compare("moe_intermediate_size", fixed.moe_intermediate_size, given.moe_intermediate_size);
  out.compare("vocab_size", fixed.vocab_size, given.vocab_size);
  out.compare("tie_word_embeddings", fixed.tie, given.tie);
  return out;
}

}  // namespace detail

/// Throws ConfigError that names every field in which `kShape` is fixed to another value than
/// `config` has, with both values.
template <Qwen3MoeShape kShape>
void check_shape_of(const Qwen3MoeConfig& config) {
  detail::shape_differences(kShape, shape_of(config)).raise();
}

}  // namespace nanovllm
