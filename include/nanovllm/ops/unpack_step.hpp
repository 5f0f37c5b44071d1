#pragma once
/// Contract of `unpack_step`: the packed inputs of a decode step into arrays of a fixed place and
/// size, as a captured graph wants them. For backends that run ahead of the host.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm {

/// The arrays that a decode step of `size()` rows reads.
struct DecodeStepArrays {
  VectorView<TokenId> tokens;              ///< [size]
  VectorView<std::int32_t> positions;      ///< [size]
  VectorView<Slot> slots;                  ///< [size]
  VectorView<std::int32_t> kv_lens;        ///< [size]
  MatrixView<BlockId> block_tables;        ///< [size, most blocks of a sequence]
  VectorView<SamplingRow> rows;            ///< [size]
  VectorView<std::int32_t> banned_starts;  ///< [size + 1]
  VectorView<TokenId> banned_tokens;       ///< [capacity]

  [[nodiscard]] NANOVLLM_HD std::int64_t size() const { return tokens.extents[0]; }
};

/// Copies n packed rows to the first rows of `out`, and makes padding of the rest: token 0 at
/// position 0 that stores nothing (`kNoSlot`), sees nothing (kv_len 0) and is sampled greedily. A
/// negative token ~i stands for `previous[i]`, the token that sample i of the step before drew. Of
/// a row of block tables only the packed columns are written.
struct UnpackStepArgs {
  VectorView<const TokenId> tokens;              ///< [n]
  VectorView<const std::int32_t> positions;      ///< [n]
  VectorView<const Slot> slots;                  ///< [n]
  VectorView<const std::int32_t> kv_lens;        ///< [n]
  MatrixView<const BlockId> block_tables;        ///< [n, w]
  VectorView<const SamplingRow> rows;            ///< [n]
  VectorView<const std::int32_t> banned_starts;  ///< [n + 1]
  VectorView<const TokenId> banned_tokens;       ///< [b]
  VectorView<const TokenId> previous;            ///< [samples of the step before at the most]
  DecodeStepArrays out;                          ///< n rows or more, w columns or more
};

/// In place, tokens[j] = previous[~tokens[j]] where tokens[j] is negative.
struct ResolveTokensArgs {
  VectorView<TokenId> tokens;
  VectorView<const TokenId> previous;
};

/// Throws ShapeError when the operands do not fit together.
inline void validate(const UnpackStepArgs& args) {
  constexpr auto kOp = "unpack_step";
  const std::int64_t n = args.tokens.extent(0), size = args.out.size();
  check_shape(kOp, "positions", args.positions, {n});
  check_shape(kOp, "slots", args.slots, {n});
  check_shape(kOp, "kv_lens", args.kv_lens, {n});
  check_shape(kOp, "block_tables", args.block_tables, {n, -1});
  check_shape(kOp, "rows", args.rows, {n});
  check_shape(kOp, "banned_starts", args.banned_starts, {n + 1});
  check_shape(kOp, "out.block_tables", args.out.block_tables, {size, -1});
  check<ShapeError>(n <= size && args.block_tables.extent(1) <= args.out.block_tables.extent(1) &&
                        args.banned_tokens.extent(0) <= args.out.banned_tokens.extent(0),
                    kOp, ": ", n, " rows of ", args.block_tables.extent(1), " blocks with ",
                    args.banned_tokens.extent(0), " banned tokens do not fit into ", size,
                    " rows of ", args.out.block_tables.extent(1), " blocks with ",
                    args.out.banned_tokens.extent(0));
}

}  // namespace nanovllm
