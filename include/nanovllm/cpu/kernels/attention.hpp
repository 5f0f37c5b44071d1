#pragma once
/// `varlen_attention` and `decode_attention` on the CPU: one flash attention over paged keys.
///
/// A row is one query token with one query head. It sees its keys in tiles of 32, cut at absolute
/// positions: scores, running maximum, weights e^(score - maximum), and sums that are scaled down
/// whenever the maximum grows. After each segment of 256 keys the sums are folded into those of the
/// segments before and start over, so that segments can be computed separately by different
/// threads. All of that is float32. Tiles, segments and the order of every sum depend on nothing
/// but positions; hence the law of this file, bit for bit on a given instruction set:
///
///   a row's output depends on its query, the keys and values it sees, and nothing else: neither on
///   the op, the batch, the chunk, the block size, the block ids nor the number of threads.
///
/// The work is divided into (tile of queries, kv head) pairs: the query heads of a group share a
/// kv head, and the tile's rows share each tile of keys, which is converted to float32 once (keys
/// transposed, so that 16 of them fill a vector). With too few pairs for the threads, as when one
/// long sequence decodes, the segments of a pair are shared out as well.
///
/// Rows of a ByteKvFormat are read where they lie (attention_byte_kernels.inc): elements are
/// converted as they are, and scores and weights are multiplied by the scales of keys and values.
/// Their sums have another order, which is the same for all numbers of rows, so the law holds.
/// Source: Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding", 2023.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "nanovllm/core/math.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/core/sort.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm::cpu::detail {

inline constexpr int kKeyTile = 32;      ///< keys a tile
inline constexpr int kKeySegment = 256;  ///< keys a segment, a multiple of the tile
inline constexpr int kMaxItemRows = 128, kMinItemRows = 16;  ///< rows that share a tile of keys

/// The operands common to both ops: queries and results of T, a cache of Kv.
template <class T, class Kv>
struct AttentionProblem {
  TensorView<const T, 3> q;  ///< [n, heads, head_dim]
  KvView<Kv> kv;
  MatrixView<const BlockId> block_tables;
  float scale;
  TensorView<T, 3> out;

  [[nodiscard]] std::int64_t group() const { return q.extent(1) / kv.num_kv_heads; }
  [[nodiscard]] std::int64_t width() const { return align_up(kv.head_dim, kLanes); }
};

/// What a row of the cache is read as: floats, where it has a scale.
template <class Kv>
using KvLoaded = std::conditional_t<ScaledKvFormat<Kv>, float, Kv>;

/// Neighbouring query rows of one sequence.
struct QueryTile {
  std::int64_t sequence;
  std::int64_t first_row;    ///< in q
  std::int64_t num_queries;  ///< ≥ 1
  std::int64_t
      first_visible;  ///< keys that its first query sees, ≥ 1; each later query sees 1 more

  [[nodiscard]] std::int64_t visible() const { return first_visible + num_queries - 1; }
  [[nodiscard]] std::int64_t num_segments() const { return ceil_div(visible(), kKeySegment); }
};

/// The unfinished softmax of some rows. Each has `width` weighted sums of values, 16 partial sums
/// of the weights, and the maximum that the weights are relative to.
struct RowStates {
  float* data;
  std::int64_t stride;

  [[nodiscard]] static std::int64_t stride_of(std::int64_t width) { return width + 2 * kLanes; }
  [[nodiscard]] float* out(std::int64_t row) const { return data + row * stride; }
  [[nodiscard]] float* sums(std::int64_t row) const { return out(row) + stride - 2 * kLanes; }
  [[nodiscard]] float* max(std::int64_t row) const { return out(row) + stride - kLanes; }
  /// A row that has seen nothing.
  void clear(std::int64_t row) const {
    std::fill_n(out(row), stride, 0.f);
    *max(row) = -std::numeric_limits<float>::infinity();
  }
};

