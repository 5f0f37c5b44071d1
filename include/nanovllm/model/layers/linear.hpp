#pragma once
/// A dense layer, and its bias where it has one.

#include <cstdint>
#include <vector>

#include "nanovllm/ops/add_bias.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/linear.hpp"

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

/// One matrix of every layer of `weights`, e.g. `&Layer::qkv`.
template <class Context, class Weights, class Layer>
[[nodiscard]] std::vector<const typename Context::Matrix*> matrices_of(
    const Weights& weights, std::int64_t num_layers, typename Context::Matrix Layer::*matrix) {
  std::vector<const typename Context::Matrix*> list;
  for (std::int64_t i = 0; i < num_layers; ++i) list.push_back(&(weights.layer(i).*matrix));
  return list;
}

}  // namespace nanovllm
