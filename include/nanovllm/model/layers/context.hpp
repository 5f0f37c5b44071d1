#pragma once
/// What all layers of one rank's network have in common, and the sizes of its share.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/ops/linear.hpp"

namespace nanovllm {

/// The rank's backend and its end of the group, and the types that follow from them. Layers are
/// templates on this type; a copy is two references.
template <class ElementsT, class BackendT, class CommunicatorT>
struct LayerContext {
  using Elements = ElementsT;
  using Backend = BackendT;
  using Communicator = CommunicatorT;
  using Weight = WeightElement<typename Elements::Weight>;  ///< of a norm or a bias
  using Activation = typename Elements::Activation;
  using KvElement = typename Elements::KvElement;
  template <class T>
  using Buffer = typename Backend::template Buffer<T>;
  using Matrix = MatrixOf<Backend, typename Elements::Weight>;  ///< of a dense layer
  using Table = MatrixOf<Backend, typename Elements::Weight, MatrixRole::vocabulary>;
  using Head = MatrixOf<Backend, typename Elements::Weight, MatrixRole::head>;
  using Vector = Buffer<Weight>;        ///< of a norm
  using Rows = MatrixView<Activation>;  ///< [n, width]
  using ConstRows = MatrixView<const Activation>;

  Backend& backend;
  Communicator& comm;
};

/// A whole buffer as a vector.
template <class Buffer>
[[nodiscard]] auto view_of(const Buffer& buffer) {
  return VectorView<const std::remove_cvref_t<decltype(*buffer.data())>>(
      buffer.data(), {static_cast<std::int64_t>(buffer.size())});
}

/// Memory for activations, [max_rows, width], and views of its first rows.
template <class Context>
class RowBuffer {
 public:
  RowBuffer(std::int64_t max_rows, std::int64_t width)
      : width_(width), buffer_(static_cast<std::size_t>(max_rows * width)) {}

  [[nodiscard]] typename Context::Rows rows(std::int64_t n) {
    return {buffer_.data(), {n, width_}};
  }
  [[nodiscard]] std::int64_t width() const { return width_; }

 private:
  std::int64_t width_;
  typename Context::template Buffer<typename Context::Activation> buffer_;
};

/// y = x · weightᵀ.
template <class Context>
void project(const Context& context, typename Context::ConstRows x,
             const typename Context::Matrix& weight, typename Context::Rows y) {
  context.backend.run(LinearArgs<typename Context::Activation, typename Context::Matrix>{
      .x = x, .weight = &weight, .y = y});
}

}  // namespace nanovllm
