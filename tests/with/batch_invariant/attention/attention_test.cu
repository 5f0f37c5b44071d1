// Attention in one order: against float64, and each token against itself in other company.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/with/batch_invariant/attention/attention.cuh"

namespace nanovllm::test {
namespace {

struct Heads {
  std::int64_t kv_heads, group, head_dim;
};

/// Queries, keys and values of some sequences, all their tokens; and a cache of one block size that
/// has them, pages in no order.
template <class T>
struct Sequences {
  Heads heads;
  std::int64_t block_size;
  std::vector<std::int32_t> lens;
  std::vector<std::int64_t> starts;  ///< of each in q, k and v
  std::vector<T> q, k, v;
  std::int64_t table_width, num_pages;
  GpuArray<T> kv;
  std::vector<BlockId> tables;

  Sequences(const Heads& h, std::int64_t block, std::vector<std::int32_t> lengths)
      : heads(h),
        block_size(block),
        lens(std::move(lengths)),
        table_width(ceil_div<std::int64_t>(*std::max_element(lens.begin(), lens.end()), block)),
        num_pages(table_width * static_cast<std::int64_t>(lens.size()) + 1),
        kv(static_cast<std::size_t>(num_pages * 2 * h.kv_heads * block * h.head_dim)),
        tables(lens.size() * static_cast<std::size_t>(table_width)) {
    std::int64_t total = 0;
    for (const std::int32_t len : lens) {
      starts.push_back(total);
      total += len;
    }
    const auto random = [&](std::int64_t count, std::uint64_t seed) {
      return GpuArray<T>::random(static_cast<std::size_t>(total * count * h.head_dim), seed).host;
    };
    q = random(h.kv_heads * h.group, 1);
    k = random(h.kv_heads, 2);
    v = random(h.kv_heads, 3);
    std::vector<BlockId> pages(static_cast<std::size_t>(num_pages));
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<BlockId>(i);
    for (std::size_t i = pages.size(); i > 1; --i)
      std::swap(pages[i - 1],
                pages[philox4x32(9, {static_cast<std::uint32_t>(i), 1, 1, 1})[0] % i]);
    // What is not a key stays poison.
    for (std::size_t s = 0; s < lens.size(); ++s) {
      for (std::int64_t i = 0; i < table_width; ++i) {
        const bool used = i * block < lens[s];
        tables[s * static_cast<std::size_t>(table_width) + static_cast<std::size_t>(i)] =
            used ? pages[s * static_cast<std::size_t>(table_width) + static_cast<std::size_t>(i)]
                 : 0x7fffffff;
      }
      for (std::int64_t i = 0; i < lens[s]; ++i) {
        const std::int64_t page =
            tables[s * static_cast<std::size_t>(table_width) + static_cast<std::size_t>(i / block)];
        for (std::int64_t head = 0; head < h.kv_heads; ++head) {
          const std::size_t from =
              static_cast<std::size_t>(((starts[s] + i) * h.kv_heads + head) * h.head_dim);
          const auto to = [&](int which) {
            return static_cast<std::size_t>(
                (((page * 2 + which) * h.kv_heads + head) * block + i % block) * h.head_dim);
          };
          std::copy_n(&k[from], h.head_dim, &kv.host[to(0)]);
          std::copy_n(&v[from], h.head_dim, &kv.host[to(1)]);
        }
      }
    }
    kv.upload();
  }

  [[nodiscard]] std::int64_t num_heads() const { return heads.kv_heads * heads.group; }
  [[nodiscard]] std::int64_t width() const { return num_heads() * heads.head_dim; }

  /// Tokens [begin, end) of sequence `sequence`.
  struct Range {
    std::size_t sequence;
    std::int32_t begin, end;
  };

  [[nodiscard]] ReserveArgs reserve_args() const {
    return {.limits = {.max_num_batched_tokens = 1 << 15,
                       .max_num_seqs = 300,
                       .max_model_len = table_width * block_size},
            .vocab_size = 1,
            .num_heads = num_heads(),
            .num_kv_heads = heads.kv_heads,
            .head_dim = heads.head_dim};
  }

