#include "nanovllm/cuda/attention/simt_attention.cuh"

#include <algorithm>
#include <numeric>

#include "cuda/gpu_matrix.cuh"

namespace nanovllm::test {

namespace {

struct Shape {
  std::int64_t heads, kv_heads, head_dim, block_size;
  float scale = 0.2f;
};

/// Keys, values and queries of one sequence at every position: [length][heads][head_dim].
template <class T>
struct Sequence {
  std::int64_t length;
  GpuMatrix<T> q, k, v;

  Sequence(const Shape& shape, std::int64_t kv_len, std::uint64_t seed)
      : length(kv_len),
        q(GpuMatrix<T>::random(kv_len, shape.heads * shape.head_dim, 3 * seed)),
        k(GpuMatrix<T>::random(kv_len, shape.kv_heads * shape.head_dim, 3 * seed + 1)),
        v(GpuMatrix<T>::random(kv_len, shape.kv_heads * shape.head_dim, 3 * seed + 2)) {}
};

/// Positions [kv_len - q_len, kv_len) of a sequence are the queries of one call.
struct Slice {
  std::int64_t sequence, q_len, kv_len;
};

/// One call. Blocks lie scattered in a pool full of NaN; unused table entries name no block.
template <class T>
struct Call {
  Shape shape;
  std::vector<Slice> slices;
  std::int64_t rows = 0, num_blocks = 0, table_width = 2;
  std::vector<std::int32_t> starts{0}, lens;

  Call(const Shape& s, const std::vector<Slice>& slices_in) : shape(s), slices(slices_in) {
    for (const Slice& slice : slices) {
      rows += slice.q_len;
      starts.push_back(static_cast<std::int32_t>(rows));
      lens.push_back(static_cast<std::int32_t>(slice.kv_len));
      const std::int64_t needed = ceil_div(slice.kv_len, s.block_size);
      num_blocks += needed;
      table_width = std::max(table_width, needed + 1);
    }
  }

  /// Runs it as varlen_attention, or as decode_attention, and returns the rows of `out`.
  GpuMatrix<T> run(std::vector<Sequence<T>>& sequences, Gpu& gpu, bool decode,
                   Placement placement = {}) {
    const std::int64_t width = shape.heads * shape.head_dim, d = shape.head_dim;
    const auto num_seqs = static_cast<std::int64_t>(slices.size());
    GpuMatrix<T> q(rows, width, placement), out(rows, width, placement);
    GpuMatrix<T> cache(num_blocks + 1, 2 * shape.kv_heads * shape.block_size * d);
    GpuArray<BlockId> tables(static_cast<std::size_t>(num_seqs * table_width));
    fill(sequences, q, cache, tables);
    q.upload(), cache.upload(), tables.upload();
    GpuArray<std::int32_t> start_array(starts), len_array(lens);
    const KvView<T> kv{cache.view().data, num_blocks + 1, shape.block_size, shape.kv_heads, d};
    const MatrixView<const BlockId> table_view(tables.data(), {num_seqs, table_width});
    const TensorView<const T, 3> none(nullptr, {rows, shape.kv_heads, d});  // never read
    if (decode) {
      cuda::simt_decode_attention(DecodeAttentionArgs<T>{q.heads(d),
                                                         kv,
                                                         {len_array.data(), {num_seqs}},
                                                         table_view,
                                                         shape.scale,
                                                         out.heads(d)},
                                  gpu.context);
    } else {
      cuda::simt_varlen_attention(VarlenAttentionArgs<T>{q.heads(d),
                                                         none,
                                                         none,
                                                         kv,
                                                         {start_array.data(), {num_seqs + 1}},
                                                         {len_array.data(), {num_seqs}},
                                                         table_view,
                                                         true,
                                                         shape.scale,
                                                         out.heads(d)},
                                  gpu.context);
    }
    gpu.sync();
    out.download();
    REQUIRE(out.surroundings_intact());
    return out;
  }

