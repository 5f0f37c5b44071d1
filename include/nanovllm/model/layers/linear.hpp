#pragma once
/// A dense layer, and its bias where it has one.

#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/with/gpt2/add_bias.hpp"

namespace nanovllm {

/// y = x · weightᵀ.
template <class Context>
void project(const Context& context, typename Context::ConstRows x,
             const typename Context::Matrix& weight, typename Context::Rows y) {
  context.backend.run(LinearArgs<typename Context::Activation, typename Context::Matrix>{
      .x = x, .weight = &weight, .y = y});
}

/// x += bias, in every row.
template <class Context>
void add_bias(const Context& context, typename Context::Rows x,
              VectorView<const typename Context::Weight> bias) {
  context.backend.run(
      AddBiasArgs<typename Context::Activation, typename Context::Weight>{.x = x, .bias = bias});
}

}  // namespace nanovllm