  /// The results of all tokens of `ranges`, in this order, computed together: as rows of a decode
  /// step, each range of one token, or as chunks.
  std::vector<T> run(const std::vector<Range>& ranges, bool decodes,
                     cuda::BatchInvariantAttention& op, Gpu& gpu) {
    std::vector<T> rows, new_k, new_v;
    std::vector<std::int32_t> kv_lens, query_starts{0};
    std::vector<BlockId> table;
    std::int64_t n = 0;
    for (const Range& range : ranges) {
      const auto take = [&](const std::vector<T>& from, std::int64_t count, std::vector<T>& to) {
        const auto at = [&](std::int32_t i) {
          return from.begin() + (starts[range.sequence] + i) * count * heads.head_dim;
        };
        to.insert(to.end(), at(range.begin), at(range.end));
      };
      take(q, num_heads(), rows);
      take(k, heads.kv_heads, new_k);
      take(v, heads.kv_heads, new_v);
      kv_lens.push_back(range.end);
      n += range.end - range.begin;
      query_starts.push_back(static_cast<std::int32_t>(n));
      const auto first = tables.begin() + static_cast<std::ptrdiff_t>(range.sequence) * table_width;
      table.insert(table.end(), first, first + table_width);
    }
    const auto count = static_cast<std::int64_t>(ranges.size());
    GpuArray<T> q_there(rows), k_there(new_k), v_there(new_v);
    GpuArray<T> out(static_cast<std::size_t>(n * width()));
    GpuArray<std::int32_t> lens_there(kv_lens), starts_there(query_starts);
    GpuArray<BlockId> table_there(table);
    const KvView<T> cache{kv.data(), num_pages, block_size, heads.kv_heads, heads.head_dim};
    const TensorView<const T, 3> queries(q_there.data(), {n, num_heads(), heads.head_dim});
    const TensorView<T, 3> result(out.data(), queries.extents);
    const float scale = 1.f / std::sqrt(static_cast<float>(heads.head_dim));
    const VectorView<const std::int32_t> lens_view(lens_there.data(), {count});
    const VectorView<const std::int32_t> starts_view(starts_there.data(), {count + 1});
    const MatrixView<const BlockId> table_view(table_there.data(), {count, table_width});
    op.plan({.num_decodes = decodes ? count : 0,
             .num_tokens = n,
             .query_starts = decodes ? starts_view.slice(0, 1) : starts_view,
             .kv_lens = lens_view,
             .num_heads = num_heads(),
             .num_kv_heads = heads.kv_heads,
             .head_dim = heads.head_dim},
            gpu.context);
    if (decodes) {
      op.run(DecodeAttentionArgs<T>{.q = queries,
                                    .kv = cache,
                                    .kv_lens = lens_view,
                                    .block_tables = table_view,
                                    .scale = scale,
                                    .out = result},
             gpu.context);
    } else {
      const std::array<std::int64_t, 3> extents{n, heads.kv_heads, heads.head_dim};
      op.run(VarlenAttentionArgs<T>{.q = queries,
                                    .k = {k_there.data(), extents},
                                    .v = {v_there.data(), extents},
                                    .kv = cache,
                                    .query_starts = starts_view,
                                    .kv_lens = lens_view,
                                    .block_tables = table_view,
                                    .scale = scale,
                                    .out = result},
             gpu.context);
    }
    gpu.sync();
    out.download();
    REQUIRE(out.guards_intact());
    return out.host;
  }

  /// Every token of every sequence, as whole prompts.
  std::vector<T> whole(cuda::BatchInvariantAttention& op, Gpu& gpu) {
    std::vector<Range> ranges;
    for (std::size_t s = 0; s < lens.size(); ++s) ranges.push_back({s, 0, lens[s]});
    return run(ranges, false, op, gpu);
  }

