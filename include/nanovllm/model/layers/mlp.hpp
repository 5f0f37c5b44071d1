#pragma once
/// The gated MLP.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/residual_stream.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/gated_linear.hpp"

namespace nanovllm {

/// silu(gate_proj(x)) · up_proj(x), all but the product that brings it back to the stream's width.
template <class Context>
class GatedMlp {
 public:
  /// `intermediate_size` is this rank's share.
  GatedMlp(const Context& context, std::int64_t max_rows, std::int64_t intermediate_size)
      : context_(context),
        gate_up_(max_rows, 2 * intermediate_size),
        activation_(max_rows, intermediate_size) {}

  /// [n, intermediate_size], valid until the next call. `gate_up` has the rows of gate_proj, then
  /// those of up_proj.
  [[nodiscard]] typename Context::Rows operator()(const BlockInput<Context>& in,
                                                  const typename Context::Matrix& gate_up) {
    const std::int64_t n = in.x.extent(0);
    const typename Context::Rows out = activation_.rows(n);
    run_or_compose(context_.backend,
                   GatedLinearArgs<typename Context::Activation, typename Context::Matrix,
                                   typename Context::Weight>{.x = in.x,
                                                             .norm = in.norm,
                                                             .weight = &gate_up,
                                                             .out = out,
                                                             .normed = in.scratch,
                                                             .gate_up = gate_up_.rows(n)});
    return out;
  }
  /// The same of rows that have been normed.
  [[nodiscard]] typename Context::Rows operator()(typename Context::ConstRows x,
                                                  const typename Context::Matrix& gate_up) {
    return (*this)(BlockInput<Context>{.x = x}, gate_up);
  }

 private:
  Context context_;
  RowBuffer<Context> gate_up_;
  RowBuffer<Context> activation_;
};

}  // namespace nanovllm
