// Attention over caches of eight bits: products against float64, and the law of attention.hpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "catch.hpp"
#include "cpu/op_test.hpp"
#include "nanovllm/cpu/kernels/attention.hpp"
#include "nanovllm/cpu/kernels/kv_store.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"

using namespace nanovllm;
using cpu::Context;
using cpu::Isa;
using cpu::ThreadPool;
using test::available_isas;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  std::int64_t heads = 4, kv_heads = 2, head_dim = 64;
  float scale = 0.125f;
};

/// Queries, keys and values of every position of a sequence, [length][heads][head_dim].
struct Sequence {
  std::int64_t length;
  std::vector<float> q, k, v;

  Sequence(const Shape& shape, std::int64_t size, std::uint32_t seed) : length(size) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(static_cast<std::size_t>(size * shape.heads * shape.head_dim));
    k.resize(static_cast<std::size_t>(size * shape.kv_heads * shape.head_dim));
    v.resize(k.size());
    for (auto* all : {&q, &k, &v}) {
      for (float& x : *all) x = normal(random);
    }
  }
};

/// The positions [length - queries, length) of a sequence in one call.
struct Slice {
  const Sequence* sequence;
  std::int64_t queries, length;
};

/// The operands of one call, in a cache whose other rows are NaN.
template <class Kv>
struct Call {
  Shape shape;
  std::int64_t block_size, rows = 0, table_width = 0;
  std::vector<KvStored<Kv>> memory;
  KvView<Kv> kv;
  std::vector<BlockId> tables;
  std::vector<std::int32_t> starts{0}, lens;
  std::vector<float> q, k, v, out;

  Call(const Shape& s, const std::vector<Slice>& slices, std::int64_t block)
      : shape(s), block_size(block) {
    std::int64_t num_blocks = 0;
    for (const Slice& slice : slices) {
      table_width = std::max(table_width, ceil_div(slice.length, block));
      num_blocks += ceil_div(slice.length, block) + 1;
    }
    kv.num_blocks = num_blocks;
    kv.block_size = block;
    kv.num_kv_heads = s.kv_heads;
    kv.head_dim = s.head_dim;
    if constexpr (FixedScaleKvFormat<Kv>) kv.fixed = {.k = 0.03f, .v = 0.7f};
    memory.resize(static_cast<std::size_t>(num_blocks * kv.block_stride()));
    kv.data = memory.data();
    std::memset(static_cast<void*>(memory.data()), 0xff, memory.size());
    std::vector<BlockId> ids(static_cast<std::size_t>(num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(3));
    tables.assign(slices.size() * static_cast<std::size_t>(table_width), 1 << 30);
    for (std::size_t i = 0; i < slices.size(); ++i) add(slices[i], i, ids);
    out.resize(q.size());
  }

  void add(const Slice& slice, std::size_t index, std::vector<BlockId>& ids) {
    BlockId* const table = tables.data() + index * static_cast<std::size_t>(table_width);
    for (std::int64_t p = 0; p < slice.length; ++p) {
      if (p % block_size == 0) {
        table[p / block_size] = ids.back();
        ids.pop_back();
      }
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        const std::int64_t from = (p * shape.kv_heads + h) * shape.head_dim;
        const BlockId at = table[p / block_size];
        cpu::detail::store_row(kv, slice.sequence->k.data() + from, at, h, p % block_size);
        cpu::detail::store_row(kv, slice.sequence->v.data() + from, at, shape.kv_heads + h,
                               p % block_size);
      }
    }
    const auto append = [&](std::vector<float>& all, const std::vector<float>& one,
                            std::int64_t heads) {
      const std::int64_t width = heads * shape.head_dim;
      all.insert(all.end(), one.begin() + (slice.length - slice.queries) * width,
                 one.begin() + slice.length * width);
    };
    append(q, slice.sequence->q, shape.heads);
    append(k, slice.sequence->k, shape.kv_heads);
    append(v, slice.sequence->v, shape.kv_heads);
    rows += slice.queries;
    starts.push_back(static_cast<std::int32_t>(rows));
    lens.push_back(static_cast<std::int32_t>(slice.length));
  }