  /// Tokens of `ranges` in which `got` differs from `all`.
  std::int64_t differences(const std::vector<T>& all, const std::vector<Range>& ranges,
                           const std::vector<T>& got) {
    std::int64_t wrong = 0, row = 0;
    for (const Range& range : ranges) {
      for (std::int32_t i = range.begin; i < range.end; ++i, ++row) {
        wrong += std::memcmp(&all[static_cast<std::size_t>((starts[range.sequence] + i) * width())],
                             &got[static_cast<std::size_t>(row * width())],
                             static_cast<std::size_t>(width()) * sizeof(T)) != 0;
      }
    }
    return wrong;
  }

  /// The largest error of head `head` of token `i` of sequence `s`, as a share of what rounding
  /// explains.
  double error(const std::vector<T>& all, std::size_t s, std::int32_t i, std::int64_t head) {
    const std::int64_t d = heads.head_dim;
    const auto element = [&](const std::vector<T>& of, std::int64_t token, std::int64_t h,
                             std::int64_t count, std::int64_t c) {
      return static_cast<double>(
          float(of[static_cast<std::size_t>(((starts[s] + token) * count + h) * d + c)]));
    };
    std::vector<double> scores;
    for (std::int64_t key = 0; key <= i; ++key) {
      double score = 0;
      for (std::int64_t c = 0; c < d; ++c)
        score += element(q, i, head, num_heads(), c) *
                 element(k, key, head / heads.group, heads.kv_heads, c);
      scores.push_back(score / std::sqrt(static_cast<double>(d)));
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& x : scores) sum += x = std::exp(x - most);
    double worst = 0;
    for (std::int64_t c = 0; c < d; ++c) {
      double value = 0, size = 0;
      for (std::int64_t key = 0; key <= i; ++key) {
        const double term = scores[static_cast<std::size_t>(key)] / sum *
                            element(v, key, head / heads.group, heads.kv_heads, c);
        value += term;
        size += std::abs(term);
      }
      const double got =
          float(all[static_cast<std::size_t>(((starts[s] + i) * num_heads() + head) * d + c)]);
      worst = std::max(worst, std::abs(got - value) /
                                  (kUnit<T> * (std::abs(value) + size) + 1e-4 * size + 1e-30));
    }
    return worst;
  }
};

}  // namespace

TEST_CASE("a token has the same bits in a decode and in any chunk, alone and among others",
          "[batch_invariant]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  for (const Heads& heads : {Heads{2, 2, 128}, {2, 4, 64}, {1, 8, 128}, {3, 1, 64}, {1, 16, 128}}) {
    INFO(heads.kv_heads << " kv heads, groups of " << heads.group << ", head_dim "
                        << heads.head_dim);
    Sequences<bf16> work(heads, 16, {1, 5, 64, 65, 130, 255, 256, 257, 300, 513, 1100});
    cuda::BatchInvariantAttention op(work.reserve_args(), gpu.context);
    const auto all = work.whole(op, gpu);
    double worst = 0;
    for (const auto& [s, i] : {std::pair<std::size_t, std::int32_t>{0, 0},
                               {3, 64},
                               {6, 255},
                               {7, 256},
                               {9, 512},
                               {10, 1023},
                               {10, 1099}})
      worst = std::max(worst, work.error(all, s, i, work.num_heads() - 1));
    CHECK(worst < 1.5);

    // Every token as a decode: 256 at a time, and some alone.
    using Range = typename Sequences<bf16>::Range;
    std::vector<Range> tokens;
    for (std::size_t s = 0; s < work.lens.size(); ++s) {
      for (std::int32_t i = 0; i < work.lens[s]; ++i) tokens.push_back({s, i, i + 1});
    }
    for (std::size_t first = 0; first < tokens.size(); first += 256) {
      const std::vector<Range> batch(
          tokens.begin() + static_cast<std::ptrdiff_t>(first),
          tokens.begin() + static_cast<std::ptrdiff_t>(std::min(first + 256, tokens.size())));
      INFO("decodes from token " << first);
      CHECK(work.differences(all, batch, work.run(batch, true, op, gpu)) == 0);
    }
    for (std::size_t at = 0; at < tokens.size(); at += 97) {
      const std::vector<Range> batch{tokens[at]};
      CHECK(work.differences(all, batch, work.run(batch, true, op, gpu)) == 0);
    }
    // Chunks of odd sizes, all sequences together, and the longest alone.
    for (const std::int32_t chunk : {1, 3, 17, 64, 127, 129, 255, 300}) {
      INFO("chunks of " << chunk);
      std::vector<Range> chunks, long_one;
      for (std::size_t s = 0; s < work.lens.size(); ++s) {
        for (std::int32_t i = 0; i < work.lens[s]; i += chunk) {
          const Range range{s, i, std::min(i + chunk, work.lens[s])};
          chunks.push_back(range);
          if (s + 1 == work.lens.size()) long_one.push_back(range);
        }
      }
      for (std::size_t first = 0; first < chunks.size(); first += 290) {
        const std::vector<Range> batch(
            chunks.begin() + static_cast<std::ptrdiff_t>(first),
            chunks.begin() + static_cast<std::ptrdiff_t>(std::min(first + 290, chunks.size())));
        CHECK(work.differences(all, batch, work.run(batch, false, op, gpu)) == 0);
      }
      const std::vector<Range> last{long_one.back()};
      CHECK(work.differences(all, last, work.run(last, false, op, gpu)) == 0);
    }
  }
}

