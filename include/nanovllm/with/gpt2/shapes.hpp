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

  friend bool operator==(const Gpt2Shape&, const Gpt2Shape&) = default;
};

template <Gpt2Shape kShape>
struct Gpt2;

template <>
struct detail::ModelOfShape<Gpt2Shape> {
  template <Gpt2Shape kShape>
  using type = Gpt2<kShape>;
};
template <Gpt2Shape kModelShape>
struct detail::ModelTraits<Gpt2<kModelShape>> {
  static constexpr Gpt2Shape kShape = kModelShape;
  using Config = Gpt2Config;
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

/// The sizes that `config` states, every field known.
[[nodiscard]] inline Gpt2Shape shape_of(const Gpt2Config& config) {
  return {.hidden_size = static_cast<std::size_t>(config.hidden_size),
          .num_layers = static_cast<std::size_t>(config.num_layers),
          .num_heads = static_cast<std::size_t>(config.num_heads),
          .intermediate_size = static_cast<std::size_t>(config.intermediate_size),
          .vocab_size = static_cast<std::size_t>(config.vocab_size),
          .num_positions = static_cast<std::size_t>(config.num_positions),
          .tie = config.tie_word_embeddings ? Tie::yes : Tie::no};
}

namespace detail {

/// In what `given`, of config.json, differs from `fixed`.
[[nodiscard]] inline ShapeDifferences shape_differences(const Gpt2Shape& fixed,
                                                        const Gpt2Shape& given) {
  ShapeDifferences out;
  out.compare("n_embd", fixed.hidden_size, given.hidden_size);
  out.compare("n_layer", fixed.num_layers, given.num_layers);
  out.compare("n_head", fixed.num_heads, given.num_heads);
  out.compare("n_inner", fixed.intermediate_size, given.intermediate_size);
  out.compare("vocab_size", fixed.vocab_size, given.vocab_size);
  out.compare("n_positions", fixed.num_positions, given.num_positions);
  out.compare("tie_word_embeddings", fixed.tie, given.tie);
  return out;
}

}  // namespace detail

/// Whether a model compiled for `kShape` can run the checkpoint of `config`.
template <Gpt2Shape kShape>
[[nodiscard]] bool matches(const Gpt2Config& config) {
  return detail::shape_differences(kShape, shape_of(config)).text().empty();
}

/// The sizes of `config`, every field known. Throws ConfigError that names every field in which
/// `kShape` is fixed to another value, with both values.
template <Gpt2Shape kShape>
[[nodiscard]] Gpt2Shape resolve(const Gpt2Config& config) {
  const Gpt2Shape given = shape_of(config);
  detail::shape_differences(kShape, given).raise();
  return given;
}

/// A config of the sizes of `kShape`, all of which must be fixed: for an engine with random
/// weights.
template <Gpt2Shape kShape>
[[nodiscard]] Gpt2Config config_of() {
  constexpr std::size_t kSizes[] = {kShape.hidden_size, kShape.num_layers,
                                    kShape.num_heads,   kShape.intermediate_size,
                                    kShape.vocab_size,  kShape.num_positions};
  static_assert(
      [](const auto& sizes) {
        for (const std::size_t size : sizes) {
          if (size == std::dynamic_extent) return false;
        }
        return kShape.tie != Tie::dynamic;
      }(kSizes),
      "nanovllm: every field of the shape must be fixed");
  Gpt2Config out;
  out.hidden_size = kSizes[0];
  out.num_layers = kSizes[1];
  out.num_heads = kSizes[2];
  out.intermediate_size = kSizes[3];
  out.vocab_size = kSizes[4];
  out.num_positions = kSizes[5];
  out.tie_word_embeddings = kShape.tie == Tie::yes;
  return out;
}

}  // namespace nanovllm
