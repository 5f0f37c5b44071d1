#pragma once
/// A dense layer without bias.

#include <cstdint>
#include <span>

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

/// Lets a backend that can choose its ways to multiply by `weights`, all of one shape, choose them,
/// by trying; results are of type `Out`, for up to `max_rows` rows.
template <class Out, class Context>
void tune_projections(const Context& context,
                      std::span<const typename Context::Matrix* const> weights, bool accumulate,
                      std::int64_t max_rows) {
  if constexpr (TunableBackend<typename Context::Backend, typename Context::Weight, Out>)
    context.backend.template tune_linear<Out>(weights, accumulate, max_rows);
}

}  // namespace nanovllm
