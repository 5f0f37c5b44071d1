#include "nanovllm/cpu/kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "catch.hpp"
#include "cpu/op_test.hpp"

using nanovllm::bf16;
using nanovllm::BlockId;
using nanovllm::half;
using nanovllm::ShapeError;
using nanovllm::cpu::Context;
using nanovllm::cpu::Isa;
using nanovllm::cpu::ThreadPool;
using nanovllm::test::available_isas;
using nanovllm::test::kUnit;

namespace {

/// Rounding of one float32 operation.
constexpr double kEps = 0x1p-24;

template <class T>
std::vector<T> random_values(std::size_t size, std::uint32_t seed, float deviation = 1.f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.f, deviation);
  std::vector<T> out(size);
  for (T& x : out) x = T(normal(random));
  return out;
}

template <class T>
T nan() {
  return T(std::numeric_limits<float>::quiet_NaN());
}

template <class T>
std::vector<T> poisoned(std::size_t size) {
  return std::vector<T>(size, nan<T>());
}

/// Equal as memory, so that NaNs may be equal and zeros of different sign are not.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// The largest |x - expected| / bound; above 1 is a failure and NaN counts as infinite.
class Worst {
 public:
  void add(double x, double expected, double bound) {
    const double error = std::abs(x - expected);
    const double ratio = error == 0 ? 0. : error / bound;
    if (!(ratio <= worst_))
      worst_ = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
  }
  [[nodiscard]] double ratio() const { return worst_; }

 private:
  double worst_ = 0;
};

struct Shape {
  std::int64_t heads = 4, kv_heads = 2, head_dim = 40;
  float scale = 0.25f;
};

/// The keys and values of one sequence, [kv_len][kv_heads][head_dim], and its queries, of which
/// there is one for every position, [kv_len][heads][head_dim].
template <class T>
struct Sequence {
  std::int64_t length;
  std::vector<T> q, k, v;

  Sequence(const Shape& shape, std::int64_t kv_len, std::uint32_t seed)
      : length(kv_len),
        q(random_values<T>(static_cast<std::size_t>(kv_len * shape.heads * shape.head_dim), seed)),
        k(random_values<T>(static_cast<std::size_t>(kv_len * shape.kv_heads * shape.head_dim),
                           seed + 1)),
        v(random_values<T>(k.size(), seed + 2)) {}
};

/// Positions [kv_len - q_len, kv_len) of a sequence are queries of one call.
struct Slice {
  std::int64_t sequence, q_len, kv_len;
};

/// The operands of one call. Blocks lie in random order in a pool full of NaN; unused entries of
/// the tables name blocks that do not exist.
template <class T>
struct Call {
  Shape shape;
  std::vector<T> q, k, v, cache, out;
  std::vector<std::int32_t> starts{0}, lens;
  std::vector<BlockId> tables;
  std::int64_t rows = 0, num_blocks = 0, table_width = 0, block_size;

