#pragma once
/// The sizes of a Qwen3 model as a template value, and the shapes of the published checkpoints.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm {

/// Sizes of a Qwen3 model. A field that is `std::dynamic_extent` (or `Tie::dynamic`) is taken from
/// config.json at run time; any other is fixed at compile time and checked against config.json.
struct Qwen3Shape {
  std::size_t hidden_size = std::dynamic_extent;
  std::size_t num_layers = std::dynamic_extent;
  std::size_t num_heads = std::dynamic_extent;     ///< query heads
  std::size_t num_kv_heads = std::dynamic_extent;  ///< divides num_heads
  std::size_t head_dim = std::dynamic_extent;  ///< num_heads · head_dim need not be hidden_size
  std::size_t intermediate_size = std::dynamic_extent;
  std::size_t vocab_size = std::dynamic_extent;
  Tie tie = Tie::dynamic;

  using Config = Qwen3Config;
  static constexpr void for_each_field(const auto& visit) {
    visit("hidden_size", &Qwen3Shape::hidden_size, &Config::hidden_size);
    visit("num_hidden_layers", &Qwen3Shape::num_layers, &Config::num_hidden_layers);
    visit("num_attention_heads", &Qwen3Shape::num_heads, &Config::num_attention_heads);
    visit("num_key_value_heads", &Qwen3Shape::num_kv_heads, &Config::num_key_value_heads);
    visit("head_dim", &Qwen3Shape::head_dim, &Config::head_dim);
    visit("intermediate_size", &Qwen3Shape::intermediate_size, &Config::intermediate_size);
    visit("vocab_size", &Qwen3Shape::vocab_size, &Config::vocab_size);
    visit("tie_word_embeddings", &Qwen3Shape::tie, &Config::tie_word_embeddings);
  }

  friend bool operator==(const Qwen3Shape&, const Qwen3Shape&) = default;
};

template <Qwen3Shape kShape>
struct Qwen3;

template <>
struct detail::ModelOfShape<Qwen3Shape> {
  template <Qwen3Shape kShape>
  using type = Qwen3<kShape>;
};

namespace shapes {

// clang-format off
//                                     hidden layers heads kv head_dim  inter    vocab  tied
inline constexpr Qwen3Shape qwen3_0_6b{  1024,   28,   16,   8,    128,   3072,  151936, Tie::yes};
inline constexpr Qwen3Shape qwen3_1_7b{  2048,   28,   16,   8,    128,   6144,  151936, Tie::yes};
inline constexpr Qwen3Shape qwen3_4b{    2560,   36,   32,   8,    128,   9728,  151936, Tie::yes};
inline constexpr Qwen3Shape qwen3_8b{    4096,   36,   32,   8,    128,  12288,  151936, Tie::no};
inline constexpr Qwen3Shape qwen3_14b{   5120,   40,   40,   8,    128,  17408,  151936, Tie::no};
inline constexpr Qwen3Shape qwen3_32b{   5120,   64,   64,   8,    128,  25600,  151936, Tie::no};
/// The 7-million-parameter story model that tests and the quickstart use.
inline constexpr Qwen3Shape fairytale{    256,    6,    4,   2,    128,    768,    4096, Tie::yes};
// clang-format on
/// Every size from config.json.
inline constexpr Qwen3Shape qwen3_any{};

}  // namespace shapes

template <>
inline constexpr auto detail::kNamedShapes<Qwen3Shape> =
    std::to_array<detail::NamedShape<Qwen3Shape>>({{"qwen3_0_6b", shapes::qwen3_0_6b},
                                                   {"qwen3_1_7b", shapes::qwen3_1_7b},
                                                   {"qwen3_4b", shapes::qwen3_4b},
                                                   {"qwen3_8b", shapes::qwen3_8b},
                                                   {"qwen3_14b", shapes::qwen3_14b},
                                                   {"qwen3_32b", shapes::qwen3_32b},
                                                   {"fairytale", shapes::fairytale},
                                                   {"qwen3_any", shapes::qwen3_any}});

/// What a shape fixes about the heads of attention. Ranks divide both kinds of heads, so that the
/// group is the same on each.
template <auto kShape>
requires requires { kShape.num_kv_heads; }
[[nodiscard]] constexpr auto head_shape_of() {
  constexpr int kHeads = detail::fixed_or_zero(kShape.num_heads);
  constexpr int kKvHeads = detail::fixed_or_zero(kShape.num_kv_heads);
  return HeadShape<detail::fixed_or_zero(kShape.head_dim),
                   (kKvHeads == 0 ? 0 : kHeads / kKvHeads)>{};
}

namespace detail {

NANOVLLM_COMPILED_TEMPLATE(ShapeDifferences shape_differences(const Qwen3Shape&, const Qwen3Shape&))

}  // namespace detail

}  // namespace nanovllm