 private:
  void fill(std::vector<Sequence<T>>& sequences, GpuMatrix<T>& q, GpuMatrix<T>& cache,
            GpuArray<BlockId>& tables) {
    const std::int64_t d = shape.head_dim, size = shape.block_size;
    for (BlockId& id : tables.host) id = 1 << 28;
    std::int64_t next = 0, row = 0;
    for (std::size_t s = 0; s < slices.size(); ++s) {
      Sequence<T>& sequence = sequences[static_cast<std::size_t>(slices[s].sequence)];
      for (std::int64_t p = 0; p < slices[s].kv_len; ++p) {
        BlockId& block = tables.host[s * static_cast<std::size_t>(table_width) +
                                     static_cast<std::size_t>(p / size)];
        // From the last block down, in the order in which they are needed.
        if (p % size == 0) block = static_cast<BlockId>(num_blocks - next++);
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          for (std::int64_t j = 0; j < d; ++j) {
            const std::int64_t at = (h * size + p % size) * d + j;
            cache(block, at) = sequence.k(p, h * d + j);
            cache(block, at + shape.kv_heads * size * d) = sequence.v(p, h * d + j);
          }
        }
      }
      for (std::int64_t i = 0; i < slices[s].q_len; ++i, ++row) {
        for (std::int64_t j = 0; j < shape.heads * d; ++j)
          q(row, j) = sequence.q(slices[s].kv_len - slices[s].q_len + i, j);
      }
    }
  }
};

/// One row in float64. The bound: scores are off by δ, which moves the weights by a factor e^±2δ;
/// sums of weights and of values are float32, and there is one rounding to T.
template <class T>
void check_row(Worst& worst, const Shape& shape, Sequence<T>& sequence, std::int64_t position,
               GpuMatrix<T>& out, std::int64_t row) {
  const std::int64_t d = shape.head_dim;
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    const std::int64_t kv_head = h / (shape.heads / shape.kv_heads);
    std::vector<double> weights;
    double max = -1e300, sum = 0, largest = 0;
    for (std::int64_t p = 0; p <= position; ++p) {
      double score = 0, size = 0;
      for (std::int64_t j = 0; j < d; ++j) {
        const double product = sequence.q.value(position, h * d + j) *
                               sequence.k.value(p, kv_head * d + j) * double{shape.scale};
        score += product, size += std::abs(product);
      }
      weights.push_back(score);
      max = std::max(max, score), largest = std::max(largest, size);
    }
    for (double& w : weights) sum += w = std::exp(w - max);
    const double delta = 0x1p-24 * (static_cast<double>(d) + 4) * largest + 8 * 0x1p-24;
    for (std::int64_t j = 0; j < d; ++j) {
      double expected = 0, size = 0;
      for (std::int64_t p = 0; p <= position; ++p) {
        const double term =
            weights[static_cast<std::size_t>(p)] / sum * sequence.v.value(p, kv_head * d + j);
        expected += term, size += std::abs(term);
      }
      const double tiny = std::is_same_v<T, half> ? 0x1p-24 : 1e-30;
      const double bound = 1.01 * kUnit<T> * std::abs(expected) +
                           (4 * delta + 0x1p-24 * static_cast<double>(position + 64)) * size + tiny;
      worst.add(out.value(row, h * d + j), expected, bound);
    }
  }
}