  Call(const Shape& s, const std::vector<Sequence<T>>& sequences, const std::vector<Slice>& slices,
       std::int64_t block, std::uint32_t seed = 7)
      : shape(s), block_size(block) {
    for (const Slice& slice : slices) {
      const std::int64_t needed = nanovllm::ceil_div(slice.kv_len, block);
      num_blocks += needed + 1;
      table_width = std::max(table_width, needed + 2);
      lens.push_back(static_cast<std::int32_t>(slice.kv_len));
    }
    std::vector<BlockId> ids(static_cast<std::size_t>(num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    cache = poisoned<T>(static_cast<std::size_t>(num_blocks * 2 * s.kv_heads * block * s.head_dim));
    tables.assign(slices.size() * static_cast<std::size_t>(table_width), 1 << 30);
    for (std::size_t i = 0; i < slices.size(); ++i) {
      add(sequences[static_cast<std::size_t>(slices[i].sequence)], slices[i], i, ids);
    }
    out = poisoned<T>(q.size());
  }

  void add(const Sequence<T>& sequence, const Slice& slice, std::size_t index,
           std::vector<BlockId>& ids) {
    const std::int64_t kv_row = shape.kv_heads * shape.head_dim,
                       q_row = shape.heads * shape.head_dim;
    BlockId* const table = tables.data() + index * static_cast<std::size_t>(table_width);
    for (std::int64_t p = 0; p < slice.kv_len; ++p) {
      if (p % block_size == 0) {
        table[p / block_size] = ids.back();
        ids.pop_back();
      }
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        const BlockId at = table[p / block_size];
        const std::int64_t from = p * kv_row + h * shape.head_dim,
                           to = p % block_size * shape.head_dim;
        std::copy_n(sequence.k.data() + from, shape.head_dim, view().k(at, h) + to);
        std::copy_n(sequence.v.data() + from, shape.head_dim, view().v(at, h) + to);
      }
    }
    const auto append = [&](std::vector<T>& all, const std::vector<T>& one, std::int64_t width) {
      all.insert(all.end(), one.begin() + (slice.kv_len - slice.q_len) * width,
                 one.begin() + slice.kv_len * width);
    };
    append(q, sequence.q, q_row);
    append(k, sequence.k, kv_row);
    append(v, sequence.v, kv_row);
    rows += slice.q_len;
    starts.push_back(static_cast<std::int32_t>(rows));
  }

  nanovllm::KvView<T> view() {
    return {cache.data(), num_blocks, block_size, shape.kv_heads, shape.head_dim};
  }
  nanovllm::VarlenAttentionArgs<T> varlen() {
    const auto seqs = static_cast<std::int64_t>(lens.size());
    return {{q.data(), {rows, shape.heads, shape.head_dim}},
            {k.data(), {rows, shape.kv_heads, shape.head_dim}},
            {v.data(), {rows, shape.kv_heads, shape.head_dim}},
            view(),
            {starts.data(), {seqs + 1}},
            {lens.data(), {seqs}},
            {tables.data(), {seqs, table_width}},
            true,
            shape.scale,
            {out.data(), {rows, shape.heads, shape.head_dim}}};
  }
  nanovllm::DecodeAttentionArgs<T> decode() {
    const auto seqs = static_cast<std::int64_t>(lens.size());
    return {{q.data(), {rows, shape.heads, shape.head_dim}},
            view(),
            {lens.data(), {seqs}},
            {tables.data(), {seqs, table_width}},
            shape.scale,
            {out.data(), {rows, shape.heads, shape.head_dim}}};
  }

  const std::vector<T>& run_varlen(const Context& context) {
    std::fill(out.begin(), out.end(), nan<T>());
    nanovllm::cpu::varlen_attention(varlen(), context);
    return out;
  }
  const std::vector<T>& run_decode(const Context& context) {
    std::fill(out.begin(), out.end(), nan<T>());
    nanovllm::cpu::decode_attention(decode(), context);
    return out;
  }
};

/// One element of the formula in float64, and what float32 arithmetic may make of it.
struct Expected {
  double value, bound;
};

/// Softmax attention of the query at `position` in float64. The bound: one rounding to T; a score
/// is a chain of d multiply-adds and the scaling, δ ≤ (d + 2) ε · scale · Σ|q||k|, and enters
/// numerator and denominator; exponentials, rescalings, folds and the chain over n keys add (n +
/// 64) ε of Σ p|v|.
template <class T>
std::vector<Expected> attention_in_float64(const Shape& shape, const Sequence<T>& s,
                                           std::int64_t position) {
  const std::int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads, n = position + 1;
  std::vector<Expected> out;
  std::vector<double> p(static_cast<std::size_t>(n));
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    const T* q = s.q.data() + (position * shape.heads + h) * d;
    const auto row = [&](const std::vector<T>& all, std::int64_t j) {
      return all.data() + (j * shape.kv_heads + h / group) * d;
    };
    double largest = -1e300, delta = 0, sum = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      double score = 0, magnitude = 0;
      for (std::int64_t c = 0; c < d; ++c) {
        const double product = double{q[c]} * double{row(s.k, j)[c]};
        score += product;
        magnitude += std::abs(product);
      }
      p[static_cast<std::size_t>(j)] = score * shape.scale;
      largest = std::max(largest, score * shape.scale);
      delta = std::max(delta, static_cast<double>(d + 2) * kEps * shape.scale * magnitude);
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    for (std::int64_t c = 0; c < d; ++c) {
      double value = 0, magnitude = 0;
      for (std::int64_t j = 0; j < n; ++j) {
        const double term = p[static_cast<std::size_t>(j)] / sum * double{row(s.v, j)[c]};
        value += term;
        magnitude += std::abs(term);
      }
      const double relative = 2 * delta + static_cast<double>(n + 64) * kEps;
      out.push_back({value, 1.01 * (kUnit<T> * std::abs(value) + relative * magnitude)});
    }
  }
  return out;
}

