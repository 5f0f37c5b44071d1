#pragma once
/// Non-owning views of row-major tensors: a pointer, extents and strides, trivially copyable, so
/// that they can be passed to kernels by value.

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// A view of a rank-`kRank` tensor of `T`. Extents and strides count elements; the last dimension
/// is contiguous. The view does not own its memory.
template <class T, int kRank>
struct TensorView {
  T* data = nullptr;
  std::array<std::int64_t, kRank> extents{};
  std::array<std::int64_t, kRank> strides{};

  TensorView() = default;

  /// A dense row-major tensor.
  NANOVLLM_HD constexpr TensorView(T* pointer, std::array<std::int64_t, kRank> shape)
      : data(pointer), extents(shape) {
    std::int64_t stride = 1;
    for (int i = kRank - 1; i >= 0; --i) {
      strides[i] = stride;
      stride *= shape[i];
    }
  }

  /// A strided tensor; `strides_in[kRank - 1]` must be 1.
  NANOVLLM_HD constexpr TensorView(T* pointer, std::array<std::int64_t, kRank> shape,
                                   std::array<std::int64_t, kRank> strides_in)
      : data(pointer), extents(shape), strides(strides_in) {}

  /// A mutable view converts to a read-only one. (A conversion operator would be warned about by
  /// nvcc in views that are read-only already.)
  template <class U>
  requires(std::is_same_v<T, const U>) NANOVLLM_HD
      constexpr TensorView(const TensorView<U, kRank>& other)
      : data(other.data), extents(other.extents), strides(other.strides) {}

  /// Address of the element at the leading indices; missing trailing indices are zero.
  template <class... Index>
  [[nodiscard]] NANOVLLM_HD constexpr T* at(Index... index) const {
    static_assert(sizeof...(Index) <= kRank);
    const std::int64_t indices[] = {static_cast<std::int64_t>(index)..., 0};
    std::int64_t offset = 0;
    for (int i = 0; i < static_cast<int>(sizeof...(Index)); ++i) offset += indices[i] * strides[i];
    return data + offset;
  }

  /// Rows [begin, end) along the first dimension.
  [[nodiscard]] NANOVLLM_HD constexpr TensorView slice(std::int64_t begin, std::int64_t end) const {
    TensorView out = *this;
    out.data += begin * strides[0];
    out.extents[0] = end - begin;
    return out;
  }

  [[nodiscard]] NANOVLLM_HD constexpr std::int64_t extent(int i) const { return extents[i]; }

  [[nodiscard]] NANOVLLM_HD constexpr std::int64_t size() const {
    std::int64_t n = 1;
    for (std::int64_t e : extents) n *= e;
    return n;
  }

  [[nodiscard]] NANOVLLM_HD constexpr bool empty() const { return size() == 0; }
};

template <class T>
using VectorView = TensorView<T, 1>;
template <class T>
using MatrixView = TensorView<T, 2>;

namespace detail {

/// -1 is "any".
[[gnu::noinline]] inline std::string shape_string(const std::int64_t* extents, int rank) {
  std::string out = "[";
  for (int i = 0; i < rank; ++i) {
    if (i > 0) out += ", ";
    out += extents[i] == -1 ? "any" : std::to_string(extents[i]);
  }
  return out + "]";
}

[[noreturn, gnu::cold, gnu::noinline]] inline void fail_shape(const char* op, const char* operand,
                                                              const std::int64_t* got,
                                                              const std::int64_t* expected,
                                                              int rank) {
  fail<ShapeError>({op, ": '", operand, "' must have shape ", shape_string(expected, rank),
                    ", got ", shape_string(got, rank)});
}

}  // namespace detail

/// "[3, 128]", for messages.
template <class T, int kRank>
[[nodiscard]] std::string shape_string(const TensorView<T, kRank>& view) {
  return detail::shape_string(view.extents.data(), kRank);
}

/// Throws ShapeError unless `view` has exactly the extents `expected`; -1 matches any extent.
template <class T, int kRank>
void check_shape(const char* op, const char* operand, const TensorView<T, kRank>& view,
                 const std::type_identity_t<std::array<std::int64_t, kRank>>& expected) {
  bool fits = true;
  for (int i = 0; i < kRank; ++i) fits &= expected[i] == -1 || view.extents[i] == expected[i];
  if (!fits) [[unlikely]]
    detail::fail_shape(op, operand, view.extents.data(), expected.data(), kRank);
}

}  // namespace nanovllm
