#pragma once
/// What a residual stream can be normalised by.
///
/// A norm is a type with `Parameters<Context>`, views of its weights, and two functions:
/// `run`, out = norm(x), and `run_add`, residual += x and then out = norm(residual). One with
/// `kAddsBias` takes the bias of the dense layer that gave x as well, a view without data for none.

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm {

/// x / rms(x) · weight.
struct RmsNorm {
  static constexpr bool kAddsBias = false;

  template <class Context>
  using Parameters = VectorView<const typename Context::Weight>;

  /// Views of a norm's weights as the model keeps them.
  template <class Context, class Vector>
  [[nodiscard]] static Parameters<Context> parameters(const Vector& weight) {
    return view_of(weight);
  }

  template <class Context>
  static void run(const Context& context, typename Context::ConstRows x,
                  const Parameters<Context>& weight, float eps, typename Context::Rows out) {
    context.backend.run(RmsNormArgs<typename Context::Activation, typename Context::Weight>{
        .x = x, .weight = weight, .eps = eps, .out = out});
  }

  template <class Context>
  static void run_add(const Context& context, typename Context::ConstRows x,
                      typename Context::Rows residual, const Parameters<Context>& weight, float eps,
                      typename Context::Rows out) {
    context.backend.run(AddRmsNormArgs<typename Context::Activation, typename Context::Weight>{
        .x = x, .residual = residual, .weight = weight, .eps = eps, .out = out});
  }
};

}  // namespace nanovllm
