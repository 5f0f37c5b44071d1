#pragma once
/// A dense layer, and its bias where it has one.

#include <cstdint>
#include <span>
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

/// Lets a backend that can choose its ways to multiply by `weights`, all of one shape, choose them,
/// by trying; results are of type `Out`, for up to `max_rows` rows.
template <class Out, class Context>
void tune_projections(const Context& context,
                      std::span<const typename Context::Matrix* const> weights, bool accumulate,
                      std::int64_t max_rows) {
  if constexpr (TunableBackend<typename Context::Backend, typename Context::Weight, Out>)
    context.backend.template tune_linear<Out>(weights, accumulate, max_rows);
}

/// One matrix of every layer of `weights`, e.g. `&Layer::qkv`.
template <class Context, class Weights, class Layer>
[[nodiscard]] std::vector<const typename Context::Matrix*> matrices_of(
    const Weights& weights, std::int64_t num_layers, typename Context::Matrix Layer::*matrix) {
  std::vector<const typename Context::Matrix*> list;
  for (std::int64_t i = 0; i < num_layers; ++i) list.push_back(&(weights.layer(i).*matrix));
  return list;
}

/// The same for one matrix of every layer.
template <class Out, class Context, class Weights, class Layer>
void tune_layers(const Context& context, const Weights& weights, std::int64_t num_layers,
                 typename Context::Matrix Layer::*matrix, bool accumulate, std::int64_t max_rows) {
  const auto list = matrices_of<Context>(weights, num_layers, matrix);
  tune_projections<Out>(context, std::span<const typename Context::Matrix* const>(list), accumulate,
                        max_rows);
}

}  // namespace nanovllm
