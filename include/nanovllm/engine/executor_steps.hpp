#pragma once
/// What all executors do alike with a step's views.

#include <cstdint>
#include <type_traits>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/step_batch.hpp"
#include "nanovllm/engine/step_inputs.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/copy_blocks.hpp"
#include "nanovllm/ops/swap_blocks.hpp"

namespace nanovllm {

/// The model's part of `step`, which are views of `inputs`.
[[nodiscard]] inline ForwardBatch forward_batch(const StepBatch<ViewOf>& step,
                                                const StepInputs& inputs) {
  return {step.forward, inputs.num_decodes(), inputs.has_prefix()};
}

/// The elements of a pool.
template <class Pool>
using KvElementOf = std::remove_pointer_t<decltype(std::declval<Pool&>().layer(0).data)>;

/// Copies blocks of `kv`, in all of its layers. Does nothing for none, so that a backend need not
/// have the op where no plan has copies.
template <class Backend, class Pool>
void copy_blocks(Backend& backend, Pool& kv, VectorView<const BlockCopy> copies) {
  if (copies.empty()) return;
  const auto first = kv.layer(0);
  const std::int64_t stride = kv.num_layers() > 1 ? kv.layer(1).data - first.data : 0;
  backend.run(CopyBlocksArgs<KvElementOf<Pool>>{.first_layer = first,
                                                .layer_stride = stride,
                                                .num_layers = kv.num_layers(),
                                                .copies = copies});
}

/// Whether blocks of `Pool` can be copied to host memory and back.
template <class Backend, class Pool>
inline constexpr bool kSwapsBlocks = RunsOp<Backend, SwapBlocksArgs<KvElementOf<Pool>>>;

/// Copies blocks between the two pools of `kv`, in all layers. Does nothing for none.
template <class Backend, class Pool>
void swap_blocks(Backend& backend, Pool& kv, SwapDirection direction,
                 VectorView<const BlockCopy> copies) {
  if (copies.empty()) return;
  if constexpr (kSwapsBlocks<Backend, Pool>) {
    const auto device = kv.layer(0), host = kv.host_layer(0);
    const bool is_deep = kv.num_layers() > 1;
    backend.run(SwapBlocksArgs<KvElementOf<Pool>>{
        .device = device,
        .device_stride = is_deep ? kv.layer(1).data - device.data : 0,
        .host = host,
        .host_stride = is_deep ? kv.host_layer(1).data - host.data : 0,
        .num_layers = kv.num_layers(),
        .direction = direction,
        .copies = copies});
  } else {
    throw Error("swap_blocks: the policy's Backend has no such op");
  }
}

/// All copies of a step, in their order.
template <class Backend, class Pool>
void copy_blocks(Backend& backend, Pool& kv, VectorView<const BlockCopy> down,
                 VectorView<const BlockCopy> inside, VectorView<const BlockCopy> up) {
  swap_blocks(backend, kv, SwapDirection::down, down);
  copy_blocks(backend, kv, inside);
  swap_blocks(backend, kv, SwapDirection::up, up);
}

}  // namespace nanovllm