TEST_CASE("neither the block size nor where blocks lie changes a bit", "[batch_invariant]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  const std::vector<std::int32_t> lens{40, 300, 700};
  Sequences<bf16> first({2, 2, 128}, 64, lens);
  cuda::BatchInvariantAttention op(first.reserve_args(), gpu.context);
  const auto all = first.whole(op, gpu);
  for (const std::int64_t block_size : {1, 8, 16, 24, 128}) {
    INFO("blocks of " << block_size);
    Sequences<bf16> other({2, 2, 128}, block_size, lens);
    cuda::BatchInvariantAttention its(other.reserve_args(), gpu.context);
    const auto again = other.whole(its, gpu);
    CHECK(std::memcmp(all.data(), again.data(), all.size() * sizeof(bf16)) == 0);
    std::vector<typename Sequences<bf16>::Range> ends;
    for (std::size_t s = 0; s < lens.size(); ++s) ends.push_back({s, lens[s] - 1, lens[s]});
    CHECK(other.differences(all, ends, other.run(ends, true, its, gpu)) == 0);
  }
}

TEST_CASE("rows of padding are zeros, and a thousand replays give equal bits",
          "[batch_invariant]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  Sequences<bf16> work({2, 2, 128}, 64, {900, 1, 2000, 300});
  cuda::BatchInvariantAttention op(work.reserve_args(), gpu.context);
  using Range = typename Sequences<bf16>::Range;
  const std::vector<Range> ends{{0, 899, 900}, {1, 0, 1}, {2, 1999, 2000}, {3, 299, 300}};
  const auto expected = work.run(ends, true, op, gpu);
  for (int i = 0; i < 100; ++i) CHECK(work.run(ends, true, op, gpu) == expected);

  GpuArray<std::int32_t> lens(std::vector<std::int32_t>{0, 0, 0});
  GpuArray<bf16> q = GpuArray<bf16>::random(static_cast<std::size_t>(3 * work.width()), 4);
  GpuArray<bf16> out(q.size());
  GpuArray<BlockId> tables(std::vector<BlockId>(3, 0x7fffffff));
  const VectorView<const std::int32_t> lens_view(lens.data(), {3});
  op.plan({.num_decodes = 3, .num_tokens = 3, .query_starts = {nullptr, {1}}, .kv_lens = lens_view},
          gpu.context);
  op.run(DecodeAttentionArgs<bf16>{.q = {q.data(), {3, 4, 128}},
                                   .kv = {work.kv.data(), work.num_pages, 64, 2, 128},
                                   .kv_lens = lens_view,
                                   .block_tables = {tables.data(), {3, 1}},
                                   .scale = 0.1f,
                                   .out = {out.data(), {3, 4, 128}}},
         gpu.context);
  gpu.sync();
  out.download();
  CHECK(std::all_of(out.host.begin(), out.host.end(), [](bf16 x) { return float(x) == 0.f; }));
}

}  // namespace nanovllm::test
