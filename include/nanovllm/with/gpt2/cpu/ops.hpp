#pragma once
/// GPT-2's ops on the CPU. Contracts: with/gpt2/ops.hpp.

#include <cmath>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/with/gpt2/ops.hpp"

#define NANOVLLM_KERNELS "nanovllm/with/gpt2/cpu/ops_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {

/// A row's result depends on that row alone, bit for bit on a given instruction set.
template <Element T, Element W>
void add_bias(const AddBiasArgs<T, W>& args, const Context& context) {
  validate(args);
  for_rows(args.x.extent(0), args, NANOVLLM_PICK(context.isa, add_bias_rows<T, W>), context);
}

template <Element T, Element W>
void run_op(const AddBiasArgs<T, W>& args, Context& context) {
  add_bias(args, context);
}

/// A row's result depends on that row alone, bit for bit on a given instruction set.
template <Element T, Element W>
void bias_gelu(const BiasGeluArgs<T, W>& args, const Context& context) {
  validate(args);
  for_rows(args.x.extent(0), args, NANOVLLM_PICK(context.isa, bias_gelu_rows<T, W>), context);
}

template <Element T, Element W>
void run_op(const BiasGeluArgs<T, W>& args, Context& context) {
  bias_gelu(args, context);
}

/// A row's result depends on that row alone, bit for bit on a given instruction set.
template <Element T, Element W>
void layer_norm(const LayerNormArgs<T, W>& args, const Context& context) {
  validate(args);
  for_rows(args.x.extent(0), args, NANOVLLM_PICK(context.isa, layer_norm_rows<T, W>), context);
}

template <Element T, Element W>
void run_op(const LayerNormArgs<T, W>& args, Context& context) {
  layer_norm(args, context);
}

/// As `layer_norm`.
template <Element T, Element W>
void add_layer_norm(const AddLayerNormArgs<T, W>& args, const Context& context) {
  validate(args);
  for_rows(args.x.extent(0), args, NANOVLLM_PICK(context.isa, add_layer_norm_rows<T, W>), context);
}

template <Element T, Element W>
void run_op(const AddLayerNormArgs<T, W>& args, Context& context) {
  add_layer_norm(args, context);
}

NANOVLLM_COMPILED_TEMPLATE(void add_bias(const AddBiasArgs<float, float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void add_bias(const AddBiasArgs<bf16, bf16>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void bias_gelu(const BiasGeluArgs<float, float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void bias_gelu(const BiasGeluArgs<bf16, bf16>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void layer_norm(const LayerNormArgs<float, float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void layer_norm(const LayerNormArgs<bf16, bf16>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void add_layer_norm(const AddLayerNormArgs<float, float>&,
                                               const Context&))
NANOVLLM_COMPILED_TEMPLATE(void add_layer_norm(const AddLayerNormArgs<bf16, bf16>&, const Context&))

}  // namespace nanovllm::cpu
