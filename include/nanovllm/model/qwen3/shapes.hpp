#pragma once
/// The sizes of a Qwen3 model as a template value, and the shapes of the published checkpoints.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

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

  friend bool operator==(const Qwen3Shape&, const Qwen3Shape&) = default;
};

template <Qwen3Shape kShape>
struct Qwen3;

template <>
struct detail::ModelOfShape<Qwen3Shape> {
  template <Qwen3Shape kShape>
  using type = Qwen3<kShape>;
};
template <Qwen3Shape kModelShape>
struct detail::ModelTraits<Qwen3<kModelShape>> {
  static constexpr Qwen3Shape kShape = kModelShape;
  using Config = Qwen3Config;
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
template <Qwen3Shape kShape>
[[nodiscard]] constexpr auto head_shape_of() {
  constexpr int kHeads = detail::fixed_or_zero(kShape.num_heads);
  constexpr int kKvHeads = detail::fixed_or_zero(kShape.num_kv_heads);
  return HeadShape<detail::fixed_or_zero(kShape.head_dim),
                   (kKvHeads == 0 ? 0 : kHeads / kKvHeads)>{};
}

/// The sizes that `config` states, every field known.
[[nodiscard]] inline Qwen3Shape shape_of(const Qwen3Config& config) {
  return {.hidden_size = static_cast<std::size_t>(config.hidden_size),
          .num_layers = static_cast<std::size_t>(config.num_hidden_layers),
          .num_heads = static_cast<std::size_t>(config.num_attention_heads),
          .num_kv_heads = static_cast<std::size_t>(config.num_key_value_heads),
          .head_dim = static_cast<std::size_t>(config.head_dim),
          .intermediate_size = static_cast<std::size_t>(config.intermediate_size),
          .vocab_size = static_cast<std::size_t>(config.vocab_size),
          .tie = config.tie_word_embeddings ? Tie::yes : Tie::no};
}

namespace detail {

/// In what `given`, of config.json, differs from `fixed`.
[[nodiscard]] inline ShapeDifferences shape_differences(const Qwen3Shape& fixed,
                                                        const Qwen3Shape& given) {
  ShapeDifferences out;
  out.compare("hidden_size", fixed.hidden_size, given.hidden_size);
  out.compare("num_hidden_layers", fixed.num_layers, given.num_layers);
  out.compare("num_attention_heads", fixed.num_heads, given.num_heads);
  out.compare("num_key_value_heads", fixed.num_kv_heads, given.num_kv_heads);
  out.compare("head_dim", fixed.head_dim, given.head_dim);
  out.compare("intermediate_size", fixed.intermediate_size, given.intermediate_size);
  out.compare("vocab_size", fixed.vocab_size, given.vocab_size);
  out.compare("tie_word_embeddings", fixed.tie, given.tie);
  return out;
}

}  // namespace detail

/// Whether a model compiled for `kShape` can run the checkpoint of `config`.
template <Qwen3Shape kShape>
[[nodiscard]] bool matches(const Qwen3Config& config) {
  return detail::shape_differences(kShape, shape_of(config)).text().empty();
}

/// The sizes of `config`, every field known. Throws ConfigError that names every field in which
/// `kShape` is fixed to another value, with both values.
template <Qwen3Shape kShape>
[[nodiscard]] Qwen3Shape resolve(const Qwen3Config& config) {
  const Qwen3Shape given = shape_of(config);
  detail::shape_differences(kShape, given).raise();
  return given;
}

}  // namespace nanovllm