/// One thread's memory for one item.
struct ItemScratch {
  float* q;         ///< [rows][head_dim], scaled
  float* keys;      ///< [head_dim][kKeyTile]
  float* values;    ///< [kKeyTile][width]
  float* rows;      ///< [2][kKeyTile][key | value][head_dim], of a format with scales
  RowStates total;  ///< the segments so far
  RowStates part;   ///< the current segment

  /// Cuts `memory` into pieces for `num_rows` rows of queries; returns how many floats they take
  /// (also when `memory` is null).
  template <class Kv>
  std::int64_t assign(float* memory, std::int64_t num_rows, const KvView<Kv>& kv,
                      std::int64_t width) {
    std::int64_t used = 0;
    const auto take = [&](std::int64_t size) {
      float* const piece = memory == nullptr ? nullptr : memory + used;
      used += align_up(size, kLanes);
      return piece;
    };
    const std::int64_t stride = RowStates::stride_of(width);
    q = take(num_rows * kv.head_dim);
    keys = take(kv.head_dim * kKeyTile);
    values = take(kKeyTile * width);
    rows = take(ScaledKvFormat<Kv> ? 4 * kKeyTile * kv.head_dim : 0);
    total = {take(num_rows * stride), stride};
    part = {take(num_rows * stride), stride};
    return used;
  }
};

}  // namespace nanovllm::cpu::detail

