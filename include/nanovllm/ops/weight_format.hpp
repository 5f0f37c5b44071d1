#pragma once
/// How the matrices of a model are kept.

#include <concepts>
#include <cstdint>
#include <string_view>

#include "nanovllm/core/dtype.hpp"

namespace nanovllm {

/// What a matrix is for; a format may keep matrices of different roles in different ways.
enum class MatrixRole : std::uint8_t {
  dense,       ///< of the layers
  vocabulary,  ///< the embedding
  head,        ///< lm_head; in tied models the embedding itself, or a copy if that has another type
};

/// A format of weights that is no element type.
///
/// - `Element`: of vectors (norms, biases), and what rows of a checkpoint are converted to.
/// - `Matrix<Backend, role>`: owner of a `[rows(), cols()]` matrix, made from the two. It may be
///   the backend's `Matrix` of an element type, or a type of the format's own. The backend's
///   `set_rows(matrix, first, rows)` takes rows of `Element`, and `LinearArgs` with it have a
///   `run_op`, for the head with results in float; those of the vocabulary have `EmbeddingArgs`.
/// - `kName`: what `describe()` and the headers of files call it.
/// - `kBits`: of an element of a dense matrix, at least.
///
/// A matrix that needs rows in groups has `kRowGroup`: `set_rows` then gets whole groups, except at
/// the end of a tensor. A tensor must begin at a multiple of it, unless the matrix has
/// `kAnyFirstRow`. A matrix with a type `StoredRows`, which its `set_rows` also takes, gets rows of
/// a checkpoint that are stored so as they are.
template <class F>
concept CompoundWeightFormat = Element<typename F::Element> && requires {
  { F::kName } -> std::convertible_to<std::string_view>;
  { F::kBits } -> std::convertible_to<int>;
};

/// What a policy's slot `Weight` may be: an element type, of all weights, or another format.
template <class F>
concept WeightFormat = Element<F> || CompoundWeightFormat<F>;

namespace detail {

template <class F>
struct WeightTypes {
  using type = F;
  template <class Backend, MatrixRole>
  using Matrix = typename Backend::template Matrix<F>;
};
template <CompoundWeightFormat F>
struct WeightTypes<F> {
  using type = typename F::Element;
  template <class Backend, MatrixRole kRole>
  using Matrix = typename F::template Matrix<Backend, kRole>;
};

}  // namespace detail

/// The element type of a format's vectors.
template <WeightFormat F>
using WeightElement = typename detail::WeightTypes<F>::type;

/// A backend's type of the matrices of format `F` and one role.
template <class Backend, WeightFormat F, MatrixRole kRole = MatrixRole::dense>
using MatrixOf = typename detail::WeightTypes<F>::template Matrix<Backend, kRole>;

/// "bfloat16", or what the format calls itself.
template <WeightFormat F>
[[nodiscard]] constexpr std::string_view weight_format_name() {
  if constexpr (CompoundWeightFormat<F>) {
    return F::kName;
  } else {
    return name(kDType<F>);
  }
}

/// Bits of an element of a dense matrix.
template <WeightFormat F>
inline constexpr int kWeightBits = [] {
  if constexpr (CompoundWeightFormat<F>) {
    return int{F::kBits};
  } else {
    return static_cast<int>(8 * sizeof(F));
  }
}();

/// Rows that a matrix wants at a time.
template <class Matrix>
inline constexpr std::int64_t kRowGroupOf = [] {
  if constexpr (requires { Matrix::kRowGroup; }) {
    return std::int64_t{Matrix::kRowGroup};
  } else {
    return std::int64_t{1};
  }
}();

}  // namespace nanovllm