  const std::vector<float>& run(const Context& context, bool as_decode = false) {
    const auto n = static_cast<std::int64_t>(lens.size());
    const TensorView<const float, 3> queries{q.data(), {rows, shape.heads, shape.head_dim}};
    const TensorView<float, 3> result{out.data(), {rows, shape.heads, shape.head_dim}};
    std::fill(out.begin(), out.end(), 777.f);
    if (as_decode) {
      cpu::decode_attention(
          DecodeAttentionArgs<float, Kv>{.q = queries,
                                         .kv = kv,
                                         .kv_lens = {lens.data(), {n}},
                                         .block_tables = {tables.data(), {n, table_width}},
                                         .scale = shape.scale,
                                         .out = result},
          context);
    } else {
      cpu::varlen_attention(
          VarlenAttentionArgs<float, Kv>{.q = queries,
                                         .k = {k.data(), {rows, shape.kv_heads, shape.head_dim}},
                                         .v = {v.data(), {rows, shape.kv_heads, shape.head_dim}},
                                         .kv = kv,
                                         .query_starts = {starts.data(), {n + 1}},
                                         .kv_lens = {lens.data(), {n}},
                                         .block_tables = {tables.data(), {n, table_width}},
                                         .scale = shape.scale,
                                         .out = result},
          context);
    }
    return out;
  }

  /// Stored · scale in float64, of the key or value (`head` + kv_heads) at a position.
  [[nodiscard]] std::vector<double> row(std::size_t sequence, std::int64_t head,
                                        std::int64_t position) const {
    const BlockId block = tables[sequence * static_cast<std::size_t>(table_width) +
                                 static_cast<std::size_t>(position / block_size)];
    KvStored<Kv>* const tile = kv.k(block, head);
    std::vector<double> all;
    for (std::int64_t c = 0; c < shape.head_dim; ++c) {
      all.push_back(double{static_cast<float>(tile[position % block_size * shape.head_dim + c])} *
                    double{kv.scales(tile)[position % block_size]});
    }
    return all;
  }
};

/// The largest |out - float64| over what float32 may make of it (see attention_test.cpp; the scales
/// add two roundings): at most 1.
template <class Kv>
double worst_ratio(const Call<Kv>& call, const std::vector<Slice>& slices) {
  constexpr double kEps = 0x1p-24;
  const Shape& shape = call.shape;
  const std::int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads;
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    std::vector<std::vector<double>> rows;  // [position][key heads, then value heads]
    for (std::int64_t p = 0; p < slices[s].length; ++p) {
      for (std::int64_t h = 0; h < 2 * shape.kv_heads; ++h) rows.push_back(call.row(s, h, p));
    }
    const auto row = [&](std::int64_t position, std::int64_t head) -> const std::vector<double>& {
      return rows[static_cast<std::size_t>(position * 2 * shape.kv_heads + head)];
    };
    for (std::int64_t i = slices[s].length - slices[s].queries; i < slices[s].length; ++i) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const float* const q = slices[s].sequence->q.data() + (i * shape.heads + h) * d;
        std::vector<double> p;
        double largest = -1e300, delta = 0, sum = 0;
        for (std::int64_t j = 0; j <= i; ++j) {
          double score = 0, magnitude = 0;
          for (std::int64_t c = 0; c < d; ++c) {
            const double product = double{q[c]} * row(j, h / group)[static_cast<std::size_t>(c)];
            score += product;
            magnitude += std::abs(product);
          }
          p.push_back(score * shape.scale);
          largest = std::max(largest, p.back());
          delta = std::max(delta, static_cast<double>(d + 4) * kEps * shape.scale * magnitude);
        }
        for (double& x : p) sum += x = std::exp(x - largest);
        for (std::int64_t c = 0; c < d; ++c) {
          double value = 0, magnitude = 0;
          for (std::int64_t j = 0; j <= i; ++j) {
            const double term = p[static_cast<std::size_t>(j)] / sum *
                                row(j, shape.kv_heads + h / group)[static_cast<std::size_t>(c)];
            value += term;
            magnitude += std::abs(term);
          }
          const double bound =
              1.01 * (kEps * std::abs(value) +
                      (2 * delta + static_cast<double>(i + 67) * kEps) * magnitude);
          const double error = std::abs(call.out[at++] - value);
          const double ratio = error == 0 ? 0. : error / bound;
          if (!(ratio <= worst)) worst = std::isnan(ratio) ? 1e300 : ratio;
        }
      }
    }
  }
  REQUIRE(at == call.out.size());
  return worst;
}