#define NANOVLLM_KERNELS "nanovllm/cpu/kernels/attention_tile_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"
#if __has_include("nanovllm/with/eight_bits.hpp")
#define NANOVLLM_KERNELS "nanovllm/with/eight_bits/cpu/attention_byte_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"
#endif
#define NANOVLLM_KERNELS "nanovllm/cpu/kernels/attention_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {
namespace detail {

/// Throws ShapeError unless the sequence's keys are all in blocks that exist.
template <class T, class Kv>
void check_blocks(const char* op, const AttentionProblem<T, Kv>& problem, std::int64_t sequence,
                  std::int64_t kv_len) {
  const std::int64_t room = problem.block_tables.extent(1) * problem.kv.block_size;
  check<ShapeError>(kv_len <= room, op, ": sequence ", sequence, " has ", kv_len,
                    " keys, its block table has room for ", room);
  const BlockId* const table = problem.block_tables.at(sequence);
  for (std::int64_t i = 0; i * problem.kv.block_size < kv_len; ++i) {
    check<ShapeError>(table[i] >= 0 && table[i] < problem.kv.num_blocks, op, ": block ", i,
                      " of sequence ", sequence, " must be in [0, ", problem.kv.num_blocks,
                      "), got ", table[i]);
  }
}

/// Adds a sequence's rows, `queries` a tile.
inline void append_tiles(QueryTile rows, std::int64_t queries, std::vector<QueryTile>& tiles) {
  while (rows.num_queries > 0) {
    QueryTile tile = rows;
    tile.num_queries = std::min(queries, rows.num_queries);
    tiles.push_back(tile);
    rows.first_row += tile.num_queries;
    rows.first_visible += tile.num_queries;
    rows.num_queries -= tile.num_queries;
  }
}

/// Cuts sequences into tiles, the most work first; smaller tiles when threads would go idle.
inline std::vector<QueryTile> plan_tiles(const std::vector<QueryTile>& sequences,
                                         std::int64_t group, std::int64_t kv_heads,
                                         std::int64_t threads) {
  std::vector<QueryTile> tiles;
  for (std::int64_t rows = kMaxItemRows;; rows /= 2) {
    tiles.clear();
    const std::int64_t queries = std::max<std::int64_t>(1, rows / group);
    for (const QueryTile& sequence : sequences) append_tiles(sequence, queries, tiles);
    const auto items = static_cast<std::int64_t>(tiles.size()) * kv_heads;
    if (threads == 1 || items >= 4 * threads || rows <= kMinItemRows) break;
  }
  sort_stably(tiles, [](const QueryTile& a, const QueryTile& b) {
    return a.num_queries * a.visible() > b.num_queries * b.visible();
  });
  return tiles;
}

/// Every segment of every (tile, kv head) pair on its own, then the folds: for few pairs.
template <class T, class Kv>
void attend_by_segment(const AttentionProblem<T, Kv>& problem, const std::vector<QueryTile>& tiles,
                       std::int64_t max_rows, const Context& context) {
  struct Part {
    const QueryTile* tile;
    std::int64_t segment;
  };
  std::vector<Part> parts;
  std::vector<std::int64_t> first_part;
  for (const QueryTile& tile : tiles) {
    first_part.push_back(static_cast<std::int64_t>(parts.size()));
    for (std::int64_t s = 0; s < tile.num_segments(); ++s) parts.push_back({&tile, s});
  }
  const std::int64_t heads = problem.kv.num_kv_heads, width = problem.width();
  const std::int64_t stride = RowStates::stride_of(width);
  const std::int64_t num_parts = static_cast<std::int64_t>(parts.size()) * heads;
  ItemScratch layout;
  const std::int64_t size = layout.assign(nullptr, max_rows, problem.kv, width);
  const std::int64_t states_size = num_parts * max_rows * stride;
  float* const memory = scratch<QueryTile, float>(states_size + size * context.pool->num_threads());
  const auto states = [&](std::int64_t part, std::int64_t head) {
    return RowStates{memory + (part * heads + head) * max_rows * stride, stride};
  };

  const auto attend = NANOVLLM_PICK(context.isa, attend_part<T, Kv>);
  context.pool->parallel_for(num_parts, 1, [&](std::int64_t i, std::int64_t, int thread) {
    ItemScratch mine;
    mine.assign(memory + states_size + thread * size, max_rows, problem.kv, width);
    mine.total = states(i / heads, i % heads);
    const Part& part = parts[static_cast<std::size_t>(i / heads)];
    attend(problem, *part.tile, i % heads, part.segment, mine);
  });

  const auto fold = NANOVLLM_PICK(context.isa, fold_parts<T, Kv>);
  const auto num_items = static_cast<std::int64_t>(tiles.size()) * heads;
  context.pool->parallel_for(num_items, 1, [&](std::int64_t i, std::int64_t, int) {
    const auto tile = static_cast<std::size_t>(i / heads);
    fold(problem, tiles[tile], i % heads, states(first_part[tile], i % heads),
         heads * max_rows * stride);
  });
}

/// Attention of whole sequences, given by their query rows. Both ops end here.
template <class T, class Kv>
void attend(const AttentionProblem<T, Kv>& problem, const std::vector<QueryTile>& sequences,
            const Context& context) {
  const std::int64_t heads = problem.kv.num_kv_heads, threads = context.pool->num_threads();
  const std::vector<QueryTile> tiles = plan_tiles(sequences, problem.group(), heads, threads);
  std::int64_t max_rows = 0, max_segments = 0;
  for (const QueryTile& tile : tiles) {
    max_rows = std::max(max_rows, tile.num_queries * problem.group());
    max_segments = std::max(max_segments, tile.num_segments());
  }
  const auto num_items = static_cast<std::int64_t>(tiles.size()) * heads;
  if (threads > 1 && num_items < 4 * threads && max_segments > 1 && max_rows <= kMinItemRows) {
    return attend_by_segment(problem, tiles, max_rows, context);
  }
  ItemScratch layout;
  const std::int64_t size = layout.assign(nullptr, max_rows, problem.kv, problem.width());
  float* const memory = scratch<QueryTile, float>(size * threads);
  const auto attend = NANOVLLM_PICK(context.isa, attend_item<T, Kv>);
  context.pool->parallel_for(num_items, 1, [&](std::int64_t i, std::int64_t, int thread) {
    ItemScratch mine;
    mine.assign(memory + thread * size, max_rows, problem.kv, problem.width());
    attend(problem, tiles[static_cast<std::size_t>(i / heads)], i % heads, mine);
  });
}

NANOVLLM_COMPILED_TEMPLATE(void attend(const AttentionProblem<float, float>&,
                                       const std::vector<QueryTile>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void attend(const AttentionProblem<bf16, bf16>&,
                                       const std::vector<QueryTile>&, const Context&))

}  // namespace detail

/// See ops/attention.hpp. Reads all keys and values from the cache. Throws ShapeError when the
/// operands do not fit together or a needed block does not exist.
template <Element T, KvFormat Kv, class Heads>
void varlen_attention(const VarlenAttentionArgs<T, Kv, Heads>& args, const Context& context) {
  constexpr auto kOp = "varlen_attention";
  validate(args);
  const detail::AttentionProblem<T, Kv> problem{args.q, args.kv, args.block_tables, args.scale,
                                                args.out};
  const std::int64_t num_seqs = args.query_starts.extent(0) - 1, n = args.q.extent(0);
  const std::int32_t* const starts = args.query_starts.data;
  check<ShapeError>(starts[0] == 0 && starts[num_seqs] == n, kOp,
                    ": 'query_starts' must run from 0 to ", n, ", got ", starts[0], " to ",
                    starts[num_seqs]);
  std::vector<detail::QueryTile> sequences;
  for (std::int64_t s = 0; s < num_seqs; ++s) {
    const std::int64_t q_len = std::int64_t{starts[s + 1]} - starts[s],
                       kv_len = args.kv_lens.data[s];
    check<ShapeError>(q_len >= 0, kOp, ": 'query_starts' must ascend, got ", starts[s], " then ",
                      starts[s + 1]);
    check<ShapeError>(kv_len >= q_len, kOp, ": sequence ", s, " has ", q_len, " queries but only ",
                      kv_len, " keys");
    detail::check_blocks(kOp, problem, s, q_len == 0 ? 0 : kv_len);
    if (q_len > 0) sequences.push_back({s, starts[s], q_len, kv_len - q_len + 1});
  }
  if (!args.q.empty()) detail::attend(problem, sequences, context);
}

template <Element T, KvFormat Kv, class Heads>
void run_op(const VarlenAttentionArgs<T, Kv, Heads>& args, Context& context) {
  varlen_attention(args, context);
}

/// See ops/attention.hpp. Throws ShapeError when the operands do not fit together or a needed block
/// does not exist.
template <Element T, KvFormat Kv, class Heads>
void decode_attention(const DecodeAttentionArgs<T, Kv, Heads>& args, const Context& context) {
  constexpr auto kOp = "decode_attention";
  validate(args);
  const detail::AttentionProblem<T, Kv> problem{args.q, args.kv, args.block_tables, args.scale,
                                                args.out};
  if (args.q.empty()) return;
  std::vector<detail::QueryTile> sequences;
  for (std::int64_t s = 0; s < args.q.extent(0); ++s) {
    const std::int64_t kv_len = args.kv_lens.data[s];
    check<ShapeError>(kv_len >= 0, kOp, ": sequence ", s, " has a negative number of keys, ",
                      kv_len);
    detail::check_blocks(kOp, problem, s, kv_len);
    if (kv_len > 0) {
      sequences.push_back({s, s, 1, kv_len});
    } else {
      for (std::int64_t h = 0; h < args.q.extent(1); ++h) {
        std::fill_n(args.out.at(s, h), args.q.extent(2), T(0.f));
      }
    }
  }
  detail::attend(problem, sequences, context);
}

template <Element T, KvFormat Kv, class Heads>
void run_op(const DecodeAttentionArgs<T, Kv, Heads>& args, Context& context) {
  decode_attention(args, context);
}

/// Every call divides its work itself.
inline void run_op(const PlanAttentionArgs&, Context&) {}

}  // namespace nanovllm::cpu
