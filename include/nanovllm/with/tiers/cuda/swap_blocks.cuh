#pragma once
/// `swap_blocks` on CUDA: blocks of the paged cache to page-locked host memory and back, by the
/// device's copy engines, on one stream for each direction, apart from the one that computes.
/// Contract: with/tiers/swap_blocks.hpp.
///
/// Both streams begin where the computing one stands. Layers go one after the other, some together
/// where they are small; an event after each group tells when it is there. What goes up in a layer
/// waits for what goes down in it, for that may be where it goes to; so the bus is used both ways.
/// Floor: bytes of all copies of the longer list / bandwidth of the bus one way.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/compiled_ops.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"
#include "nanovllm/with/tiers/swap_blocks.hpp"

namespace nanovllm::cuda {

/// Copies between a device and its host that are done together, in any order.
class CopyBatch {
 public:
  void clear() { from_.clear(), to_.clear(), sizes_.clear(); }
  void add(const void* from, void* to, std::size_t bytes) {
    from_.push_back(from);
    to_.push_back(to);
    sizes_.push_back(bytes);
  }

  /// Enqueues all of them on `stream`, which must not be the default one.
  void enqueue(cudaMemcpyKind kind, cudaStream_t stream) {
    if (from_.empty()) return;
#if CUDART_VERSION >= 13000
    static_cast<void>(kind);
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    std::size_t first = 0;
    check_cuda(cudaMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), from_.size(),
                                    &attributes, &first, 1, stream),
               "cudaMemcpyBatchAsync");
#else
    for (std::size_t i = 0; i < from_.size(); ++i)
      check_cuda(cudaMemcpyAsync(to_[i], from_[i], sizes_[i], kind, stream), "cudaMemcpyAsync");
#endif
  }

 private:
  std::vector<const void*> from_;
  std::vector<void*> to_;
  std::vector<std::size_t> sizes_;
};

/// The streams that blocks are swapped on, made when they are first used.
class SwapStreams {
 public:
  /// See `SwapBlocksArgs`.
  template <KvFormat Kv>
  void swap(const SwapBlocksArgs<Kv>& args, const Context& context) {
    if (lanes_.empty()) lanes_.resize(2);
    num_layers_ = 0;
    begin_.record(context.stream);
    for (const Lane& lane : lanes_) wait(lane.stream, begin_);
    const std::int64_t num_copies = std::max(args.down.extent(0), args.up.extent(0));
    const std::int64_t layer_bytes =
        num_copies * args.device.block_stride() * static_cast<std::int64_t>(sizeof(KvStored<Kv>));
    layers_a_group_ = ceil_div(kGroupBytes, std::max<std::int64_t>(layer_bytes, 1));
    Lane &down = lanes_[0], &up = lanes_[1];
    for (std::int64_t begin = 0; begin < args.num_layers; begin += layers_a_group_) {
      const std::int64_t end = std::min(begin + layers_a_group_, args.num_layers);
      copy(args.device, args.device_stride, args.host, args.host_stride, begin, end, args.down);
      batch_.enqueue(cudaMemcpyDeviceToHost, down.stream.get());
      mark(down, begin / layers_a_group_);
      if (!args.down.empty()) wait(up.stream, down.done[index(begin / layers_a_group_)]);
      copy(args.host, args.host_stride, args.device, args.device_stride, begin, end, args.up);
      batch_.enqueue(cudaMemcpyHostToDevice, up.stream.get());
      mark(up, begin / layers_a_group_);
    }
    num_layers_ = args.num_layers;
  }

  /// See `AwaitSwapArgs`. What goes up waits for what goes down, so one event tells of both.
  void await(std::int64_t layer, const Context& context) {
    if (layer >= num_layers_ || layer % layers_a_group_ != 0) return;
    check_cuda(cudaStreamWaitEvent(context.stream,
                                   lanes_[1].done[index(layer / layers_a_group_)].get(), 0),
               "cudaStreamWaitEvent");
  }

  /// Blocks the host until all copies are done.
  void synchronize() const {
    for (const Lane& lane : lanes_) lane.stream.synchronize();
  }

 private:
  /// Bytes one way that make up for an event and a call.
  static constexpr std::int64_t kGroupBytes = 4 << 20;

  struct Lane {
    Stream stream;
    std::vector<Event> done;  ///< one a group of layers
  };

  [[nodiscard]] static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  static void wait(const Stream& stream, const Event& event) {
    check_cuda(cudaStreamWaitEvent(stream.get(), event.get(), 0), "cudaStreamWaitEvent");
  }
  static void mark(Lane& lane, std::int64_t group) {
    if (lane.done.size() <= index(group)) lane.done.resize(index(group) + 1);
    lane.done[index(group)].record(lane.stream.get());
  }

  /// The copies of layers [begin, end).
  template <KvFormat Kv>
  void copy(const KvView<Kv>& from, std::int64_t from_stride, const KvView<Kv>& to,
            std::int64_t to_stride, std::int64_t begin, std::int64_t end,
            VectorView<const BlockCopy> copies) {
    const std::int64_t block = from.block_stride();
    batch_.clear();
    if (block == 0) return;
    for (std::int64_t layer = begin; layer < end; ++layer) {
      for (std::int64_t i = 0; i < copies.extent(0); ++i) {
        batch_.add(from.data + layer * from_stride + copies.data[i].from * block,
                   to.data + layer * to_stride + copies.data[i].to * block,
                   index(block) * sizeof(KvStored<Kv>));
      }
    }
  }

  std::vector<Lane> lanes_;  ///< down and up, or none yet
  Event begin_;
  CopyBatch batch_;
  std::int64_t layers_a_group_ = 1;
  std::int64_t num_layers_ = 0;
};

template <KvFormat Kv, class State>
void run_op(const SwapBlocksArgs<Kv>& args, State& state) {
  validate(args);
  state.parts.template of<SwapStreams>().swap(args, state.context);
}

template <class State>
void run_op(const AwaitSwapArgs& args, State& state) {
  state.parts.template of<SwapStreams>().await(args.layer, state.context);
}

#if defined(NANOVLLM_CUDA_OPS)
#define NANOVLLM_CUDA_TIERS_OPS(extern_or_nothing) \
  NANOVLLM_CUDA_OP(extern_or_nothing, SwapBlocksArgs<bf16>)
NANOVLLM_CUDA_TIERS_OPS(extern);
#endif

}  // namespace nanovllm::cuda
