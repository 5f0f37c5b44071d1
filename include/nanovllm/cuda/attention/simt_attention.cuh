#pragma once
/// Attention on the CUDA cores: any element type, any format of the cache, any head_dim up to 256,
/// any group and block size.
///
///   out = softmax(scale · q · Kᵀ) · V   for one query row and head, keys read from the paged cache
///
/// Operands as in ops/attention.hpp; q and out of any stride and alignment, keys and values read 16
/// bytes at a time where head_dim and the cache's address allow it. It serves float32 (whose laws
/// it carries), the shapes that the tensor-core kernels do not take, and as their oracle.
///
/// One block of four warps computes one row of one head. Keys are cut into tiles of 32 at absolute
/// positions; warp w takes tiles w, w + 4, w + 8, … in ascending order with its own running maximum
/// and sums, and the four are merged in order at the end. A lane computes the score of one key, its
/// products summed along head_dim in order, and then owns every 32nd column of the output. All of
/// that is float32; what the cache keeps with scales is multiplied by them first. Nothing in it
/// depends on anything but the row's query and the keys it sees:
///
///   a row's bits depend neither on the op, the batch, the chunk, the block size nor the block ids.
///
/// Bytes moved: every (row, head) reads its keys and values, so a group shares them only through
/// the caches.
/// Source: Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding", 2023.
/// Measured: not by itself; 640 tokens of 0.6B in float32, whose attention it is, take 8.2 s, in
/// bf16 2.1 s (cuda_parity.json).

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm::cuda {

struct SimtAttentionTraits {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = 4;  ///< a multiprocessor: up to 128 registers, no spills
  static constexpr int kMaxHeadDim = 256;
  static constexpr int kColumns = kMaxHeadDim / 32;  ///< columns of the output that a lane owns
};

/// The operands common to both ops.
template <class T, class Kv>
struct SimtAttentionProblem {
  TensorView<const T, 3> q;  ///< [n, heads, head_dim]
  KvView<Kv> kv;
  VectorView<const std::int32_t> kv_lens;
  MatrixView<const BlockId> block_tables;
  float scale;
  TensorView<T, 3> out;  ///< [n, heads, head_dim]
  bool vectors;          ///< rows of the cache may be read 16 bytes at a time
};

/// The softmax of the tiles that one warp has seen.
struct SimtAttentionState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.f;                                ///< of the weights e^(score - max), of all lanes
  float out[SimtAttentionTraits::kColumns] = {};  ///< weighted sums of columns lane, lane + 32, …
};

namespace detail {

/// A key or a value in the cache.
template <class Kv>
struct SimtRow {
  const KvStored<Kv>* data = nullptr;
  float scale = 1.f;  ///< of formats without scales not looked at

  /// Row `row` of a tile that `KvView::k` or `v` gave.
  __device__ __forceinline__ static SimtRow of(const KvView<Kv>& kv, KvStored<Kv>* tile, int row) {
    const KvStored<Kv>* const data = tile + std::int64_t{row} * kv.head_dim;
    if constexpr (ScaledKvFormat<Kv>) {
      return {data, kv.scales(tile)[row]};
    } else {
      return {data};
    }
  }

  /// The row of lane `lane`.
  __device__ __forceinline__ SimtRow of_lane(int lane) const {
    SimtRow out{reinterpret_cast<const KvStored<Kv>*>(
        __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(data), lane))};
    if constexpr (ScaledKvFormat<Kv>) out.scale = __shfl_sync(0xffffffffu, scale, lane);
    return out;
  }

  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (ScaledKvFormat<Kv>) {
      return __fmul_rn(static_cast<float>(data[i]), scale);
    } else {
      return to_float(data[i]);
    }
  }
};

/// Σ q[i] · key[i] in ascending order.
template <class Kv>
__device__ __forceinline__ float simt_dot(const float* q, const SimtRow<Kv>& key, int head_dim,
                                          bool vectors) {
  float sum = 0.f;
  if constexpr (!ScaledKvFormat<Kv>) {
    if (vectors) {
#pragma unroll 2
      for (int i = 0; i < head_dim; i += kVecSize<Kv>) {
        float k[kVecSize<Kv>];
        unpack<Kv>(load_vector(key.data + i), k);
#pragma unroll
        for (int j = 0; j < kVecSize<Kv>; ++j) sum = __fmaf_rn(q[i + j], k[j], sum);
      }
      return sum;
    }
  }
  for (int i = 0; i < head_dim; ++i) sum = __fmaf_rn(q[i], key[i], sum);
  return sum;
}