template <class T>
std::vector<Sequence<T>> make_sequences(const Shape& shape,
                                        const std::vector<std::int64_t>& lengths) {
  std::vector<Sequence<T>> out;
  for (std::size_t i = 0; i < lengths.size(); ++i) out.emplace_back(shape, lengths[i], i + 1);
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("attention on the CUDA cores is the formula, for any shape", "[simt_attention]",
                   float, bf16, half) {
  if (!has_gpu()) return;
  using T = TestType;
  Gpu gpu;
  for (const Shape& shape : {Shape{4, 2, 128, 16}, Shape{5, 1, 64, 5}, Shape{7, 7, 40, 1},
                             Shape{14, 2, 80, 256}, Shape{2, 1, 3, 32}, Shape{16, 1, 256, 7}}) {
    auto sequences = make_sequences<T>(shape, {1, 31, 32, 33, 200, 129});
    Call<T> call(
        shape,
        {{4, 200, 200}, {0, 1, 1}, {1, 7, 31}, {2, 0, 32}, {3, 33, 33}, {5, 2, 129}, {2, 32, 32}});
    for (const Placement& placement : kPlacements) {
      INFO("heads " << shape.heads << "/" << shape.kv_heads << ", head_dim " << shape.head_dim
                    << ", pad " << placement.pad << ", shift " << placement.shift);
      auto out = call.run(sequences, gpu, false, placement);
      Worst worst;
      std::int64_t row = 0;
      for (const Slice& slice : call.slices) {
        for (std::int64_t i = 0; i < slice.q_len; ++i, ++row) {
          check_row(worst, shape, sequences[static_cast<std::size_t>(slice.sequence)],
                    slice.kv_len - slice.q_len + i, out, row);
        }
      }
      REQUIRE(worst.ratio() <= 1);
    }
  }
}

TEMPLATE_TEST_CASE("batched = alone, chunked = whole, decode = varlen, bit for bit",
                   "[simt_attention]", float, bf16) {
  if (!has_gpu()) return;
  using T = TestType;
  Gpu gpu;
  const Shape shape{6, 2, 64, 16}, other_blocks{6, 2, 64, 3};
  auto sequences = make_sequences<T>(shape, {300, 77, 1});
  auto whole = Call<T>(shape, {{0, 300, 300}}).run(sequences, gpu, false);
  auto batched = Call<T>(shape, {{1, 77, 77}, {0, 300, 300}, {2, 1, 1}}).run(sequences, gpu, false);
  REQUIRE(batched.same_rows(whole, 77, 300, 0));
  for (std::int64_t cut : {1, 16, 31, 130, 299}) {
    INFO("cut at " << cut);
    auto first = Call<T>(shape, {{0, cut, cut}}).run(sequences, gpu, false);
    auto second = Call<T>(other_blocks, {{0, 300 - cut, 300}}).run(sequences, gpu, false);
    REQUIRE(first.same_rows(whole, 0, cut, 0));
    REQUIRE(second.same_rows(whole, 0, 300 - cut, cut));
  }
  auto decoded =
      Call<T>(shape, {{0, 1, 300}, {1, 1, 77}, {2, 1, 1}, {0, 1, 33}}).run(sequences, gpu, true);
  REQUIRE(decoded.same_rows(whole, 0, 1, 299));
  REQUIRE(decoded.same_rows(batched, 1, 1, 76));
  REQUIRE(decoded.same_rows(batched, 2, 1, 377));
  REQUIRE(decoded.same_rows(whole, 3, 1, 32));
  for (int repeat = 0; repeat < 5; ++repeat) {
    auto again = Call<T>(shape, {{0, 300, 300}}).run(sequences, gpu, false);
    REQUIRE(again.same_bits(whole));
  }
}

TEST_CASE("a decode row without keys is zero", "[simt_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const Shape shape{4, 2, 64, 16};
  auto sequences = make_sequences<bf16>(shape, {40});
  Call<bf16> call(shape, {{0, 1, 40}, {0, 1, 40}});
  call.lens[0] = 0;
  auto out = call.run(sequences, gpu, true);
  for (std::int64_t j = 0; j < 256; ++j) REQUIRE(out(0, j).bits == 0);
  Worst worst;
  check_row(worst, shape, sequences[0], 39, out, 1);
  REQUIRE(worst.ratio() <= 1);
}

TEST_CASE("attention on the CUDA cores refuses what it cannot do", "[simt_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const Shape wide{1, 1, 264, 16}, uneven{3, 2, 64, 16};
  auto sequences = make_sequences<float>(wide, {1});
  CHECK_THROWS_AS((Call<float>(wide, {{0, 1, 1}}).run(sequences, gpu, true)), ShapeError);
  auto three = make_sequences<float>(uneven, {1});
  CHECK_THROWS_AS((Call<float>(uneven, {{0, 1, 1}}).run(three, gpu, false)), ShapeError);
}

}  // namespace nanovllm::test
