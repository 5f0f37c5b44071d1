#pragma once
/// Cases of `varlen_attention` and `decode_attention`, planned as a step plans them.

#include <algorithm>
#include <numeric>

#include "nanovllm/core/math.hpp"
#include "ops/rig.hpp"

namespace nanovllm::test::ops {

struct AttentionShape {
  std::int64_t heads, kv_heads, head_dim, block_size;
  float scale = 0.2f;
};

/// The last q_len of kv_len positions are queries.
struct AttentionSequence {
  std::int64_t q_len, kv_len;
};

/// The operands of one step: `decode` rows have no row in k and v. Blocks lie in reverse order in a
/// pool of NaN, and unused entries of the tables name no block.
template <class B, class T>
struct AttentionStep {
  AttentionShape shape;
  std::vector<AttentionSequence> sequences;
  std::int64_t rows = 0, num_blocks = 1, table_width = 1;
  std::vector<std::int32_t> starts{0}, lens;
  std::vector<std::vector<double>> keys, vals;  ///< by sequence: [kv_len][kv_heads][head_dim]

  AttentionStep(const AttentionShape& s, const std::vector<AttentionSequence>& list)
      : shape(s), sequences(list) {
    for (const AttentionSequence& sequence : list) {
      rows += sequence.q_len;
      starts.push_back(static_cast<std::int32_t>(rows));
      lens.push_back(static_cast<std::int32_t>(sequence.kv_len));
      num_blocks += ceil_div(sequence.kv_len, s.block_size);
      table_width = std::max(table_width, ceil_div(sequence.kv_len, s.block_size) + 1);
    }
  }

  /// Attention of all rows, [rows][heads][head_dim], compared with the formula.
  void check(B& backend, bool decode) {
    const std::int64_t d = shape.head_dim, kv_width = shape.kv_heads * d;
    const auto n = static_cast<std::int64_t>(sequences.size());
    auto q = Array<B, T>::random(backend, rows * shape.heads * d, 1);
    Array<B, T> k(backend, rows * kv_width), v(backend, rows * kv_width);
    Array<B, T> out(backend, rows * shape.heads * d);
    Array<B, T> cache(backend, num_blocks * 2 * shape.block_size * kv_width);
    Array<B, BlockId> tables(
        backend, std::vector<BlockId>(static_cast<std::size_t>(n * table_width), 1 << 28));
    Array<B, std::int32_t> start_array(backend, starts), len_array(backend, lens);
    fill(backend, cache, tables, k, v);
    const KvView<T> kv{cache.data(), num_blocks, shape.block_size, shape.kv_heads, d};
    backend.reserve({.limits = {.max_num_batched_tokens = rows, .max_num_seqs = n},
                     .vocab_size = 64,
                     .num_heads = shape.heads,
                     .num_kv_heads = shape.kv_heads,
                     .head_dim = d});
    backend.run(PlanAttentionArgs{.num_decodes = decode ? n : 0,
                                  .num_tokens = rows,
                                  .query_starts = start_array.vector(),
                                  .kv_lens = len_array.vector(),
                                  .num_heads = shape.heads,
                                  .num_kv_heads = shape.kv_heads,
                                  .head_dim = d});
    const bool has_prefix = std::any_of(sequences.begin(), sequences.end(),
                                        [](const auto& s) { return s.kv_len > s.q_len; });
    if (decode) {
      backend.run(DecodeAttentionArgs<T>{q.heads(shape.heads, d), kv, len_array.vector(),
                                         tables.matrix(table_width), shape.scale,
                                         out.heads(shape.heads, d)});
    } else {
      backend.run(VarlenAttentionArgs<T>{q.heads(shape.heads, d), k.heads(shape.kv_heads, d),
                                         v.heads(shape.kv_heads, d), kv, start_array.vector(),
                                         len_array.vector(), tables.matrix(table_width), has_prefix,
                                         shape.scale, out.heads(shape.heads, d)});
    }
    out.download();
    Worst worst;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const std::int64_t q_len = sequences[s].q_len, kv_len = sequences[s].kv_len;
      for (std::int64_t i = 0; i < q_len; ++i)
        check_row(worst, q, out, starts[s] + i, s, kv_len - q_len + i + 1);
    }
    REQUIRE(worst.ratio() <= 1);
  }