/// Adds `weight` (of the key in this lane) times values. `value` is this lane's row of V; only the
/// first `num_keys` lanes have one.
template <class Kv>
__device__ __forceinline__ void simt_add_values(float weight, const SimtRow<Kv>& value,
                                                int num_keys, int head_dim,
                                                SimtAttentionState& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 4
  for (int key = 0; key < num_keys; ++key) {
    const float w = __shfl_sync(0xffffffffu, weight, key);
    const SimtRow<Kv> row = value.of_lane(key);
#pragma unroll
    for (int c = 0; c < SimtAttentionTraits::kColumns; ++c) {
      const int column = lane + 32 * c;
      if (column < head_dim) {
        state.out[c] = __fmaf_rn(w, row[column], state.out[c]);
      }
    }
  }
}

/// The keys of tile [begin, begin + 32) that are below `visible`, at least one.
template <class T, class Kv>
__device__ __forceinline__ void simt_attend_tile(const SimtAttentionProblem<T, Kv>& problem,
                                                 const float* q, const BlockId* table,
                                                 std::int64_t kv_head, int begin, int visible,
                                                 SimtAttentionState& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32, head_dim = problem.kv.head_dim;
  const int position = begin + lane, num_keys = min(32, visible - begin);
  SimtRow<Kv> value;
  float score = -std::numeric_limits<float>::infinity();
  if (lane < num_keys) {
    const auto block_size = static_cast<int>(problem.kv.block_size);
    const BlockId block = table[position / block_size];
    const int row = position % block_size;
    value = SimtRow<Kv>::of(problem.kv, problem.kv.v(block, kv_head), row);
    score = simt_dot(q, SimtRow<Kv>::of(problem.kv, problem.kv.k(block, kv_head), row), head_dim,
                     problem.vectors);
  }
  const float max = fmaxf(state.max, warp_max(score));
  // While every score so far is -inf, weights are relative to 0, so that they are 0 and not NaN.
  const float base = max == -std::numeric_limits<float>::infinity() ? 0.f : max;
  const float shrink = expf(state.max - base), weight = expf(score - base);
  state.max = max;
  state.sum = __fmaf_rn(state.sum, shrink, warp_sum(weight));
#pragma unroll
  for (float& column : state.out) column *= shrink;
  simt_add_values(weight, value, num_keys, head_dim, state);
}

/// Merges the warps' states in order and writes the row; zeros when no key was seen.
template <class T>
__device__ __forceinline__ void simt_merge_and_store(const SimtAttentionState& state, int head_dim,
                                                     T* out) {
  using Traits = SimtAttentionTraits;
  __shared__ float maxima[Traits::kWarps], sums[Traits::kWarps];
  __shared__ float outs[Traits::kWarps][Traits::kMaxHeadDim];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (lane == 0) maxima[warp] = state.max, sums[warp] = state.sum;
#pragma unroll
  for (int c = 0; c < Traits::kColumns; ++c) outs[warp][lane + 32 * c] = state.out[c];
  __syncthreads();
  float max = maxima[0];
  for (int w = 1; w < Traits::kWarps; ++w) max = fmaxf(max, maxima[w]);
  const float base = max == -std::numeric_limits<float>::infinity() ? 0.f : max;
  float factors[Traits::kWarps], sum = 0.f;
#pragma unroll
  for (int w = 0; w < Traits::kWarps; ++w) {
    factors[w] = expf(maxima[w] - base);
    sum = __fmaf_rn(sums[w], factors[w], sum);
  }
  for (int column = thread; column < head_dim; column += Traits::kThreads) {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) {
      total = __fmaf_rn(outs[w][column], factors[w], total);
    }
    out[column] = from_float<T>(sum == 0.f ? 0.f : __fdiv_rn(total, sum));
  }
}

/// Row `row` of head blockIdx.y over the first `visible` keys of `sequence`.
template <class T, class Kv>
__device__ __forceinline__ void simt_attend(const SimtAttentionProblem<T, Kv>& problem,
                                            std::int64_t row, std::int64_t sequence, int visible) {
  using Traits = SimtAttentionTraits;
  __shared__ float q[Traits::kMaxHeadDim];
  const int head = static_cast<int>(blockIdx.y), warp = static_cast<int>(threadIdx.x) / 32;
  const auto head_dim = static_cast<int>(problem.kv.head_dim);
  const T* const from = problem.q.at(row, head);
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += Traits::kThreads) {
    q[i] = __fmul_rn(to_float(from[i]), problem.scale);
  }
  __syncthreads();
  const auto group = static_cast<int>(problem.q.extent(1) / problem.kv.num_kv_heads);
  const BlockId* const table = problem.block_tables.at(sequence);
  SimtAttentionState state;
  for (int begin = 32 * warp; begin < visible; begin += 32 * Traits::kWarps) {
    simt_attend_tile(problem, q, table, head / group, begin, visible, state);
  }
  simt_merge_and_store(state, head_dim, problem.out.at(row, head));
}