std::vector<float> last_rows(const std::vector<float>& out, std::int64_t count,
                             const Shape& shape) {
  return {out.end() - count * shape.heads * shape.head_dim, out.end()};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("attention over eight bits agrees with the formula in float64", "[attention]",
                   Int8Kv, Fp8Kv, StaticFp8Kv) {
  ThreadPool pool(2);
  for (std::int64_t group : {1, 2, 5, 8}) {
    for (std::int64_t head_dim : {20, 80, 128}) {
      const Shape shape{.heads = 2 * group,
                        .head_dim = head_dim,
                        .scale = 1.f / std::sqrt(static_cast<float>(head_dim))};
      const Sequence a(shape, 70, 1), b(shape, 33, 2), c(shape, 300, 3);
      const std::vector<Slice> prompts{{&a, 70, 70}, {&b, 1, 33}, {&c, 3, 260}, {&b, 1, 1}};
      const std::vector<Slice> decodes{{&a, 1, 64}, {&b, 1, 5}, {&c, 1, 300}};
      Call<TestType> varlen(shape, prompts, 16), decode(shape, decodes, 5);
      for (Isa isa : available_isas()) {
        CAPTURE(group, head_dim, name(isa));
        varlen.run({&pool, isa});
        CHECK(worst_ratio(varlen, prompts) <= 1);
        decode.run({&pool, isa}, true);
        CHECK(worst_ratio(decode, decodes) <= 1);
      }
    }
  }
}

TEMPLATE_TEST_CASE("attention over eight bits: op, chunk, batch, blocks and threads change no bit",
                   "[attention]", Int8Kv, Fp8Kv, StaticFp8Kv) {
  for (std::int64_t heads : {2, 4, 10, 16}) {
    const Shape shape{.heads = heads, .head_dim = heads == 4 ? 128 : 48};
    const Sequence a(shape, 320, 5), b(shape, 90, 6);
    for (Isa isa : available_isas()) {
      ThreadPool one(1), three(3);
      Call<TestType> whole(shape, {{&a, 100, 320}}, 16);
      const std::vector<float> expected = whole.run({&one, isa});
      for (std::int64_t queries : {1, 2, 7, 33}) {
        CAPTURE(heads, name(isa), queries);
        const std::vector<float> last = last_rows(expected, queries, shape);
        Call<TestType> part(shape, {{&a, queries, 320}}, 32);
        CHECK(same_bits(part.run({&one, isa}), last));
        CHECK(same_bits(part.run({&three, isa}), last));
        Call<TestType> among(shape, {{&b, 90, 90}, {&b, 1, 7}, {&a, queries, 320}}, 7);
        CHECK(same_bits(last_rows(among.run({&three, isa}), queries, shape), last));
      }
      Call<TestType> decode(shape, {{&b, 1, 90}, {&a, 1, 320}}, 24);
      for (ThreadPool* pool : {&one, &three}) {
        CHECK(same_bits(last_rows(decode.run({pool, isa}, true), 1, shape),
                        last_rows(expected, 1, shape)));
      }
    }
  }
}

TEMPLATE_TEST_CASE("rows of eight bits that are NaN reach those that see them alone", "[attention]",
                   Int8Kv, Fp8Kv, StaticFp8Kv) {
  const Shape shape;
  constexpr std::int64_t kLength = 100, kFrom = 41;
  const Sequence clean(shape, kLength, 5);
  Sequence dirty = clean;
  const std::size_t width = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
  for (std::size_t i = kFrom * width; i < dirty.k.size(); i += 5) {
    dirty.k[i] = dirty.v[i] = kNaN;
  }
  ThreadPool pool(2);
  for (Isa isa : available_isas()) {
    CAPTURE(name(isa));
    Call<TestType> good(shape, {{&clean, kLength, kLength}}, 16),
        bad(shape, {{&dirty, kLength, kLength}}, 16);
    const std::vector<float> a = good.run({&pool, isa}), b = bad.run({&pool, isa});
    const std::size_t seen = kFrom * static_cast<std::size_t>(shape.heads * shape.head_dim);
    CHECK(std::memcmp(a.data(), b.data(), seen * sizeof(float)) == 0);
    CHECK(std::all_of(b.begin() + static_cast<std::ptrdiff_t>(seen), b.end(),
                      [](float x) { return std::isnan(x); }));
  }
}

TEMPLATE_TEST_CASE("the largest rows of eight bits do not overflow", "[attention]", Int8Kv, Fp8Kv) {
  const Shape shape{.heads = 2, .kv_heads = 1, .head_dim = 16, .scale = 1e-37f};
  Sequence huge(shape, 1, 8);
  for (auto* all : {&huge.k, &huge.v}) {
    for (float& x : *all) x = std::clamp(x, -1.f, 1.f) * 3.4e38f;
  }
  const std::vector<Slice> slices{{&huge, 1, 1}};
  ThreadPool pool(1);
  for (Isa isa : available_isas()) {
    CAPTURE(name(isa));
    Call<TestType> call(shape, slices, 16);
    call.run({&pool, isa});
    CHECK(worst_ratio(call, slices) <= 1);
  }
}
