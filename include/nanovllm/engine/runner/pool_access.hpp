#pragma once
/// What is in the KV pools of a runner's ranks, to be copied out and in.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm {

/// The pools of all ranks of `Group`, a RankGroup. A value for one call.
template <class Group>
class PoolAccess {
  using Rank = typename Group::Rank;
  using KvElement = typename Group::KvElement;
  using Backend = typename Group::Backend;

 public:
  /// @param shape  one rank's part of a block.
  /// @param call   what errors name.
  PoolAccess(Group& ranks, const KvShape& shape, const char* call)
      : ranks_(ranks), shape_(shape), call_(call) {}

  /// Throws ShapeError unless all of `blocks` are there and `num_bytes` is what `read` and `write`
  /// copy for them: ranks · blocks.size() · block_bytes().
  void check_copy(std::span<const BlockId> blocks, std::size_t num_bytes) const {
    const std::size_t expected =
        blocks.size() * static_cast<std::size_t>(shape_.block_bytes() * ranks_.size());
    check<ShapeError>(num_bytes == expected, call_, ": expected ", expected, " bytes for ",
                      blocks.size(), " blocks, got ", num_bytes);
    for (const BlockId block : blocks) {
      check<ShapeError>(ranks_[0].kv && block >= 0 && block < ranks_[0].kv->num_blocks(), call_,
                        ": there is no block ", block);
    }
  }

  /// Copies `blocks` out of the pools of all ranks, `[rank][block][layer][K |
  /// V][head][slot][head_dim]` with each rank's heads. The arguments have passed `check_copy`.
  void read(std::span<const BlockId> blocks, std::span<std::byte> bytes) {
    for_each_tile(blocks,
                  [&](Backend& backend, const KvElement* tile, std::size_t at, std::size_t count) {
                    backend.download(tile, reinterpret_cast<KvElement*>(bytes.data() + at), count);
                  });
  }

  /// The reverse.
  void write(std::span<const BlockId> blocks, std::span<const std::byte> bytes) {
    for_each_tile(
        blocks, [&](Backend& backend, KvElement* tile, std::size_t at, std::size_t count) {
          backend.upload(reinterpret_cast<const KvElement*>(bytes.data() + at), tile, count);
        });
  }

  /// The memory of a block of the host's pools, a piece for each layer of each rank, `[K |
  /// V][head][slot][head_dim]`. Throws ShapeError for a block that is not there.
  [[nodiscard]] std::vector<std::span<std::byte>> host_block(BlockId block) {
    std::vector<std::span<std::byte>> pieces;
    [[maybe_unused]] const auto count = static_cast<std::size_t>(shape_.block_elements());
    for (int r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      check<ShapeError>(rank.kv && block >= 0 && block < rank.kv->num_host_blocks(), call_,
                        ": there is no block ", block);
      if constexpr (Group::Pool::kHasHostBlocks) {
        for (std::int64_t layer = 0; layer < rank.kv->num_layers(); ++layer)
          pieces.push_back(
              std::as_writable_bytes(std::span(rank.kv->host_layer(layer).k(block, 0), count)));
      }
    }
    return pieces;
  }

 private:
  /// Calls `copy(backend, elements, byte offset in all ranks' copy, count)` for every layer of
  /// every block of every rank, on the rank's thread.
  template <class Copy>
  void for_each_tile(std::span<const BlockId> blocks, const Copy& copy) {
    const auto count = static_cast<std::size_t>(shape_.block_elements());
    const auto num_layers = static_cast<std::size_t>(shape_.num_layers);
    ranks_.on_all([&](Rank& rank) {
      const std::size_t first = static_cast<std::size_t>(rank.comm.rank()) * blocks.size();
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        for (std::size_t layer = 0; layer < num_layers; ++layer) {
          const KvView<KvElement> kv = rank.kv->layer(static_cast<std::int64_t>(layer));
          copy(*rank.backend, kv.k(blocks[i], 0),
               ((first + i) * num_layers + layer) * count * sizeof(KvElement), count);
        }
      }
    });
  }

  Group& ranks_;
  KvShape shape_;
  const char* call_;
};

}  // namespace nanovllm
