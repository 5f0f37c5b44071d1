#pragma once
/// Weights in 8-bit floats with a scale for each block of 128 rows and columns, and in integers of
/// 8 and 4 bits with a scale for each row and 32 columns, or 128 of them.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/ops/weight_format.hpp"

namespace nanovllm {

/// Rows of a matrix as a checkpoint has them: element (i, j) is data[i · stride + j] · scale(i, j).
struct Fp8Rows {
  const fp8_e4m3* data = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t stride = 0;
  std::int64_t group_columns = 1;  ///< columns that share a scale
  std::int64_t phase = 0;          ///< columns of the first group that lie ahead of column 0
  std::function<float(std::int64_t row, std::int64_t column)> scale{};

  /// Whether the scale of a row is the same in columns [0, group), in [group, 2 · group), …
  [[nodiscard]] bool has_one_scale_in_each(std::int64_t group) const {
    return phase + columns <= group_columns || (phase % group == 0 && group_columns % group == 0);
  }
};

/// The matrices of the layers in e4m3 with scales, the vocabulary's and all vectors in `T`. What a
/// checkpoint has in e4m3 is kept as it is, if its scales are those of rows, of the matrix, or of
/// blocks of a multiple of 128 columns; other matrices are quantised while they are loaded. A
/// backend's `Fp8Matrix` says how it computes with them.
/// Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.
template <Element T>
struct Fp8Weights {
  using Element = T;
  template <class Backend, MatrixRole kRole>
  using Matrix = std::conditional_t<kRole == MatrixRole::dense, typename Backend::Fp8Matrix,
                                    typename Backend::template Matrix<T>>;
  static constexpr std::string_view kName = "float8_e4m3 in blocks of 128 x 128";
  static constexpr int kBits = 8;
};

using Fp8Block128 = Fp8Weights<bf16>;

/// Rows of a matrix of integers as a checkpoint has them. Element (i, j) is
/// scale · code + offset, with the scale and the offset of row i and of the group of column j.
///
/// Codes are signed. Where a file has unsigned ones of 4 bits, q in [0, 16), the code is q - 8:
/// - scale · (q - zero) is scale · code + offset with offset = scale · (8 - zero);
/// - scale · q + minimum is the same with offset = 8 · scale + minimum.
struct IntRows {
  /// What the columns of a group share in one row.
  struct Group {
    float scale = 1.f;
    float offset = 0.f;
  };

  std::int64_t rows = 0, columns = 0;
  int bits = 8;                    ///< codes are in [-2^(bits - 1), 2^(bits - 1)), at most 8
  std::int64_t group_columns = 1;  ///< columns of a group
  std::int64_t phase = 0;          ///< columns of the first group that lie ahead of column 0
  bool has_offsets = false;        ///< whether any offset is not 0
  std::int64_t rows_at_once = 1;   ///< that `read` unpacks together
  /// Writes the codes of a row to codes[0, columns). A copy is used by one thread at a time, which
  /// asks for rows in ascending order; other threads may use other copies at the same time.
  std::function<void(std::int64_t row, std::int8_t* codes)> read{};
  /// Several threads may call it at once.
  std::function<Group(std::int64_t row, std::int64_t column)> group{};

  /// Whether a row has one scale in columns [0, size), in [size, 2 · size), …
  [[nodiscard]] bool has_one_scale_in_each(std::int64_t size) const {
    return phase + columns <= group_columns || (phase % size == 0 && group_columns % size == 0);
  }
};

/// The matrices of the layers in 8-bit integers in groups of 32 columns, the vocabulary's too; all
/// vectors in `T`. A group has a scale of 16 bits, so an element takes 8.5 bits. What a checkpoint
/// has in such integers is kept as it is; other matrices are quantised while they are loaded. A
/// backend's `Int8Matrix` says how it computes with them.
/// Source: Dettmers and Zettlemoyer, "The case for 4-bit precision", 2023 (blocks with a scale).
template <Element T>
struct Int8Weights {
  using Element = T;
  template <class Backend, MatrixRole>
  using Matrix = typename Backend::Int8Matrix;
  static constexpr std::string_view kName = "int8 in groups of 32";
  static constexpr int kBits = 8;
};

/// The same with the matrices of the layers in 4-bit integers, the backend's `Int4Matrix`: 4.5 bits
/// an element. The vocabulary's stay in 8 bits.
template <Element T>
struct Int4Weights {
  using Element = T;
  template <class Backend, MatrixRole kRole>
  using Matrix = std::conditional_t<kRole == MatrixRole::dense, typename Backend::Int4Matrix,
                                    typename Backend::Int8Matrix>;
  static constexpr std::string_view kName = "int4 in groups of 32, vocabulary int8";
  static constexpr int kBits = 4;
};

using Int8Group32 = Int8Weights<bf16>;
using Int4Group32 = Int4Weights<bf16>;

/// `type` is the matrix by which a backend computes with `Int4Group128`, defined next to its ops;
/// elsewhere one that no backend has operations for.
template <class Backend>
struct Int4GroupMatrixOf {
  struct type;
};

/// For GPUs: the matrices of the layers in integers of 4 bits in groups of 128 columns, the
/// vocabulary's and all vectors in `T`. A group has a scale in float32, and an offset where a
/// checkpoint has one, so an element takes 4.25 or 4.5 bits. Activations stay as they are (W4A16).
/// What a checkpoint has in such integers is kept as it is, if its groups are multiples of 128
/// columns (AWQ, GPTQ, compressed-tensors); other matrices are quantised while they are loaded.
/// with/eight_bits/cuda/int4_ops.cuh.
/// Source: Frantar et al., "GPTQ", 2022; Lin et al., "AWQ", 2023.
template <Element T>
struct Int4GroupWeights {
  using Element = T;
  template <class Backend, MatrixRole kRole>
  using Matrix =
      typename std::conditional_t<kRole == MatrixRole::dense, Int4GroupMatrixOf<Backend>,
                                  std::type_identity<typename Backend::template Matrix<T>>>::type;
  static constexpr std::string_view kName = "int4 in groups of 128";
  static constexpr int kBits = 4;
};

using Int4Group128 = Int4GroupWeights<bf16>;

/// `Format` with lm_head in e4m3, as `Fp8Weights` have the layers. A tied model keeps its embedding
/// as `Format` has it, and lm_head is a copy in 8 bits: half the table's bytes more.
template <CompoundWeightFormat Format>
struct WithFp8Head {
  using Element = typename Format::Element;
  template <class Backend, MatrixRole kRole>
  using Matrix = std::conditional_t<kRole == MatrixRole::head, typename Backend::Fp8Matrix,
                                    MatrixOf<Backend, Format, kRole>>;
  static constexpr auto kText = [] {
    constexpr std::string_view format = Format::kName, head = ", lm_head in float8_e4m3";
    std::array<char, format.size() + head.size()> out{};
    std::copy(head.begin(), head.end(), std::copy(format.begin(), format.end(), out.begin()));
    return out;
  }();
  static constexpr std::string_view kName{kText.data(), kText.size()};
  static constexpr int kBits = Format::kBits;
};

}  // namespace nanovllm
