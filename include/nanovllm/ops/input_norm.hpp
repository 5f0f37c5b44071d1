#pragma once
/// The norm that an op may apply to its input itself.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// RMSNorm of the rows of an op's input, n(x), ahead of what the op is for: `rms_norm` with this
/// weight (ops/rms_norm.hpp). None, n(x) = x, where the weight has no data. W is its element.
template <class W>
struct InputNorm {
  VectorView<const W> weight{};  ///< [width of the input]
  float eps = 1e-6f;

  [[nodiscard]] explicit operator bool() const { return weight.data != nullptr; }
};

/// Throws ShapeError unless a norm that is there fits rows of `width` elements.
template <class W>
void check_input_norm(const char* op, const InputNorm<W>& norm, std::int64_t width) {
  if (norm) check_shape(op, "norm.weight", norm.weight, {width});
}

}  // namespace nanovllm
