#pragma once
/// Contract of `swap_blocks`: whole blocks of the paged cache to a pool in host memory, and back.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm {

/// Which way blocks go.
enum class SwapDirection : std::uint8_t {
  down,  ///< from the device's pool to the host's
  up,    ///< from the host's pool to the device's
};

/// For each i, K and V of block copies[i].to of one pool become those of block copies[i].from of
/// the other, in all layers, byte by byte. No block is written twice (`check_swap_blocks`). The
/// host's pool is memory that the backend can reach: a `HostBuffer` where it has one.
template <Element Kv>
struct SwapBlocksArgs {
  KvView<Kv> device;               ///< layer 0
  std::int64_t device_stride = 0;  ///< elements from a layer to the next
  KvView<Kv> host;                 ///< layer 0
  std::int64_t host_stride = 0;    ///< elements from a layer to the next
  std::int64_t num_layers = 0;
  SwapDirection direction = SwapDirection::down;
  VectorView<const BlockCopy> copies;

  [[nodiscard]] const KvView<Kv>& from() const {
    return direction == SwapDirection::down ? device : host;
  }
  [[nodiscard]] const KvView<Kv>& to() const {
    return direction == SwapDirection::down ? host : device;
  }
  [[nodiscard]] std::int64_t from_stride() const {
    return direction == SwapDirection::down ? device_stride : host_stride;
  }
  [[nodiscard]] std::int64_t to_stride() const {
    return direction == SwapDirection::down ? host_stride : device_stride;
  }
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

/// Throws ShapeError when the operands do not fit together.
template <Element Kv>
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
}

}  // namespace nanovllm
