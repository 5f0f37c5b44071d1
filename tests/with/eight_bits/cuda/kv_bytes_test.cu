// Caches with 8-bit elements and scales: what the stores leave, against the formats' own code, and
// varlen_attention, against float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/attention/varlen/varlen_attention.cuh"
#include "nanovllm/cuda/elementwise/kv_store.cuh"
#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"
#include "nanovllm/with/eight_bits/cuda/kv_bytes.cuh"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"

namespace nanovllm::test {

// To nvcc as well as to the host's compiler: views are operands of kernels.
static_assert(sizeof(KvView<bf16>) == 40 && sizeof(KvView<Fp8Kv>) == 40);
static_assert(sizeof(KvView<StaticFp8Kv>) == 48);

namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Where the format gets its scales. Both saturate the larger rows below.
constexpr KvScales kScales{.k = 0.0173f, .v = 0.25f};

/// What the format's own code stores as head `head`, keys' heads first; returns the scale.
template <class T, class Kv>
float store_by_format(const KvView<Kv>& kv, std::int64_t head, const T* row, KvStored<Kv>* to) {
  if constexpr (FixedScaleKvFormat<Kv>) {
    return Kv::store(row, kv.head_dim, to, head < kv.num_kv_heads ? kScales.k : kScales.v);
  } else {
    return Kv::store(row, kv.head_dim, to);
  }
}

/// Tokens with rows of q, k and v side by side, and a cache. Sequences have `prefix` keys and
/// `q_len` tokens after them; their pages lie backwards in the pool.
struct Chunk {
  std::int64_t q_len, prefix;
};

template <class T, class Kv>
struct Step {
  using Stored = KvStored<Kv>;

  std::int64_t heads, kv_heads, d, block_size;
  std::vector<Chunk> chunks;
  std::int64_t n = 0, width, num_blocks = 0, table_width = 1;
  GpuArray<T> qkv{0}, norms{0};
  GpuArray<float> angles{0};
  GpuArray<Stored> pool{0};
  GpuArray<BlockId> tables{0};
  GpuArray<std::int32_t> starts{0}, lens{0}, positions{0};
  GpuArray<Slot> slots{0};

  Step(std::int64_t heads_in, std::int64_t kv_heads_in, std::int64_t d_in, std::int64_t block,
       std::vector<Chunk> chunks_in, std::uint64_t seed = 1)
      : heads(heads_in),
        kv_heads(kv_heads_in),
        d(d_in),
        block_size(block),
        chunks(std::move(chunks_in)),
        width((heads_in + 2 * kv_heads_in) * d_in) {
    for (const Chunk& c : chunks) {
      n += c.q_len;
      num_blocks += ceil_div(c.prefix + c.q_len, block_size);
      table_width = std::max(table_width, ceil_div(c.prefix + c.q_len, block_size) + 1);
    }
    const auto num_seqs = chunks.size();
    qkv = GpuArray<T>::random(size(n * width), seed, -2, 2);
    norms = GpuArray<T>::random(size(2 * d), seed + 1, .5, 2);
    angles = GpuArray<float>::random(size(64 * d), seed + 2, -1, 1);
    pool = GpuArray<Stored>(size(num_blocks * view(nullptr).block_stride()));
    tables = GpuArray<BlockId>(num_seqs * size(table_width));
    starts = GpuArray<std::int32_t>(num_seqs + 1);
    lens = GpuArray<std::int32_t>(num_seqs);
    positions = GpuArray<std::int32_t>(size(n));
    slots = GpuArray<Slot>(size(n));
    std::fill(tables.host.begin(), tables.host.end(), 0x3fffffff);
    std::int64_t row = 0, given = 0;
    for (std::size_t s = 0; s < num_seqs; ++s) {
      const std::int64_t len = chunks[s].prefix + chunks[s].q_len;
      starts.host[s] = static_cast<std::int32_t>(row);
      lens.host[s] = static_cast<std::int32_t>(len);
      for (std::int64_t b = 0; b < ceil_div(len, block_size); ++b)
        tables.host[s * size(table_width) + size(b)] =
            static_cast<BlockId>(num_blocks - 1 - given++);
      for (std::int64_t i = 0; i < chunks[s].q_len; ++i, ++row) {
        slots.host[size(row)] = slot_of(s, chunks[s].prefix + i);
        positions.host[size(row)] = static_cast<std::int32_t>((row * 7) % 64);
      }
    }
    starts.host[num_seqs] = static_cast<std::int32_t>(n);
    tables.upload(), starts.upload(), lens.upload(), positions.upload(), slots.upload();
    pool.upload();  // all of it NaN
  }

