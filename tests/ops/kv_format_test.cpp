#include "nanovllm/ops/kv_format.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <vector>

#include "catch.hpp"
#include "cpu/op_test.hpp"
#include "nanovllm/cpu/kernels/attention.hpp"
#include "nanovllm/cpu/kernels/kv_store.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/sessions/kv_rows.hpp"
#include "nanovllm/with/tiers/cpu/swap_blocks.hpp"

using namespace nanovllm;

namespace {

struct NoName {
  using Stored = std::int8_t;
  static float store(const float*, std::int64_t, Stored*) { return 1.f; }
  static void load(const Stored*, float, std::int64_t, float*) {}
};

constexpr std::int64_t kLayers = 3, kHeads = 2, kDim = 20, kBlocks = 7;

KvShape int8_shape(std::int64_t block_size) {
  return {.num_layers = kLayers,
          .num_kv_heads = kHeads,
          .head_dim = kDim,
          .block_size = block_size,
          .element_bytes = 1,
          .scale_bytes = 4};
}

template <class F>
using TestPool = KvPool<F, std::vector<KvStored<F>>>;

template <class T>
VectorView<const T> view_of(const std::vector<T>& data) {
  return {data.data(), {static_cast<std::int64_t>(data.size())}};
}

std::vector<float> noise(std::size_t size, std::uint64_t seed) {
  std::vector<float> out(size);
  for (std::size_t i = 0; i < size; ++i) {
    const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    out[i] = static_cast<float>(words[0]) * 0x1p-31f - 1.f;
  }
  return out;
}

/// A sequence whose tokens lie in blocks of a shuffled table, and the same in a cache of floats that
/// holds what the format loads.
struct Cached {
  explicit Cached(std::int64_t block_size, std::int64_t length)
      : pool(int8_shape(block_size), kBlocks * 4),
        loaded(KvShape{.num_layers = kLayers,
                       .num_kv_heads = kHeads,
                       .head_dim = kDim,
                       .block_size = block_size,
                       .element_bytes = 4},
               kBlocks * 4),
        k(noise(static_cast<std::size_t>(length * kHeads * kDim), 1)),
        v(noise(k.size(), 2)) {
    for (std::int64_t i = 0; i * block_size < length; ++i)
      table.push_back(static_cast<BlockId>((5 * i + 3) % (kBlocks * 4)));
    for (std::int64_t i = 0; i < length; ++i)
      slots.push_back(table[static_cast<std::size_t>(i / block_size)] * block_size +
                      i % block_size);
    const KvView<Int8Kv> view = pool.layer(1);
    cpu::kv_store(
        KvStoreArgs<float, Int8Kv>{.k = rows(k), .v = rows(v), .slots = view_of(slots), .kv = view},
        context);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      for (std::int64_t head = 0; head < kHeads; ++head) {
        load(view, view.k(block_of(i), head), i, loaded.layer(1).k(block_of(i), head));
        load(view, view.v(block_of(i), head), i, loaded.layer(1).v(block_of(i), head));
      }
    }
  }

  [[nodiscard]] BlockId block_of(std::size_t i) const {
    return static_cast<BlockId>(slots[i] / pool.shape().block_size);
  }
  [[nodiscard]] TensorView<float, 3> rows(std::vector<float>& data) const {
    return {data.data(), {static_cast<std::int64_t>(slots.size()), kHeads, kDim}};
  }
  void load(const KvView<Int8Kv>& view, std::int8_t* tile, std::size_t i, float* to) const {
    const std::int64_t slot = slots[i] % view.block_size;
    Int8Kv::load(tile + slot * kDim, view.scales(tile)[slot], kDim, to + slot * kDim);
  }

  cpu::ThreadPool threads{2};
  cpu::Context context{&threads, cpu::best_isa()};
  TestPool<Int8Kv> pool;
  TestPool<float> loaded;
  std::vector<BlockId> table;
  std::vector<Slot> slots;
  std::vector<float> k, v;
};

}  // namespace

static_assert(KvFormat<float> && KvFormat<bf16> && KvFormat<Int8Kv>);
static_assert(ScaledKvFormat<Int8Kv> && !ScaledKvFormat<float>);
static_assert(!KvFormat<NoName> && !KvFormat<std::int8_t>);
static_assert(kv_format_name<bf16>() == "bfloat16" && kKvScaleBytes<bf16> == 0);
static_assert(kv_format_name<Int8Kv>() == Int8Kv::kName && kKvScaleBytes<Int8Kv> == 4);

