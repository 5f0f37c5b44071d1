#pragma once
/// What the shapes of all models have in common: sizes as template values, each either fixed at
/// compile time or taken from config.json.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"

namespace nanovllm {

/// Whether lm_head is the embedding matrix.
enum class Tie : std::uint8_t { no, yes, dynamic };

// A shape is a struct of sizes, `std::dynamic_extent` where config.json has them, and of a `Tie`,
// with
//
// - `Config`, the config that has the same sizes; it names the shape as its `Shape`;
// - `for_each_field(visit)`: visit(name in config.json, member of the shape, member of the config).

namespace detail {

/// Each family has a specialisation for its shapes, beside its model.
template <class Shape>
struct ModelOfShape;

/// The shape and the config of a model, also where a model of a shape is only declared, and the
/// model of its family that takes all sizes from config.json.
template <class Model>
struct ModelTraits {
  struct Unknown {};
  static constexpr std::nullptr_t kShape{};
  using Config = Unknown;
};
template <class Shape, template <Shape> class Family, Shape kModelShape>
struct ModelTraits<Family<kModelShape>> {
  static constexpr Shape kShape = kModelShape;
  using Config = typename Shape::Config;
  using AnySize = Family<Shape{}>;
};
template <class Model>
requires requires { typename Model::Config; }
struct ModelTraits<Model> {
  static constexpr std::nullptr_t kShape{};
  using Config = typename Model::Config;
  using AnySize = Model;
};

/// The type of a model's shape; std::nullptr_t where it has none.
template <class Model>
using ShapeOf = std::remove_cvref_t<decltype(ModelTraits<Model>::kShape)>;

/// A shape of namespace `shapes`, by its name there.
template <class Shape>
struct NamedShape {
  std::string_view name;
  Shape shape;
};

/// The shapes of a family that there are names for. Each family has a specialisation beside them.
template <class Shape>
inline constexpr std::array<NamedShape<Shape>, 0> kNamedShapes{};

/// Whether `list`, names and commas, has `name`.
[[nodiscard]] consteval bool has_name(std::string_view list, std::string_view name) {
  const auto is_end = [&](std::size_t i) {
    return i >= list.size() || list[i] == ',' || list[i] == ' ';
  };
  for (std::size_t i = list.find(name); i != list.npos; i = list.find(name, i + 1)) {
    if (is_end(i - 1) && is_end(i + name.size())) return true;
  }
  return false;
}

/// Whether `Model` is of the family of one of the shapes that `list` names.
template <class Model>
[[nodiscard]] consteval bool is_of_family(std::string_view list) {
  for (const auto& known : kNamedShapes<ShapeOf<Model>>) {
    if (has_name(list, known.name)) return true;
  }
  return false;
}

/// Whether `Model` is that of one of the shapes that `list` names.
template <class Model>
[[nodiscard]] consteval bool is_model_of(std::string_view list) {
  for (const auto& known : kNamedShapes<ShapeOf<Model>>) {
    if (known.shape == ModelTraits<Model>::kShape && has_name(list, known.name)) return true;
  }
  return false;
}

/// `size`, or 0 where it is known at run time only.
[[nodiscard]] constexpr int fixed_or_zero(std::size_t size) {
  return size == std::dynamic_extent ? 0 : static_cast<int>(size);
}

/// Collects the fixed fields in which config.json differs.
class ShapeDifferences {
 public:
  void compare(const char* field, std::size_t fixed, std::size_t given) {
    if (fixed != std::dynamic_extent && fixed != given) add(field, fixed, given);
  }
  void compare(const char* field, Tie fixed, Tie given) {
    if (fixed != Tie::dynamic && fixed != given) add(field, fixed == Tie::yes, given == Tie::yes);
  }

  /// "'hidden_size' is 1024 at compile time but 2048 in config.json; …", empty without any.
  [[nodiscard]] const std::string& text() const { return text_; }

  /// Throws ConfigError with all of them.
  void raise() const {
    check<ConfigError>(text_.empty(), "this model was compiled for another shape; ", text_);
  }

 private:
  template <class Value>
  void add(const char* field, const Value& fixed, const Value& given) {
    text_ += concat(text_.empty() ? "'" : "; '", field, "' is ", fixed, " at compile time but ",
                    given, " in config.json");
  }

  std::string text_;
};

/// Divides sizes among the ranks of a group, and names all that cannot be.
class RankShares {
 public:
  /// @param setting  the engine's, which says how many ranks there are.
  explicit RankShares(int num_ranks, const char* setting = "tensor_parallel")
      : num_ranks_(num_ranks), setting_(setting) {}