  [[nodiscard]] Slot slot_of(std::size_t s, std::int64_t position) const {
    return tables.host[s * size(table_width) + size(position / block_size)] * block_size +
           position % block_size;
  }
  [[nodiscard]] KvView<Kv> view(Stored* data) const {
    return KvView<Kv>{data, num_blocks, block_size, kv_heads, d}.with(kScales);
  }
  TensorView<T, 3> part(std::int64_t first, std::int64_t count) {
    return {qkv.data() + first * d, {n, count, d}, {width, d, 1}};
  }
  TensorView<T, 3> k() { return part(heads, kv_heads); }
  TensorView<T, 3> v() { return part(heads + kv_heads, kv_heads); }
  T* row(std::int64_t token, std::int64_t head) {
    return &qkv.host[size(token * width + head * d)];
  }
  VectorView<const Slot> slot_view() { return {slots.data(), {n}}; }

  void store(const Gpu& gpu) {
    cuda::kv_store(KvStoreArgs<T, Kv>{k(), v(), slot_view(), view(pool.data())}, gpu.context);
  }
  template <class Format>
  void norm_and_store(const Gpu& gpu, const KvView<Format>& kv) {
    cuda::qk_norm_rope_store(QkNormRopeStoreArgs<T, Format>{part(0, heads),
                                                            k(),
                                                            v(),
                                                            {norms.data(), {d}},
                                                            {norms.data() + d, {d}},
                                                            1e-6f,
                                                            {positions.data(), {n}},
                                                            {angles.data(), {64, d}},
                                                            slot_view(),
                                                            kv},
                             gpu.context);
  }

  VarlenAttentionArgs<T, Kv> args(GpuArray<T>& out) {
    const auto num_seqs = static_cast<std::int64_t>(chunks.size());
    VarlenAttentionArgs<T, Kv> a;
    a.q = part(0, heads);
    a.k = k();
    a.v = v();
    a.kv = view(pool.data());
    a.query_starts = {starts.data(), {num_seqs + 1}};
    a.kv_lens = {lens.data(), {num_seqs}};
    a.block_tables = {tables.data(), {num_seqs, table_width}};
    a.has_prefix =
        std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.prefix > 0; });
    a.scale = 1.f / std::sqrt(static_cast<float>(d));
    a.out = {out.data(), {n, heads, d}};
    return a;
  }
};

template <class Stored>
bool is_nan(Stored x) {
  return std::isnan(static_cast<float>(x));
}

