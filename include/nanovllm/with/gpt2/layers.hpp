#pragma once
/// Layers that GPT-2 has and Qwen3 has not, for other models with biases as well.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/with/gpt2/ops.hpp"

namespace nanovllm {

/// x += bias, in every row.
template <class Context>
void add_bias(const Context& context, typename Context::Rows x,
              VectorView<const typename Context::Weight> bias) {
  context.backend.run(
      AddBiasArgs<typename Context::Activation, typename Context::Weight>{.x = x, .bias = bias});
}

/// (x - mean) / deviation · weight + bias: a norm as model/layers/norm.hpp says.
struct LayerNorm {
  static constexpr bool kAddsBias = true;

  template <class Context>
  struct Parameters {
    VectorView<const typename Context::Weight> weight;  ///< [width]
    VectorView<const typename Context::Weight> bias;    ///< [width]
  };

  template <class Context, class Vectors>
  [[nodiscard]] static Parameters<Context> parameters(const Vectors& norm) {
    return {view_of(norm.weight), view_of(norm.bias)};
  }

  template <class Context>
  static void run(const Context& context, typename Context::ConstRows x,
                  const Parameters<Context>& norm, float eps, typename Context::Rows out) {
    context.backend.run(LayerNormArgs<typename Context::Activation, typename Context::Weight>{
        .x = x, .weight = norm.weight, .bias = norm.bias, .eps = eps, .out = out});
  }

  template <class Context>
  static void run_add(const Context& context, typename Context::ConstRows x,
                      VectorView<const typename Context::Weight> x_bias,
                      typename Context::Rows residual, const Parameters<Context>& norm, float eps,
                      typename Context::Rows out) {
    context.backend.run(AddLayerNormArgs<typename Context::Activation, typename Context::Weight>{
        .x = x,
        .x_bias = x_bias,
        .residual = residual,
        .weight = norm.weight,
        .bias = norm.bias,
        .eps = eps,
        .out = out});
  }
};

/// gelu(fc(x)), fc with bias; all but the product that brings it back to the stream's width.
template <class Context>
class GeluMlp {
 public:
  /// `intermediate_size` is this rank's share.
  GeluMlp(const Context& context, std::int64_t max_rows, std::int64_t intermediate_size)
      : context_(context), activation_(max_rows, intermediate_size) {}

  /// [n, intermediate_size], valid until the next call.
  [[nodiscard]] typename Context::Rows operator()(typename Context::ConstRows x,
                                                  const typename Context::Matrix& fc,
                                                  VectorView<const typename Context::Weight> bias) {
    const typename Context::Rows out = activation_.rows(x.extent(0));
    project(context_, x, fc, out);
    context_.backend.run(BiasGeluArgs<typename Context::Activation, typename Context::Weight>{
        .x = out, .bias = bias, .out = out});
    return out;
  }

 private:
  Context context_;
  RowBuffer<Context> activation_;
};

}  // namespace nanovllm