/// The last s with starts[s] ≤ row: the sequence of a row, past those without rows.
__device__ __forceinline__ int find_sequence(const std::int32_t* starts, int num_seqs, int row) {
  int low = 0, high = num_seqs;  // starts[low] ≤ row, and starts[high] > row or high = num_seqs
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (starts[middle] <= row ? low : high) = middle;
  }
  return low;
}

template <class T, class Kv>
SimtAttentionProblem<T, Kv> simt_problem(const char* op, const TensorView<const T, 3>& q,
                                         const KvView<Kv>& kv,
                                         const VectorView<const std::int32_t>& kv_lens,
                                         const MatrixView<const BlockId>& block_tables, float scale,
                                         const TensorView<T, 3>& out) {
  check<ShapeError>(kv.head_dim <= SimtAttentionTraits::kMaxHeadDim, op,
                    ": head_dim must be at most ", SimtAttentionTraits::kMaxHeadDim, ", got ",
                    kv.head_dim);
  check<ShapeError>(q.extent(1) <= 65535, op, ": at most 65535 heads, got ", q.extent(1));
  check<ShapeError>(kv.block_size > 0, op, ": block_size must be positive, got ", kv.block_size);
  const bool vectors = kv.head_dim % kVecSize<T> == 0 && is_vector_aligned(kv.data);
  return {q, kv, kv_lens, block_tables, scale, out, vectors};
}

}  // namespace detail

/// Grid (rows, heads).
template <class T, class Kv>
__global__ void __launch_bounds__(SimtAttentionTraits::kThreads, SimtAttentionTraits::kBlocks)
    simt_varlen_attention_kernel(SimtAttentionProblem<T, Kv> problem,
                                 VectorView<const std::int32_t> query_starts) {
  grid_dependency_wait();
  grid_dependency_launch();
  const auto row = static_cast<int>(blockIdx.x);
  const auto num_seqs = static_cast<int>(query_starts.extent(0) - 1);
  const std::int32_t* const starts = query_starts.data;
  const int sequence = detail::find_sequence(starts, num_seqs, row);
  const int after = starts[sequence + 1] - row;  // rows of the sequence from this one on
  // A row that no sequence owns is padding.
  const int visible = after > 0 ? problem.kv_lens.data[sequence] - after + 1 : 0;
  detail::simt_attend(problem, row, sequence, visible);
}

/// Grid (sequences, heads).
template <class T, class Kv>
__global__ void __launch_bounds__(SimtAttentionTraits::kThreads, SimtAttentionTraits::kBlocks)
    simt_decode_attention_kernel(SimtAttentionProblem<T, Kv> problem) {
  grid_dependency_wait();
  grid_dependency_launch();
  const auto row = static_cast<int>(blockIdx.x);
  detail::simt_attend(problem, row, row, problem.kv_lens.data[row]);
}

/// See ops/attention.hpp; every operand in device memory. Throws ShapeError when the operands do
/// not fit together or head_dim exceeds 256. Rows past the last sequence's become zeros.
template <Element T, KvFormat Kv, class Heads>
void simt_varlen_attention(const VarlenAttentionArgs<T, Kv, Heads>& args, const Context& context) {
  validate(args);
  const auto problem = detail::simt_problem("varlen_attention", args.q, args.kv, args.kv_lens,
                                            args.block_tables, args.scale, args.out);
  if (args.q.empty()) return;
  check<ShapeError>(args.query_starts.extent(0) >= 2,
                    "varlen_attention: there are query rows but no sequence");
  const dim3 grid(static_cast<unsigned>(args.q.extent(0)), static_cast<unsigned>(args.q.extent(1)));
  launch(simt_varlen_attention_kernel<T, Kv>,
         {.grid = grid, .block = SimtAttentionTraits::kThreads}, context, problem,
         args.query_starts);
}

/// See ops/attention.hpp; every operand in device memory. Equal, bit for bit, to
/// `simt_varlen_attention` with one query a sequence. Throws ShapeError as that does.
template <Element T, KvFormat Kv, class Heads>
void simt_decode_attention(const DecodeAttentionArgs<T, Kv, Heads>& args, const Context& context) {
  validate(args);
  const auto problem = detail::simt_problem("decode_attention", args.q, args.kv, args.kv_lens,
                                            args.block_tables, args.scale, args.out);
  if (args.q.empty()) return;
  const dim3 grid(static_cast<unsigned>(args.q.extent(0)), static_cast<unsigned>(args.q.extent(1)));
  launch(simt_decode_attention_kernel<T, Kv>,
         {.grid = grid, .block = SimtAttentionTraits::kThreads}, context, problem);
}

}  // namespace nanovllm::cuda