/// Compares the cache and the rows of k and v with `Kv::store` and `Kv::load` of `rows`, what k and
/// v were.
template <class T, class Kv>
void expect_stored(Step<T, Kv>& step, const std::vector<T>& rows) {
  step.qkv.download(), step.pool.download();
  CHECK((step.qkv.guards_intact() && step.pool.guards_intact()));
  std::vector<KvStored<Kv>> expected(step.pool.host.size());
  std::memset(expected.data(), 0xff, expected.size());
  const KvView<Kv> kv = step.view(expected.data());
  std::vector<float> loaded(size(step.d));
  for (std::int64_t i = 0; i < step.n; ++i) {
    const Slot slot = step.slots.host[size(i)];
    for (std::int64_t h = 0; h < 2 * step.kv_heads; ++h) {
      const T* const from = &rows[size(i * step.width + (step.heads + h) * step.d)];
      const T* const got = step.row(i, step.heads + h);
      if (slot == kNoSlot) {
        REQUIRE(std::memcmp(from, got, size(step.d) * sizeof(T)) == 0);
        continue;
      }
      auto* const tile = kv.k(static_cast<BlockId>(slot / step.block_size), h);
      const std::int64_t at = slot % step.block_size;
      const float scale = store_by_format(kv, h, from, tile + at * step.d);
      kv.scales(tile)[at] = scale;
      Kv::load(tile + at * step.d, scale, step.d, loaded.data());
      for (std::int64_t j = 0; j < step.d; ++j) {
        const float want = static_cast<float>(T(loaded[size(j)])), have = got[j];
        if (!(want == have || (std::isnan(want) && std::isnan(have))))
          FAIL("row of token " << i << ", head " << h << ", element " << j << ": " << have
                               << " instead of " << want);
      }
    }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&expected[i], &step.pool.host[i], 1) == 0) continue;
    // A NaN may have other bits; it is in a scale then, or in a row whose scale is one. Where scales
    // are given, it is the element itself.
    const std::int64_t tile = step.view(nullptr).tile_size(), in_tile = std::int64_t(i) % tile;
    if (FixedScaleKvFormat<Kv> && in_tile < step.block_size * step.d && is_nan(expected[i]) &&
        is_nan(step.pool.host[i]))
      continue;
    const auto* const base = expected.data() + (std::int64_t(i) - in_tile);
    const std::int64_t at = in_tile < step.block_size * step.d
                                ? in_tile / step.d
                                : (in_tile - step.block_size * step.d) / 4;
    float scale;
    std::memcpy(&scale, base + step.block_size * step.d + 4 * at, 4);
    if (!std::isnan(scale)) FAIL("byte " << i << " of the cache");
  }
}

/// Rows of all kinds: zeros, tiny, huge, with one infinity or NaN; every fifth token has no slot.
template <class T, class Kv>
Step<T, Kv> odd_rows(std::int64_t kv_heads, std::int64_t d, std::int64_t block_size) {
  Step<T, Kv> step(3, kv_heads, d, block_size, {{37, 0}, {5, 0}});
  for (std::int64_t i = 0; i < step.n; ++i) {
    for (std::int64_t h = 0; h < 2 * kv_heads; ++h) {
      T* const row = step.row(i, step.heads + h);
      const std::int64_t kind = (i * 2 * kv_heads + h) % 9;
      const float factor = kind == 1 ? 0.f : kind == 2 ? 1e-4f : kind == 3 ? 1e4f : 1.f;
      for (std::int64_t j = 0; j < d; ++j) row[j] = T(static_cast<float>(row[j]) * factor);
      if (kind == 4) row[d / 3] = T(std::numeric_limits<float>::infinity());
      if (kind == 5) row[d - 1] = T(std::numeric_limits<float>::quiet_NaN());
    }
    if (i % 5 == 2) step.slots.host[size(i)] = kNoSlot;
  }
  step.qkv.upload(), step.slots.upload();
  return step;
}

template <class T, class Kv>
void check_stores() {
  const Gpu gpu;
  for (const std::int64_t d : {64, 128, 80, 12}) {
    CAPTURE(Kv::kName, sizeof(T), d);
    auto plain = odd_rows<T, Kv>(2, d, 16);
    const std::vector<T> rows = plain.qkv.host;
    plain.store(gpu);
    gpu.sync();
    expect_stored(plain, rows);

    auto fused = odd_rows<T, Kv>(3, d, 3);
    auto same = odd_rows<T, Kv>(3, d, 3);
    GpuArray<T> cache(size(same.num_blocks * 2 * 3 * 3 * d));
    same.norm_and_store(gpu, KvView<T>{cache.data(), same.num_blocks, 3, 3, d});
    fused.norm_and_store(gpu, fused.view(fused.pool.data()));
    gpu.sync();
    same.qkv.download();
    expect_stored(fused, same.qkv.host);
    for (std::int64_t i = 0; i < same.n; ++i)
      REQUIRE(std::memcmp(same.row(i, 0), fused.row(i, 0), size(3 * d) * sizeof(T)) == 0);
  }
}

