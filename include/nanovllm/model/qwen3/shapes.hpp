#pragma once
/// The sizes of a Qwen3 model as a template value, and the shapes of the published checkpoints.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "nanovllm/core/error.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm {

/// Whether lm_head is the embedding matrix.
enum class Tie : std::uint8_t { no, yes, dynamic };

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

namespace detail {

/// `size`, or 0 where it is known at run time only.
[[nodiscard]] constexpr int fixed_or_zero(std::size_t size) {
  return size == std::dynamic_extent ? 0 : static_cast<int>(size);
}

}  // namespace detail

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
[[nodiscard]] inline Qwen3Shape shape_of(const ModelConfig& config) {
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

/// "; 'hidden_size' is 1024 at compile time but 2048 in config.json" for each fixed field in which
/// `given` differs. Empty when none does.
[[nodiscard]] inline std::string shape_differences(const Qwen3Shape& fixed,
                                                   const Qwen3Shape& given) {
  std::string out;
  const auto compare = [&](const char* field, const auto& expected, const auto& got) {
    if (expected != got)
      out +=
          concat("; '", field, "' is ", expected, " at compile time but ", got, " in config.json");
  };
  const auto compare_size = [&](const char* field, std::size_t Qwen3Shape::*size) {
    if (fixed.*size != std::dynamic_extent) compare(field, fixed.*size, given.*size);
  };
  compare_size("hidden_size", &Qwen3Shape::hidden_size);
  compare_size("num_hidden_layers", &Qwen3Shape::num_layers);
  compare_size("num_attention_heads", &Qwen3Shape::num_heads);
  compare_size("num_key_value_heads", &Qwen3Shape::num_kv_heads);
  compare_size("head_dim", &Qwen3Shape::head_dim);
  compare_size("intermediate_size", &Qwen3Shape::intermediate_size);
  compare_size("vocab_size", &Qwen3Shape::vocab_size);
  if (fixed.tie != Tie::dynamic) {
    compare("tie_word_embeddings", fixed.tie == Tie::yes, given.tie == Tie::yes);
  }
  return out;
}

}  // namespace detail

/// Whether a model compiled for `kShape` can run the checkpoint of `config`.
template <Qwen3Shape kShape>
[[nodiscard]] bool matches(const ModelConfig& config) {
  return detail::shape_differences(kShape, shape_of(config)).empty();
}

/// The sizes of `config`, every field known. Throws ConfigError that names every field in which
/// `kShape` is fixed to another value, with both values.
template <Qwen3Shape kShape>
[[nodiscard]] Qwen3Shape resolve(const ModelConfig& config) {
  const Qwen3Shape given = shape_of(config);
  const std::string differences = detail::shape_differences(kShape, given);
  check<ConfigError>(differences.empty(), "this model was compiled for another shape", differences);
  return given;
}

}  // namespace nanovllm
