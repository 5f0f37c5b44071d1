#pragma once
/// The inputs of a network for the tokens of one sequence, in the memory of the CPU.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/model/forward_batch.hpp"

namespace nanovllm::test {

/// Blocks of 16 tokens; so many of the pool from block `first` on, in descending order.
class OneSequence {
 public:
  static constexpr std::int32_t kBlockSize = 16;

  explicit OneSequence(std::int32_t num_blocks, BlockId first = 1)
      : table_(static_cast<std::size_t>(num_blocks)) {
    std::iota(table_.rbegin(), table_.rend(), first);
  }

  /// Those of its first `num_tokens` tokens.
  std::span<const BlockId> blocks(std::size_t num_tokens) const {
    return std::span(table_).first((num_tokens + kBlockSize - 1) / kBlockSize);
  }

  /// `tokens` at positions from `begin` on: one is a decode, several are a chunk. All rows give
  /// logits, the last one alone if `last`. Valid until the next call.
  ForwardBatch batch(const std::vector<TokenId>& tokens, std::int32_t begin, bool last = false) {
    const auto n = static_cast<std::int32_t>(tokens.size());
    tokens_.assign(tokens.begin(), tokens.end());
    positions_.resize(tokens.size());
    std::iota(positions_.begin(), positions_.end(), begin);
    slots_.clear();
    for (const std::int32_t position : positions_)
      slots_.push_back(Slot{table_[static_cast<std::size_t>(position / kBlockSize)]} * kBlockSize +
                       position % kBlockSize);
    rows_.resize(last ? 1 : tokens.size());
    std::iota(rows_.begin(), rows_.end(), last ? n - 1 : 0);
    kv_len_ = begin + n;
    query_starts_ = {0, n};
    ForwardBatch out;
    out.tokens = {tokens_.data(), {n}};
    out.positions = {positions_.data(), {n}};
    out.slots = {slots_.data(), {n}};
    out.num_decodes = n == 1 && begin > 0 ? 1 : 0;
    out.query_starts = {query_starts_.data(), {out.num_decodes == 1 ? 1 : 2}};
    out.kv_lens = {&kv_len_, {1}};
    out.block_tables = {table_.data(), {1, static_cast<std::int64_t>(table_.size())}};
    out.logit_rows = {rows_.data(), {static_cast<std::int64_t>(rows_.size())}};
    out.has_prefix = begin > 0;
    return out;
  }

 private:
  std::vector<BlockId> table_;
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> positions_, rows_, query_starts_;
  std::vector<Slot> slots_;
  std::int32_t kv_len_ = 0;
};

}  // namespace nanovllm::test
