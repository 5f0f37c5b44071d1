#pragma once
/// How keys and values are kept in the cache.

#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"

namespace nanovllm {

/// A format that keeps a *row*, the keys or the values of one head of one token, as head_dim
/// elements of a type of its own and a float, the row's scale.
///
/// - `Stored`: the element, trivially copyable, of at most 4 bytes.
/// - `kName`: what `describe()` and the headers of files call it. Two formats have two names.
/// - `store(row, n, to)`: writes a row of n elements of type T, and returns its scale.
/// - `load(from, scale, n, row)`: the n floats that attention reads.
///
/// Only a row, and scales that are given (`FixedScaleKvFormat`), decide what is stored of it, so a
/// block has the same bytes whatever is computed beside it. The CPU runs `store` and `load`;
/// another backend has kernels that give the same bits.
template <class F>
concept ScaledKvFormat = std::is_trivially_copyable_v<typename F::Stored> && 4 %
                                 sizeof(typename F::Stored) ==
                             0 &&
                         requires(const float* row, std::int64_t n, typename F::Stored* to,
                                  const typename F::Stored* from, float scale, float* out) {
  { F::kName } -> std::convertible_to<std::string_view>;
  { F::store(row, n, to) } -> std::same_as<float>;
  F::load(from, scale, n, out);
};

/// A format of 8-bit elements whose `load` gives stored · scale, and that says so by `kIsProduct`.
/// The CPU's attention then multiplies products with a row by its scale, instead of its elements.
template <class F>
concept ByteKvFormat = ScaledKvFormat<F> && F::kIsProduct &&
    (std::is_same_v<typename F::Stored, std::int8_t> ||
     std::is_same_v<typename F::Stored, fp8_e4m3>);

/// A format that does not compute a row's scale but gets it: `store(row, n, to, scale)` returns
/// `scale`, which is positive and finite; `store(row, n, to)` stores by 1. Rows keep the scale as
/// those of other formats do. A model asks its `read_scales(checkpoint, modules)`, where there is
/// one, for a KvScales for each module of attention.
template <class F>
concept FixedScaleKvFormat = ScaledKvFormat<F> &&
    requires(const float* row, std::int64_t n, typename F::Stored* to, float scale) {
  { F::store(row, n, to, scale) } -> std::same_as<float>;
};

/// The scales of one layer's rows in a `FixedScaleKvFormat`.
struct KvScales {
  float k = 1.f;  ///< of its keys
  float v = 1.f;  ///< of its values

  bool operator==(const KvScales&) const = default;
};

/// What a policy's slot `KvElement` may be: an element type, whose rows are kept as they are, or
/// another format.
template <class F>
concept KvFormat = Element<F> || ScaledKvFormat<F>;

namespace detail {

template <class F>
struct StoredOf {
  using type = F;
};
template <ScaledKvFormat F>
struct StoredOf<F> {
  using type = typename F::Stored;
};

}  // namespace detail

/// What a cache of format `F` is an array of.
template <KvFormat F>
using KvStored = typename detail::StoredOf<F>::type;

/// Bytes of a row's scale; 0 where there is none.
template <KvFormat F>
inline constexpr std::int64_t kKvScaleBytes = ScaledKvFormat<F> ? sizeof(float) : 0;

/// "bfloat16", or what the format calls itself.
template <KvFormat F>
[[nodiscard]] constexpr std::string_view kv_format_name() {
  if constexpr (ScaledKvFormat<F>) {
    return F::kName;
  } else {
    return name(kDType<F>);
  }
}

}  // namespace nanovllm
