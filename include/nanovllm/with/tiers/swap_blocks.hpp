#pragma once
/// Contract of `swap_blocks`: whole blocks of the paged cache to a pool in host memory, and back.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm {

/// For each layer: K and V of block down[i].to of the host's pool become those of block
/// down[i].from of the device's, byte by byte, for all i; then those of block up[i].to of the
/// device's pool become those of block up[i].from of the host's. Neither list writes a block twice.
/// The lists are in host memory and may go when the call returns; the host's pool is memory that
/// the backend can reach: a `HostBuffer` where it has one.
///
/// Copies come after all ops before them. A backend whose ops run asynchronously may run later ops
/// at the same time: then it has `AwaitSwapArgs`.
template <KvFormat Kv>
struct SwapBlocksArgs {
  KvView<Kv> device;               ///< layer 0
  std::int64_t device_stride = 0;  ///< elements from a layer to the next
  KvView<Kv> host;                 ///< layer 0
  std::int64_t host_stride = 0;    ///< elements from a layer to the next
  std::int64_t num_layers = 0;
  VectorView<const BlockCopy> down{};  ///< from the device's pool to the host's
  VectorView<const BlockCopy> up{};    ///< from the host's pool to the device's
};

/// Ops that follow wait for the copies of the latest `SwapBlocksArgs` in layers [0, layer]. A
/// backend without this op makes the copies in the order of the calls. The caller, `StepKv`, awaits
/// a layer before any op that reads or writes blocks of it, and all layers before the next
/// `SwapBlocksArgs`.
struct AwaitSwapArgs {
  std::int64_t layer = 0;
};

/// Throws ShapeError unless every source is in [0, num_from), every target in [0, num_to), and no
/// block is written twice.
inline void check_swap_blocks(std::span<const BlockCopy> copies, std::int64_t num_from,
                              std::int64_t num_to) {
  if (copies.empty()) return;
  std::vector<BlockId> targets;
  const auto check_in = [](BlockId block, std::int64_t num_blocks, std::string_view what) {
    check<ShapeError>(block >= 0 && block < num_blocks, "swap_blocks: ", what, " must be in [0, ",
                      num_blocks, "), got ", block);
  };
  for (const BlockCopy& copy : copies) {
    check_in(copy.from, num_from, "blocks that are read");
    check_in(copy.to, num_to, "blocks that are written");
    targets.push_back(copy.to);
  }
  std::sort(targets.begin(), targets.end());
  const auto twice = std::adjacent_find(targets.begin(), targets.end());
  check<ShapeError>(twice == targets.end(), "swap_blocks: a block is written twice: ",
                    twice == targets.end() ? BlockId{} : *twice);
}

/// Throws ShapeError when the operands do not fit together, or a list is not as it must be.
template <KvFormat Kv>
void validate(const SwapBlocksArgs<Kv>& args) {
  check<ShapeError>(args.device.block_stride() == args.host.block_stride(),
                    "swap_blocks: a block has ", args.device.block_stride(),
                    " elements a layer on the device and ", args.host.block_stride(),
                    " on the host");
  const auto check_layers = [&](const KvView<Kv>& view, std::int64_t stride) {
    check<ShapeError>(args.num_layers <= 1 || stride >= view.num_blocks * view.block_stride(),
                      "swap_blocks: layers of ", view.num_blocks, " blocks of ",
                      view.block_stride(), " elements do not fit into a stride of ", stride);
  };
  check_layers(args.device, args.device_stride);
  check_layers(args.host, args.host_stride);
  const auto list = [](const VectorView<const BlockCopy>& copies) {
    return std::span(copies.data, static_cast<std::size_t>(copies.extent(0)));
  };
  check_swap_blocks(list(args.down), args.device.num_blocks, args.host.num_blocks);
  check_swap_blocks(list(args.up), args.host.num_blocks, args.device.num_blocks);
}

}  // namespace nanovllm