template <class T, class Kv>
void check_varlen(std::int64_t group, std::int64_t d, std::int64_t block_size,
                  const std::vector<Chunk>& chunks) {
  CAPTURE(Kv::kName, sizeof(T), group, d, block_size, chunks.size(), chunks[0].prefix);
  const Gpu gpu;
  Step<T, Kv> step(2 * group, 2, d, block_size, chunks);
  // The prefixes' keys are those of random rows.
  std::vector<std::vector<float>> keys(chunks.size()), values(chunks.size());
  std::vector<T> row(size(d));
  std::vector<float> loaded(size(d));
  const KvView<Kv> kv = step.view(step.pool.host.data());
  for (std::size_t s = 0; s < chunks.size(); ++s) {
    const std::int64_t len = chunks[s].prefix + chunks[s].q_len;
    for (std::int64_t p = 0; p < len; ++p) {
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t j = 0; j < d; ++j) {
          const auto words =
              philox4x32(77 + s, {static_cast<std::uint32_t>(p), static_cast<std::uint32_t>(h),
                                  static_cast<std::uint32_t>(j), 0});
          const float factor = (p + h) % 7 == 3 ? 0.f : (p + h) % 5 == 1 ? 1e-3f : 1.f;
          row[size(j)] = T(static_cast<float>(4 * to_unit_interval(words[0]) - 2) * factor);
        }
        const Slot slot = step.slot_of(s, p);
        auto* const tile = kv.k(static_cast<BlockId>(slot / block_size), h);
        auto* const to = tile + slot % block_size * d;
        const float scale = store_by_format(kv, h, row.data(), to);
        kv.scales(tile)[slot % block_size] = scale;
        Kv::load(to, scale, d, loaded.data());
        for (float& x : loaded) x = static_cast<float>(T(x));
        auto& all = h < 2 ? keys[s] : values[s];
        all.insert(all.end(), loaded.begin(), loaded.end());
        const std::int64_t token = step.starts.host[s] + p - chunks[s].prefix;
        if (p < chunks[s].prefix) continue;
        for (std::int64_t j = 0; j < d; ++j)
          step.row(token, step.heads + h)[j] = T(loaded[size(j)]);
      }
    }
  }
  step.pool.upload(), step.qkv.upload();
  GpuArray<T> out(size(step.n * step.heads * d));
  cuda::VarlenWorkspace workspace(static_cast<std::int64_t>(chunks.size()), step.n, gpu.context);
  const auto args = step.args(out);
  cuda::plan_varlen(args.query_starts, args.kv_lens, step.n, workspace, gpu.context);
  cuda::varlen_attention<cuda::DeviceArchitectures>(args, workspace, gpu.context);
  gpu.sync();
  out.download();
  CHECK(out.guards_intact());
  const std::vector<T> first = out.host;
  poison_shared_memory(gpu.context);
  cuda::varlen_attention<cuda::DeviceArchitectures>(args, workspace, gpu.context);
  gpu.sync();
  out.download();
  CHECK(std::memcmp(first.data(), out.host.data(), first.size() * sizeof(T)) == 0);
  for (std::size_t s = 0; s < chunks.size(); ++s) {
    for (std::int64_t i = 0; i < chunks[s].q_len; ++i) {
      if (i % 61 != 0 && i + 1 != chunks[s].q_len && i % 64 != 63) continue;
      const std::int64_t h = (i + 1) % step.heads, token = step.starts.host[s] + i;
      const std::int64_t visible = chunks[s].prefix + i + 1;
      const auto at = [&](std::int64_t p) { return size((p * 2 + h / group) * d); };
      std::vector<double> p(size(visible)), sums(size(d)), abs_sums(size(d));
      double max = -INFINITY, max_abs = 0, sum = 0;
      for (std::int64_t j = 0; j < visible; ++j) {
        double dot = 0, abs = 0;
        for (std::int64_t c = 0; c < d; ++c) {
          const double x = double(float(step.row(token, h)[c])) * keys[s][at(j) + size(c)];
          dot += x, abs += std::fabs(x);
        }
        p[size(j)] = dot * double(args.scale);
        max = std::max(max, p[size(j)]), max_abs = std::max(max_abs, abs * double(args.scale));
      }
      for (double& x : p) sum += x = std::exp(x - max);
      for (std::int64_t j = 0; j < visible; ++j) {
        for (std::int64_t c = 0; c < d; ++c) {
          const double v = values[s][at(j) + size(c)];
          sums[size(c)] += p[size(j)] * v, abs_sums[size(c)] += p[size(j)] * std::fabs(v);
        }
      }
      // As in varlen_attention_test.cu. The CUDA cores do not round keys and values to T.
      const double u = kUnit<T>, delta = 4 * 0x1p-24 * std::sqrt(double(d)) * max_abs;
      const bool rounds = d % 8 == 0 && sizeof(T) == 2 && step.view(nullptr).tile_size() % 8 == 0;
      const double unrounded = rounds ? 0 : 0x1p-8 * (1 + 2 * max_abs);
      for (std::int64_t c = 0; c < d; ++c) {
        const double want = sums[size(c)] / sum, abs = abs_sums[size(c)] / sum;
        const double bound =
            1.5 * (u * std::fabs(want) + (u + unrounded + 2 * delta + 0x1p-21) * abs);
        const double got = float(out.host[size((token * step.heads + h) * d + c)]);
        if (!(std::fabs(got - want) <= bound))
          FAIL("sequence " << s << " row " << i << " head " << h << " column " << c << ": " << got
                           << " instead of " << want << ", bound " << bound);
      }
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("stores in 8 bits leave what the format's own code does", "[kv_bytes]", Int8Kv,
                   Fp8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  check_stores<bf16, TestType>();
  check_stores<half, TestType>();
  check_stores<float, TestType>();
}

TEST_CASE("stores in 8 bits refuse scales that are not aligned", "[kv_bytes]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  Step<float, Int8Kv> step(1, 1, 6, 3, {{2, 0}});
  CHECK_THROWS_AS(step.store(gpu), ShapeError);
}

TEMPLATE_TEST_CASE("varlen_attention in 8 bits", "[kv_bytes]", Int8Kv, Fp8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  const std::vector<Chunk> whole{{1, 0}, {64, 0}, {129, 0}, {300, 0}};
  // Of the fourth, tiles of new keys come from the step; the last has more pages than a warp lanes.
  const std::vector<Chunk> chunks{{1, 300}, {65, 17}, {130, 1}, {300, 400}, {7, 1000}, {20, 2500}};
  for (const auto& what : {whole, chunks}) {
    check_varlen<bf16, TestType>(2, 128, 64, what);
    check_varlen<bf16, TestType>(5, 64, 16, what);
    check_varlen<half, TestType>(1, 128, 48, what);
    check_varlen<bf16, TestType>(2, 128, 8, what);
    check_varlen<bf16, TestType>(2, 80, 8, what);
    check_varlen<bf16, TestType>(1, 256, 32, what);
    check_varlen<bf16, TestType>(2, 128, 1, what);  // rows of 4-byte alignment
    check_varlen<float, TestType>(2, 64, 16, what);
  }
  check_varlen<bf16, TestType>(4, 128, 64, std::vector<Chunk>(70, {40, 150}));
}

}  // namespace nanovllm::test