TEST_CASE("every element and every scale of a pool has bytes of its own", "[kv_format]") {
  const std::int64_t block_size = GENERATE(1, 5, 16);
  TestPool<Int8Kv> pool(int8_shape(block_size), kBlocks);
  REQUIRE(pool.size_bytes() == kBlocks * kLayers * 2 * kHeads * block_size * (kDim + 4));
  const std::int8_t* const base = pool.layer(0).data;
  std::set<std::int64_t> seen;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const KvView<Int8Kv> view = pool.layer(layer);
    for (BlockId block = 0; block < kBlocks; ++block) {
      for (std::int64_t head = 0; head < kHeads; ++head) {
        for (std::int8_t* tile : {view.k(block, head), view.v(block, head)}) {
          for (std::int64_t i = 0; i < block_size * kDim; ++i) seen.insert(tile + i - base);
          const auto* scales = reinterpret_cast<const std::int8_t*>(view.scales(tile));
          for (std::int64_t i = 0; i < block_size * 4; ++i) seen.insert(scales + i - base);
        }
      }
    }
  }
  REQUIRE(seen.size() == static_cast<std::size_t>(pool.size_bytes()));
  REQUIRE((*seen.begin() == 0 && *seen.rbegin() == pool.size_bytes() - 1));
}

TEST_CASE("a pool of another scale, or of tiles that end between two scales, is refused",
          "[kv_format]") {
  KvShape shape = int8_shape(16);
  shape.scale_bytes = 0;
  CHECK_THROWS_WITH(TestPool<Int8Kv>(shape, 1), "KV pool: scale_bytes must be 4, got 0");
  shape = int8_shape(1);
  shape.head_dim = 6;
  CHECK_THROWS_WITH(
      TestPool<Int8Kv>(shape, 1),
      "KV pool: int8 with a scale a token and head needs tiles of a multiple of 4 bytes, got 1 "
      "tokens of 6 elements");
}

TEST_CASE("what is stored of a row is near to it, whatever its place", "[kv_format]") {
  Cached cached(5, 33);
  const KvView<float> view = cached.loaded.layer(1);
  for (std::size_t i = 0; i < cached.slots.size(); ++i) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const auto first = (static_cast<std::int64_t>(i) * kHeads + head) * kDim;
      const std::int64_t slot = cached.slots[i] % 5 * kDim;
      for (std::int64_t d = 0; d < kDim; ++d) {
        const auto at = static_cast<std::size_t>(first + d);
        CHECK(std::abs(view.k(cached.block_of(i), head)[slot + d] - cached.k[at]) <= 1.f / 253);
        CHECK(std::abs(view.v(cached.block_of(i), head)[slot + d] - cached.v[at]) <= 1.f / 253);
      }
    }
  }
}

TEST_CASE("attention over heads of 20 = attention over what the format loads, to the bit",
          "[kv_format]") {
  const std::int64_t block_size = GENERATE(1, 4, 16), length = GENERATE(1, 33, 300);
  const std::int64_t num_queries = GENERATE(1, 9);
  if (num_queries > length) return;
  CAPTURE(block_size, length, num_queries);
  Cached cached(std::max<std::int64_t>(block_size, length / (kBlocks * 4) + 1), length);
  const std::int64_t heads = 2 * kHeads;
  const std::vector<float> q = noise(static_cast<std::size_t>(num_queries * heads * kDim), 3);
  const std::vector<std::int32_t> starts = {0, static_cast<std::int32_t>(num_queries)},
                                  lengths = {static_cast<std::int32_t>(length)};
  const auto attend = [&](auto kv) {
    using Kv = typename decltype(kv)::Format;
    std::vector<float> out(q.size());
    const TensorView<const float, 3> queries{q.data(), {num_queries, heads, kDim}};
    const TensorView<float, 3> result{out.data(), {num_queries, heads, kDim}};
    const MatrixView<const BlockId> tables{cached.table.data(),
                                           {1, static_cast<std::int64_t>(cached.table.size())}};
    if (num_queries == 1) {
      cpu::decode_attention(DecodeAttentionArgs<float, Kv>{.q = queries,
                                                           .kv = kv,
                                                           .kv_lens = view_of(lengths),
                                                           .block_tables = tables,
                                                           .scale = 0.25f,
                                                           .out = result},
                            cached.context);
    } else {
      const auto last = [&](const std::vector<float>& data) {
        const std::int64_t first = (length - num_queries) * kHeads * kDim;
        return TensorView<const float, 3>{data.data() + first, {num_queries, kHeads, kDim}};
      };
      cpu::varlen_attention(VarlenAttentionArgs<float, Kv>{.q = queries,
                                                           .k = last(cached.k),
                                                           .v = last(cached.v),
                                                           .kv = kv,
                                                           .query_starts = view_of(starts),
                                                           .kv_lens = view_of(lengths),
                                                           .block_tables = tables,
                                                           .scale = 0.25f,
                                                           .out = result},
                            cached.context);
    }
    return out;
  };
  const std::vector<float> got = attend(cached.pool.layer(1));
  CHECK(got == attend(cached.loaded.layer(1)));
  CHECK(std::any_of(got.begin(), got.end(), [](float x) { return x != 0.f; }));
}