template <class T>
std::vector<Expected> expected_rows(const Shape& shape, const std::vector<Sequence<T>>& sequences,
                                    const std::vector<Slice>& slices) {
  std::vector<Expected> out;
  for (const Slice& slice : slices) {
    for (std::int64_t p = slice.kv_len - slice.q_len; p < slice.kv_len; ++p) {
      const auto row =
          attention_in_float64(shape, sequences[static_cast<std::size_t>(slice.sequence)], p);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

template <class T>
double worst_ratio(const std::vector<T>& out, const std::vector<Expected>& expected) {
  REQUIRE(out.size() == expected.size());
  Worst worst;
  for (std::size_t i = 0; i < out.size(); ++i) {
    worst.add(out[i], expected[i].value, expected[i].bound);
  }
  return worst.ratio();
}

/// One sequence per slice.
template <class T>
std::vector<Sequence<T>> sequences_for(const Shape& shape, const std::vector<Slice>& slices) {
  std::vector<Sequence<T>> out;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    out.emplace_back(shape, slices[i].kv_len, static_cast<std::uint32_t>(100 + 3 * i));
  }
  return out;
}

/// Rows [begin, end) of an output.
template <class T>
std::vector<T> rows_of(const Shape& shape, const std::vector<T>& out, std::int64_t begin,
                       std::int64_t end) {
  const std::int64_t width = shape.heads * shape.head_dim;
  return {out.begin() + begin * width, out.begin() + end * width};
}

}  // namespace

TEMPLATE_TEST_CASE("varlen attention agrees with the formula in float64", "[attention]", float,
                   bf16) {
  std::vector<Slice> slices;
  for (std::int64_t q_len : {1, 2, 15, 16, 17, 63, 64, 65, 129}) {
    for (std::int64_t prefix : {0, 1, 15, 16, 17, 255}) {
      slices.push_back({static_cast<std::int64_t>(slices.size()), q_len, q_len + prefix});
    }
  }
  ThreadPool pool(2);
  for (std::int64_t group : {1, 2, 4, 5, 8}) {
    Shape shape;
    shape.kv_heads = group == 1 ? 2 : 1;
    shape.heads = shape.kv_heads * group;
    shape.head_dim = group == 2 ? 128 : 24;
    shape.scale = 1.f / std::sqrt(static_cast<float>(shape.head_dim));
    const auto sequences = sequences_for<TestType>(shape, slices);
    const auto expected = expected_rows(shape, sequences, slices);
    Call<TestType> call(shape, sequences, slices, 16);
    for (Isa isa : available_isas()) {
      INFO(name(isa) << ", group " << group);
      CHECK(worst_ratio(call.run_varlen({&pool, isa}), expected) <= 1);
    }
  }
}

TEMPLATE_TEST_CASE("attention works for any even or odd head size and any element type",
                   "[attention]", float, bf16, half) {
  ThreadPool pool(2);
  const std::vector<Slice> slices{{0, 3, 3}, {1, 1, 40}, {2, 33, 70}};
  for (std::int64_t head_dim : {1, 2, 6, 15, 16, 33, 40, 64, 80, 128, 256}) {
    Shape shape;
    shape.head_dim = head_dim;
    shape.scale = 1.f / std::sqrt(static_cast<float>(head_dim));
    const auto sequences = sequences_for<TestType>(shape, slices);
    const auto expected = expected_rows(shape, sequences, slices);
    Call<TestType> call(shape, sequences, slices, 8);
    for (Isa isa : available_isas()) {
      INFO(name(isa) << ", head_dim " << head_dim);
      CHECK(worst_ratio(call.run_varlen({&pool, isa}), expected) <= 1);
    }
  }
}

TEMPLATE_TEST_CASE("decode attention is the last row of varlen attention, bit for bit",
                   "[attention]", float, bf16) {
  ThreadPool pool(2);
  for (std::int64_t heads : {2, 4, 10, 32}) {
    Shape shape;
    shape.heads = heads;
    shape.head_dim = heads == 4 ? 128 : 40;
    std::vector<Slice> whole, last;
    for (std::int64_t kv_len : {1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 600}) {
      const auto id = static_cast<std::int64_t>(whole.size());
      whole.push_back({id, std::min<std::int64_t>(kv_len, 70), kv_len});
      last.push_back({id, 1, kv_len});
    }
    const auto sequences = sequences_for<TestType>(shape, whole);
    Call<TestType> varlen(shape, sequences, whole, 16), decode(shape, sequences, last, 32, 11);
    for (Isa isa : available_isas()) {
      const Context context{&pool, isa};
      const auto& all = varlen.run_varlen(context);
      const auto& one = decode.run_decode(context);
      for (std::size_t s = 0; s < whole.size(); ++s) {
        INFO(name(isa) << ", heads " << heads << ", kv_len " << whole[s].kv_len);
        const std::int64_t row = varlen.starts[s + 1] - 1, at = static_cast<std::int64_t>(s);
        CHECK(same_bits(rows_of(shape, all, row, row + 1), rows_of(shape, one, at, at + 1)));
      }
    }
  }
}

TEMPLATE_TEST_CASE("a prompt gives the same bits in one piece, in chunks, and beside others",
                   "[attention]", float, bf16) {
  Shape shape;
  shape.head_dim = 64;
  const std::int64_t length = 301;
  std::vector<Sequence<TestType>> sequences;
  for (std::uint32_t seed : {1u, 50u, 90u}) sequences.emplace_back(shape, length, seed);
  ThreadPool pool(2);
  for (Isa isa : available_isas()) {
    const Context context{&pool, isa};
    Call<TestType> whole(shape, sequences, {{0, length, length}}, 16);
    const std::vector<TestType> expected = whole.run_varlen(context);
    for (std::int64_t chunk : {1, 7, 16, 33, 64, 250}) {
      std::vector<TestType> pieces;
      for (std::int64_t end = std::min(chunk, length), begin = 0; begin < length;
           begin = end, end = std::min(end + chunk, length)) {
        Call<TestType> piece(shape, sequences, {{0, end - begin, end}}, 16);
        const auto& out = piece.run_varlen(context);
        pieces.insert(pieces.end(), out.begin(), out.end());
      }
      INFO(name(isa) << ", chunk " << chunk);
      CHECK(same_bits(pieces, expected));
    }
    Call<TestType> among(shape, sequences, {{1, 90, 200}, {0, length, length}, {2, 1, 280}}, 16);
    CHECK(same_bits(rows_of(shape, among.run_varlen(context), 90, 90 + length), expected));
  }
}

TEMPLATE_TEST_CASE("block sizes, block ids and threads do not change a bit", "[attention]", float,
                   bf16) {
  Shape shape;
  shape.head_dim = 80;
  const std::vector<Slice> slices{{0, 1, 700}, {1, 5, 530}, {2, 1, 3}};
  const auto sequences = sequences_for<TestType>(shape, slices);
  for (Isa isa : available_isas()) {
    ThreadPool one(1);
    Call<TestType> reference(shape, sequences, slices, 16);
    const std::vector<TestType> expected = reference.run_varlen({&one, isa});
    for (std::int64_t block_size : {1, 8, 16, 24, 32, 256}) {
      Call<TestType> call(shape, sequences, slices, block_size, 1234);
      for (int threads : {1, 2, 3, 8}) {
        ThreadPool pool(threads);
        INFO(name(isa) << ", block size " << block_size << ", threads " << threads);
        CHECK(same_bits(call.run_varlen({&pool, isa}), expected));
      }
    }
  }
}

TEST_CASE("long contexts, shared out by segment, agree with float64", "[attention]") {
  Shape shape;
  shape.head_dim = 32;
  const std::vector<Slice> slices{{0, 1, 2000}, {1, 2, 769}, {2, 4, 513}};
  const auto sequences = sequences_for<float>(shape, slices);
  const auto expected = expected_rows(shape, sequences, slices);
  Call<float> call(shape, sequences, slices, 16);
  for (int threads : {1, 8}) {
    ThreadPool pool(threads);
    for (Isa isa : available_isas())
      CHECK(worst_ratio(call.run_varlen({&pool, isa}), expected) <= 1);
  }
}

TEMPLATE_TEST_CASE("later keys and values never reach an earlier row, not even as NaN",
                   "[attention]", float, bf16) {
  Shape shape;
  shape.head_dim = 48;
  const std::int64_t length = 100, poisoned_from = 41;
  std::vector<Sequence<TestType>> clean, dirty;
  clean.emplace_back(shape, length, 5);
  dirty = clean;
  const std::int64_t row = shape.kv_heads * shape.head_dim;
  for (std::size_t i = static_cast<std::size_t>(poisoned_from * row); i < dirty[0].k.size(); ++i) {
    dirty[0].k[i] = i % 2 == 0 ? nan<TestType>() : TestType(HUGE_VALF);
    dirty[0].v[i] = i % 3 == 0 ? nan<TestType>() : TestType(-HUGE_VALF);
  }
  ThreadPool pool(2);
  for (Isa isa : available_isas()) {
    Call<TestType> a(shape, clean, {{0, length, length}}, 16),
        b(shape, dirty, {{0, length, length}}, 16);
    const auto& good = a.run_varlen({&pool, isa});
    const auto& bad = b.run_varlen({&pool, isa});
    CHECK(same_bits(rows_of(shape, good, 0, poisoned_from), rows_of(shape, bad, 0, poisoned_from)));
    CHECK(std::isnan(static_cast<float>(bad.back())));
  }
}

TEST_CASE("scores far apart neither overflow nor lose the largest", "[attention]") {
  Shape shape;
  shape.heads = shape.kv_heads = 1;
  shape.head_dim = 16;
  shape.scale = 1.f;
  std::vector<Sequence<float>> sequences;
  sequences.emplace_back(shape, 600, 3);
  for (float& x : sequences[0].q) x *= 300.f;  // scores of some thousands
  const std::vector<Slice> slices{{0, 70, 70}, {0, 40, 600}};
  Call<float> call(shape, sequences, slices, 16);
  ThreadPool pool(1);
  const auto expected = expected_rows(shape, sequences, slices);
  for (Isa isa : available_isas()) CHECK(worst_ratio(call.run_varlen({&pool, isa}), expected) <= 1);
}

TEST_CASE("queries and outputs may be parts of wider rows", "[attention]") {
  Shape shape;
  const std::vector<Slice> slices{{0, 20, 50}};
  const auto sequences = sequences_for<float>(shape, slices);
  Call<float> call(shape, sequences, slices, 16);
  ThreadPool pool(1);
  const std::vector<float> expected = call.run_varlen({&pool});
  const std::int64_t width = shape.heads * shape.head_dim, stride = width + 24;
  auto wide_q = poisoned<float>(static_cast<std::size_t>(20 * stride)), wide_out = wide_q;
  for (std::int64_t i = 0; i < 20; ++i) {
    std::copy_n(call.q.data() + i * width, width, wide_q.data() + i * stride);
  }
  auto args = call.varlen();
  args.q = {wide_q.data(), args.q.extents, {stride, shape.head_dim, 1}};
  args.out = {wide_out.data(), args.out.extents, {stride, shape.head_dim, 1}};
  nanovllm::cpu::varlen_attention(args, {&pool});
  for (std::int64_t i = 0; i < 20; ++i) {
    const float* const row = wide_out.data() + i * stride;
    CHECK(std::equal(row, row + width, expected.data() + i * width));
    CHECK(std::all_of(row + width, row + stride, [](float x) { return std::isnan(x); }));
  }
}

TEST_CASE("padded decode rows yield zeros and empty calls touch nothing", "[attention]") {
  Shape shape;
  const std::vector<Slice> slices{{0, 1, 9}, {1, 1, 20}};
  const auto sequences = sequences_for<bf16>(shape, slices);
  Call<bf16> call(shape, sequences, slices, 16);
  ThreadPool pool(2);
  const std::vector<bf16> full = call.run_decode({&pool});
  call.lens[0] = 0;
  std::fill_n(call.tables.begin(), call.table_width, -1);
  const auto& out = call.run_decode({&pool});
  const auto first = rows_of(shape, out, 0, 1);
  CHECK(std::all_of(first.begin(), first.end(), [](bf16 x) { return x.bits == 0; }));
  CHECK(same_bits(rows_of(shape, out, 1, 2), rows_of(shape, full, 1, 2)));

  Call<bf16> empty(shape, sequences, {}, 16);
  CHECK_NOTHROW(empty.run_varlen({&pool}));
  CHECK_NOTHROW(empty.run_decode({&pool}));

  Call<bf16> with_idle(shape, sequences, {{0, 0, 9}, {1, 1, 20}}, 16);
  CHECK(same_bits(with_idle.run_varlen({&pool}), rows_of(shape, full, 1, 2)));
}

TEST_CASE("attention refuses operands that do not fit together", "[attention]") {
  Shape shape;
  const std::vector<Slice> slices{{0, 2, 40}};
  const auto sequences = sequences_for<float>(shape, slices);
  Call<float> call(shape, sequences, slices, 16);
  ThreadPool pool(1);
  const auto refuses = [&](auto change) {
    auto args = call.varlen();
    change(args);
    CHECK_THROWS_AS(nanovllm::cpu::varlen_attention(args, {&pool}), ShapeError);
  };
  refuses([](auto& args) { args.kv_lens.extents[0] = 2; });
  refuses([](auto& args) { args.q.extents[1] = 3; });
  refuses([](auto& args) { args.k.extents[0] = 1; });
  refuses([](auto& args) { args.out.extents[2] = 1; });
  refuses([](auto& args) { args.block_tables.extents[1] = 2; });  // 40 keys need 3 blocks
  refuses([](auto& args) { args.kv.num_blocks = 0; });
  std::vector<std::int32_t> lens{1}, starts{1, 2};
  refuses([&](auto& args) { args.kv_lens.data = lens.data(); });
  refuses([&](auto& args) { args.query_starts.data = starts.data(); });
  auto decode = call.decode();
  CHECK_THROWS_AS(nanovllm::cpu::decode_attention(decode, {&pool}),
                  ShapeError);  // two rows, one sequence
}
