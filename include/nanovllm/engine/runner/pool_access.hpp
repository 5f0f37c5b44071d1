#pragma once
/// How a runner's KV pools are read and written, on its ranks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/ops/kv_format.hpp"

namespace nanovllm {

/// `Runner::pool`. `Group` is the runner's RankGroup.
template <class Runner, class Group>
class PoolAccess final : public PoolContents {
  using Rank = typename Group::Rank;
  using Stored = KvStored<typename Group::KvElement>;
  using Backend = typename Group::Backend;

 public:
  /// `runner` must outlive this.
  explicit PoolAccess(Runner& runner) : runner_(runner) {}

  void read_blocks(std::span<const BlockId> blocks, std::span<std::byte> bytes) override {
    check_copy("read_blocks", blocks, bytes.size());
    for_each_tile(blocks,
                  [&](Backend& backend, const Stored* tile, std::size_t at, std::size_t count) {
                    backend.download(tile, reinterpret_cast<Stored*>(bytes.data() + at), count);
                  });
  }

  void write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> bytes) override {
    check_copy("write_blocks", blocks, bytes.size());
    for_each_tile(blocks, [&](Backend& backend, Stored* tile, std::size_t at, std::size_t count) {
      backend.upload(reinterpret_cast<const Stored*>(bytes.data() + at), tile, count);
    });
  }

  [[nodiscard]] std::vector<std::span<std::byte>> outside_block(BlockId block) override {
    check(!runner_.peers_.exist(), "outside_block: ranks are in other processes");
    std::vector<std::span<std::byte>> pieces;
    for (int r = 0; r < runner_.ranks_.size(); ++r) {
      [[maybe_unused]] Rank& rank = runner_.ranks_[r];
      bool is_there = false;
      if constexpr (requires { rank.kv->append_outside(block, pieces); })
        is_there = rank.kv && rank.kv->append_outside(block, pieces);
      check<ShapeError>(is_there, "outside_block: there is no block ", block);
    }
    return pieces;
  }

 private:
  /// Elements of one block in one layer, on one rank.
  [[nodiscard]] std::size_t layer_elements() const {
    return static_cast<std::size_t>(runner_.kv_shape().layer_bytes()) / sizeof(Stored);
  }

  /// Throws unless `call` may copy `blocks` from or to `num_bytes` now.
  void check_copy(const char* call, std::span<const BlockId> blocks, std::size_t num_bytes) const {
    check(!runner_.peers_.exist(), call,
          ": ranks are in other processes, and their part of the KV pool cannot be "
          "reached from here");
    check(runner_.slots_.num_under_way() == 0, call, ": a step is under way");
    const Group& ranks = runner_.ranks_;
    const std::size_t expected =
        blocks.size() * static_cast<std::size_t>(runner_.kv_shape().block_bytes() * ranks.size());
    check<ShapeError>(num_bytes == expected, call, ": expected ", expected, " bytes for ",
                      blocks.size(), " blocks, got ", num_bytes);
    for (const BlockId block : blocks) {
      check<ShapeError>(ranks[0].kv && block >= 0 && block < ranks[0].kv->num_blocks(), call,
                        ": there is no block ", block);
    }
  }

  /// Calls `copy(backend, elements, byte offset in all ranks' copy, count)` for every layer of
  /// every block of every rank, on the rank's thread.
  template <class Copy>
  void for_each_tile(std::span<const BlockId> blocks, const Copy& copy) {
    const std::size_t count = layer_elements();
    const auto num_layers = static_cast<std::size_t>(runner_.kv_shape().num_layers);
    const auto copy_all = [&](Rank& rank) {
      const std::size_t first = static_cast<std::size_t>(rank.comm.rank()) * blocks.size();
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        for (std::size_t layer = 0; layer < num_layers; ++layer) {
          const auto kv = rank.kv->layer(static_cast<std::int64_t>(layer));
          copy(*rank.backend, kv.k(blocks[i], 0),
               ((first + i) * num_layers + layer) * count * sizeof(Stored), count);
        }
      }
    };
    runner_.guard([&] { runner_.ranks_.on_all(copy_all); });
  }

  Runner& runner_;
};

}  // namespace nanovllm