  /// A rank's share of `size`.
  [[nodiscard]] std::int64_t divide(const char* field, std::int64_t size) {
    if (size % num_ranks_ != 0)
      problems_ += concat(problems_.empty() ? "" : ", ", field, " = ", size);
    return size / num_ranks_;
  }

  /// Rows of a rank's shard of the vocabulary: equal for all ranks and, where there are several, a
  /// multiple of 64. The last shards may have fewer tokens, or none.
  [[nodiscard]] std::int64_t vocab_rows(std::int64_t vocab) const {
    if (num_ranks_ == 1) return vocab;
    return align_up(ceil_div(vocab, std::int64_t{num_ranks_}), std::int64_t{64});
  }

  /// Throws ConfigError naming every size that the number of ranks does not divide.
  void raise() const {
    check<ConfigError>(problems_.empty(), setting_, " = ", num_ranks_, " does not divide ",
                       problems_);
  }

 private:
  int num_ranks_;
  const char* setting_;
  std::string problems_;
};

/// In what `given`, of config.json, differs from `fixed`.
template <class Shape>
[[nodiscard]] ShapeDifferences shape_differences(const Shape& fixed, const Shape& given) {
  ShapeDifferences out;
  Shape::for_each_field(
      [&](const char* name, auto field, auto) { out.compare(name, fixed.*field, given.*field); });
  return out;
}

[[nodiscard]] constexpr Tie as_size(bool is_tied) { return is_tied ? Tie::yes : Tie::no; }
[[nodiscard]] constexpr std::size_t as_size(std::int64_t size) {
  return static_cast<std::size_t>(size);
}

}  // namespace detail

/// The sizes that `config` states, every field known.
template <class Config>
[[nodiscard]] typename Config::Shape shape_of(const Config& config) {
  typename Config::Shape out;
  Config::Shape::for_each_field(
      [&](const char*, auto field, auto given) { out.*field = detail::as_size(config.*given); });
  return out;
}

/// Whether a model compiled for `kShape` can run the checkpoint of `config`.
template <auto kShape, class Config>
[[nodiscard]] bool matches(const Config& config) {
  return detail::shape_differences(kShape, shape_of(config)).text().empty();
}

/// The sizes of `config`, every field known. Throws ConfigError that names every field in which
/// `kShape` is fixed to another value, with both values.
template <auto kShape, class Config>
typename Config::Shape resolve(const Config& config) {
  const typename Config::Shape given = shape_of(config);
  detail::shape_differences(kShape, given).raise();
  return given;
}

/// `config`. Throws as `resolve` does.
template <auto kShape, class Config>
[[nodiscard]] const Config& resolved(const Config& config) {
  return static_cast<void>(resolve<kShape>(config)), config;
}

/// A config of the sizes of `kShape`, all of which must be fixed: for an engine with random
/// weights.
template <auto kShape>
[[nodiscard]] auto config_of() {
  using Shape = std::remove_cvref_t<decltype(kShape)>;
  constexpr bool kIsFixed = [] {
    bool out = true;
    Shape::for_each_field(
        [&](const char*, auto field, auto) { out = out && kShape.*field != Shape{}.*field; });
    return out;
  }();
  static_assert(kIsFixed, "nanovllm: every field of the shape must be fixed");
  typename Shape::Config out;
  Shape::for_each_field([&](const char*, auto field, auto given) {
    if constexpr (std::is_same_v<decltype(kShape.*field), const Tie&>) {
      out.*given = kShape.*field == Tie::yes;
    } else {
      out.*given = static_cast<std::int64_t>(kShape.*field);
    }
  });
  return out;
}

/// What all models of a shape have: a family has a `divide(config, rank, num_ranks)`.
template <auto kShape>
struct ShapedModel {
  static constexpr auto shape = kShape;
  using Config = typename std::remove_cvref_t<decltype(kShape)>::Config;

  /// In which sizes `config` is not of `kShape`; empty if it is.
  [[nodiscard]] static std::string mismatch(const Config& config) {
    return detail::shape_differences(kShape, shape_of(config)).text();
  }
  /// Throws ConfigError where `num_ranks`, at least 1, cannot divide such a model.
  static void check_ranks(const Config& config, int num_ranks) {
    static_cast<void>(divide(config, 0, num_ranks));
  }
};

/// The model that a shape is of, as `Qwen3<kShape>`.
template <auto kShape>
using ModelOf =
    typename detail::ModelOfShape<std::remove_cvref_t<decltype(kShape)>>::template type<kShape>;

/// The model of the same family that takes all sizes from config.json; `Model` itself where it has
/// no shape.
template <class Model>
using AnySizeOf = typename detail::ModelTraits<Model>::AnySize;

/// What config.json says of `Model`: its `Config`.
template <class Model>
using ConfigOf = typename detail::ModelTraits<Model>::Config;

}  // namespace nanovllm
