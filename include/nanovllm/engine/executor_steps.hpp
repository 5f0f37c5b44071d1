#pragma once
/// What all executors do alike with a step's views.

#include <cstdint>
#include <type_traits>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/step_batch.hpp"
#include "nanovllm/engine/step_inputs.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/ops/copy_blocks.hpp"

namespace nanovllm {

/// The model's part of `step`, which are views of `inputs`.
[[nodiscard]] inline ForwardBatch forward_batch(const StepBatch<ViewOf>& step,
                                                const StepInputs& inputs) {
  return {step.forward, inputs.num_decodes(), inputs.has_prefix()};
}

/// Copies blocks of `kv`, in all of its layers. Does nothing for none, so that a backend need not
/// have the op where no plan has copies.
template <class Backend, class Pool>
void copy_blocks(Backend& backend, Pool& kv, VectorView<const BlockCopy> copies) {
  if (copies.empty()) return;
  const auto first = kv.layer(0);
  using Kv = std::remove_pointer_t<decltype(first.data)>;
  const std::int64_t stride = kv.num_layers() > 1 ? kv.layer(1).data - first.data : 0;
  backend.run(CopyBlocksArgs<Kv>{.first_layer = first,
                             .layer_stride = stride,
                             .num_layers = kv.num_layers(),
                             .copies = copies});
}

}  // namespace nanovllm