 private:
  void fill(B& backend, Array<B, T>& cache, Array<B, BlockId>& tables, Array<B, T>& k,
            Array<B, T>& v) {
    const std::int64_t d = shape.head_dim, size = shape.block_size, width = shape.kv_heads * d;
    std::int64_t next = num_blocks;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto [q_len, kv_len] = sequences[s];
      const auto key = Array<B, T>::random(backend, kv_len * width, 100 + s);
      const auto value = Array<B, T>::random(backend, kv_len * width, 200 + s);
      keys.emplace_back(), vals.emplace_back();
      for (std::int64_t i = 0; i < kv_len * width; ++i) {
        const std::int64_t p = i / width, h = i % width / d, j = i % d;
        BlockId& block = tables.host[s * static_cast<std::size_t>(table_width) +
                                     static_cast<std::size_t>(p / size)];
        if (i % (size * width) == 0) block = static_cast<BlockId>(--next);
        const std::int64_t tile = block * 2 * shape.kv_heads + h;
        const auto at = static_cast<std::size_t>((tile * size + p % size) * d + j);
        const auto from = static_cast<std::size_t>(i);
        cache.host[at] = key.host[from];
        cache.host[at + static_cast<std::size_t>(size * width)] = value.host[from];
        keys.back().push_back(key[i]), vals.back().push_back(value[i]);
        if (p < kv_len - q_len) continue;
        const std::int64_t row = starts[s] + p - (kv_len - q_len);
        k.host[static_cast<std::size_t>(row * width + h * d + j)] = key.host[from];
        v.host[static_cast<std::size_t>(row * width + h * d + j)] = value.host[from];
      }
    }
    cache.upload(), tables.upload(), k.upload(), v.upload();
  }

  /// The bound: weights may be rounded to T before the product with V, scores are off by δ, which
  /// moves weights by e^±2δ, sums are float32, and there is one rounding to T at the end.
  void check_row(Worst& worst, const Array<B, T>& q, const Array<B, T>& out, std::int64_t row,
                 std::size_t s, std::int64_t visible) {
    const std::int64_t d = shape.head_dim, width = shape.kv_heads * d;
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::int64_t first = h / (shape.heads / shape.kv_heads) * d;
      const std::int64_t q_at = (row * shape.heads + h) * d;
      std::vector<double> weights;
      double max = -1e300, sum = 0, largest = 0;
      for (std::int64_t p = 0; p < visible; ++p) {
        double score = 0, size = 0;
        for (std::int64_t j = 0; j < d; ++j) {
          const double product = q[q_at + j] *
                                 keys[s][static_cast<std::size_t>(p * width + first + j)] *
                                 double{shape.scale};
          score += product, size += std::abs(product);
        }
        weights.push_back(score);
        max = std::max(max, score), largest = std::max(largest, size);
      }
      for (double& w : weights) sum += w = std::exp(w - max);
      const double delta = kFloatUnit * (static_cast<double>(d) + 4) * largest;
      for (std::int64_t j = 0; j < d; ++j) {
        double expected = 0, size = 0;
        for (std::int64_t p = 0; p < visible; ++p) {
          const double term = weights[static_cast<std::size_t>(p)] / sum *
                              vals[s][static_cast<std::size_t>(p * width + first + j)];
          expected += term, size += std::abs(term);
        }
        const double slack =
            2 * kUnit<T> + 4 * delta + kFloatUnit * static_cast<double>(visible + 64) + 0x1p-20;
        const double bound = 1.01 * kUnit<T> * std::abs(expected) +
                             (std::is_same_v<T, float> ? slack - 0x1p-20 : slack) * size;
        worst.add(out[q_at + j], expected, bound + kTiny<T>);
      }
    }
  }
};

/// The shapes that tensor-core kernels take, and some that they do not.
inline std::vector<AttentionShape> attention_shapes() {
  return {{4, 2, 128, 16}, {8, 2, 64, 32}, {5, 1, 128, 64}, {3, 3, 40, 5}};
}

template <class T, class B>
void varlen_attention_cases(B& backend) {
  for (const AttentionShape& shape : attention_shapes()) {
    INFO("heads " << shape.heads << "/" << shape.kv_heads << ", head_dim " << shape.head_dim
                  << ", block size " << shape.block_size);
    using Step = AttentionStep<B, T>;
    Step(shape, {{1, 1}, {65, 65}, {130, 130}}).check(backend, false);
    Step(shape, {{7, 31}, {1, 1}, {33, 161}, {2, 200}}).check(backend, false);
  }
}

/// One of the sequences is padding.
template <class T, class B>
void decode_attention_cases(B& backend) {
  for (const AttentionShape& shape : attention_shapes()) {
    INFO("heads " << shape.heads << "/" << shape.kv_heads << ", head_dim " << shape.head_dim
                  << ", block size " << shape.block_size);
    AttentionStep<B, T>(shape, {{1, 1}, {1, 64}, {1, 0}, {1, 333}, {1, 17}}).check(backend, true);
  }
}

}  // namespace nanovllm::test::ops
