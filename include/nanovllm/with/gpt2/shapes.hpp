#pragma once
/// The sizes of a GPT-2 model as a template value, and the shapes of the published checkpoints.

#include <array>
#include <cstddef>
#include <span>

#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/with/gpt2/config.hpp"

namespace nanovllm {

/// Sizes of a GPT-2 model. A field that is `std::dynamic_extent` (or `Tie::dynamic`) is taken from
/// config.json at run time; any other is fixed at compile time and checked against config.json.
struct Gpt2Shape {
  std::size_t hidden_size = std::dynamic_extent;  ///< a multiple of num_heads
  std::size_t num_layers = std::dynamic_extent;
  std::size_t num_heads = std::dynamic_extent;
  std::size_t intermediate_size = std::dynamic_extent;
  std::size_t vocab_size = std::dynamic_extent;
  std::size_t num_positions = std::dynamic_extent;
  Tie tie = Tie::dynamic;

  using Config = Gpt2Config;
  static constexpr void for_each_field(const auto& visit) {
    visit("n_embd", &Gpt2Shape::hidden_size, &Config::hidden_size);
    visit("n_layer", &Gpt2Shape::num_layers, &Config::num_layers);
    visit("n_head", &Gpt2Shape::num_heads, &Config::num_heads);
    visit("n_inner", &Gpt2Shape::intermediate_size, &Config::intermediate_size);
    visit("vocab_size", &Gpt2Shape::vocab_size, &Config::vocab_size);
    visit("n_positions", &Gpt2Shape::num_positions, &Config::num_positions);
    visit("tie_word_embeddings", &Gpt2Shape::tie, &Config::tie_word_embeddings);
  }

  friend bool operator==(const Gpt2Shape&, const Gpt2Shape&) = default;
};

template <Gpt2Shape kShape>
struct Gpt2;

template <>
struct detail::ModelOfShape<Gpt2Shape> {
  template <Gpt2Shape kShape>
  using type = Gpt2<kShape>;
};

namespace shapes {

// clang-format off
//                                    hidden layers heads  inter  vocab  positions tied
inline constexpr Gpt2Shape gpt2{         768,   12,   12,   3072,  50257,  1024,  Tie::yes};
inline constexpr Gpt2Shape gpt2_medium{ 1024,   24,   16,   4096,  50257,  1024,  Tie::yes};
inline constexpr Gpt2Shape gpt2_large{  1280,   36,   20,   5120,  50257,  1024,  Tie::yes};
inline constexpr Gpt2Shape gpt2_xl{     1600,   48,   25,   6400,  50257,  1024,  Tie::yes};
/// The small story model in examples/models/tiny_gpt2.
inline constexpr Gpt2Shape tiny_gpt2{    192,    6,    3,    768,   3072,   512,  Tie::yes};
// clang-format on
/// Every size from config.json.
inline constexpr Gpt2Shape gpt2_any{};

}  // namespace shapes

template <>
inline constexpr auto detail::kNamedShapes<Gpt2Shape> =
    std::to_array<detail::NamedShape<Gpt2Shape>>({{"gpt2", shapes::gpt2},
                                                  {"gpt2_medium", shapes::gpt2_medium},
                                                  {"gpt2_large", shapes::gpt2_large},
                                                  {"gpt2_xl", shapes::gpt2_xl},
                                                  {"tiny_gpt2", shapes::tiny_gpt2},
                                                  {"gpt2_any", shapes::gpt2_any}});

/// What a shape fixes about the heads of attention: each query head has its own kv head.
template <Gpt2Shape kShape>
[[nodiscard]] constexpr auto head_shape_of() {
  constexpr int kHidden = detail::fixed_or_zero(kShape.hidden_size);
  constexpr int kHeads = detail::fixed_or_zero(kShape.num_heads);
  constexpr int kDivisor = kHeads == 0 ? 1 : kHeads;
  static_assert(kHidden % kDivisor == 0,
                "nanovllm: a Gpt2Shape's hidden_size must be a multiple of its num_heads");
  return HeadShape<(kHeads == 0 ? 0 : kHidden / kDivisor), 1>{};
}

}  // namespace nanovllm