TEST_CASE("copies and swaps of blocks take their scales along", "[kv_format]") {
  Cached cached(4, 20);
  const std::vector<BlockCopy> inside = {{.from = cached.table[0], .to = 1}};
  const auto content = [&](KvView<Int8Kv> view, BlockId block) {
    const std::int8_t* const begin = view.k(block, 0);
    return std::vector<std::int8_t>(begin, begin + view.block_stride());
  };
  const std::vector<std::int8_t> expected = content(cached.pool.layer(1), cached.table[0]);
  const auto stride = cached.pool.layer(1).data - cached.pool.layer(0).data;
  cpu::copy_blocks(CopyBlocksArgs<Int8Kv>{.first_layer = cached.pool.layer(0),
                                          .layer_stride = stride,
                                          .num_layers = kLayers,
                                          .copies = view_of(inside)},
                   cached.context);
  CHECK(content(cached.pool.layer(1), 1) == expected);

  TestPool<Int8Kv> host(int8_shape(4), 2);
  const std::vector<BlockCopy> down = {{.from = 1, .to = 0}}, up = {{.from = 0, .to = 2}};
  cpu::swap_blocks(SwapBlocksArgs<Int8Kv>{.device = cached.pool.layer(0),
                                          .device_stride = stride,
                                          .host = host.layer(0),
                                          .host_stride = host.layer(1).data - host.layer(0).data,
                                          .num_layers = kLayers,
                                          .down = view_of(down),
                                          .up = view_of(up)},
                   cached.context);
  CHECK(content(host.layer(1), 0) == expected);
  CHECK(content(cached.pool.layer(1), 2) == expected);
}

TEST_CASE("rows of tokens have their scales, whatever block size and ranks", "[kv_format]") {
  // Two ranks of one head and blocks of 4, then one rank of two heads and blocks of 5.
  KvShape from_shape = int8_shape(4), to_shape = int8_shape(5);
  from_shape.num_kv_heads = 1;
  const KvRows from(from_shape, 2), to(to_shape, 1);
  REQUIRE(from.row_bytes() == to.row_bytes());
  std::vector<std::byte> source(from.block_bytes(5)), target(to.block_bytes(4));
  for (std::size_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<std::byte>(philox4x32(9, {static_cast<std::uint32_t>(i), 0, 0, 0})[0]);
  std::vector<std::byte> row(from.row_bytes());
  for (std::size_t token = 0; token < 20; ++token) {
    from.read(source, 5, token / 4, token % 4, row.data());
    to.write(target, 4, token / 5, token % 5, row.data());
  }
  // Element 7 and the scale of head 1 of layer 2, token 13, values.
  const std::size_t tile = 4 * (kDim + 4), other_tile = 5 * (kDim + 4);
  const std::byte* const in = source.data() + ((5 + 3) * kLayers + 2) * 2 * tile + tile;
  const std::byte* const out = target.data() + (2 * kLayers + 2) * 4 * other_tile + 3 * other_tile;
  CHECK(in[1 * kDim + 7] == out[3 * kDim + 7]);
  CHECK(std::memcmp(in + 4 * kDim + 1 * 4, out + 5 * kDim + 3 * 4, 4) == 0);

  std::vector<std::byte> back(source.size());
  for (std::size_t token = 0; token < 20; ++token) {
    to.read(target, 4, token / 5, token % 5, row.data());
    from.write(back, 5, token / 4, token % 4, row.data());
  }
  CHECK(back == source);
}
