#pragma once
/// Hopper's kernels, as ops ask for them.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/hopper/attention/varlen.cuh"
#include "nanovllm/cuda/hopper/hopper.hpp"
#include "nanovllm/cuda/hopper/linear/heads.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/hopper/linear/wide_m/wide_m_linear.cuh"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm::cuda {

/// For devices that `HopperTables` takes.
struct Hopper : HopperTables {
  [[nodiscard]] static bool dense(const DenseLayer<bf16>& layer, int form, TensorMaps& maps,
                                  const LaunchContext auto& context) {
    const int num_mid = kMidMForms.size(layer.kind());
    return form < num_mid ? mid_m_linear(layer, form, maps, context)
                          : wide_m_linear(layer, form - num_mid, maps, context);
  }

  template <class Products, class Args>
  [[nodiscard]] static bool project_heads(const typename Products::Operands& operands,
                                          const Args& args, const Context& context) {
    return cuda::project_heads<Products>(operands, args, context);
  }

  template <class Kv>
  [[nodiscard]] static bool project_qkv(const ProjectQkvArgs<bf16, DeviceMatrix<bf16>, Kv>& args,
                                        const Context& context) {
    return small_m_project_qkv(args, context);
  }

  /// With head_dim 64 or 128; not compiled where `Heads` says another.
  template <class T, class Kv, class Heads>
  [[nodiscard]] static bool varlen_attention(const VarlenAttentionArgs<T, Kv, Heads>& args,
                                             VarlenWorkspace& workspace, const Context& context) {
    if constexpr (Heads::kHeadDim % 64 == 0 && Heads::kHeadDim <= 128)
      return varlen_attention_hopper(args, workspace, context);
    return false;
  }
};

}  // namespace nanovllm::cuda
