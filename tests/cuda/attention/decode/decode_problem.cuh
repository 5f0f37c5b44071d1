#pragma once
// Operands of decode_attention, and the formula in double that it is compared with.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/attention/decode/decode_attention.cuh"
#include "nanovllm/kv/prefix/shared_prefixes.hpp"

namespace nanovllm::test {

struct Shape {
  std::int64_t group = 2, kv_heads = 2, head_dim = 128, block_size = 16;
  double spread = 2;  ///< of queries, keys and values
  float scale = 0.f;  ///< 0: head_dim^-0.5
};

/// Operands for `lens.size()` sequences with room for `max_lens` keys each. Pages lie shuffled in
/// the pool; table entries past a sequence's pages are far outside of it; what lies past the last
/// key, in its page and in pages of no sequence, is NaN. q and out are slices of wider rows.
template <class T, class Kv = T>
struct Problem {
  using Stored = KvStored<Kv>;

  Shape shape;
  std::vector<std::int32_t> max_lens;
  std::int64_t num_pages, table_width, q_width, out_width;
  GpuArray<T> q;
  GpuArray<Stored> kv;
  GpuArray<T> out;
  GpuArray<BlockId> tables;
  GpuArray<std::int32_t> lens;
  GpuArray<SharedPrefix> groups;
  GpuArray<PrefixMember> members;
  SharedPrefixFinder finder;

  Problem(const Shape& shape_in, std::vector<std::int32_t> lens_in, std::uint64_t seed,
          std::vector<std::int32_t> max_lens_in = {})
      : shape(shape_in),
        max_lens(max_lens_in.empty() ? lens_in : max_lens_in),
        num_pages(3 + count_pages()),
        table_width(widest_table() + 3),
        q_width((heads() + 2 * shape.kv_heads) * shape.head_dim),
        out_width(heads() * shape.head_dim + 8),
        q(GpuArray<T>::random(static_cast<std::size_t>(num_seqs() * q_width), seed, -shape.spread,
                              shape.spread)),
        kv(static_cast<std::size_t>(num_pages * view(nullptr).block_stride())),
        out(static_cast<std::size_t>(num_seqs() * out_width)),
        tables(static_cast<std::size_t>(num_seqs() * table_width)),
        lens(lens_in),
        groups(lens_in.size()),
        members(lens_in.size()) {
    std::vector<BlockId> pages(static_cast<std::size_t>(num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    for (std::size_t i = pages.size(); i > 1; --i)
      std::swap(pages[i - 1],
                pages[philox4x32(seed, {static_cast<std::uint32_t>(i), 1, 1, 1})[0] % i]);
    std::size_t next = 0;
    for (std::int64_t s = 0; s < num_seqs(); ++s) {
      for (std::int64_t i = 0; i < table_width; ++i) {
        const bool used = i * shape.block_size < max_lens[static_cast<std::size_t>(s)];
        tables.host[static_cast<std::size_t>(s * table_width + i)] =
            used ? pages[next++] : 0x7fffffff;
      }
    }
    tables.upload();
    fill(seed + 1);
    original_ = kv.host;
    poison();
  }

  [[nodiscard]] std::int64_t heads() const { return shape.group * shape.kv_heads; }
  [[nodiscard]] std::int64_t num_seqs() const { return static_cast<std::int64_t>(max_lens.size()); }
  [[nodiscard]] float scale() const {
    return shape.scale != 0.f ? shape.scale : 1.f / std::sqrt(static_cast<float>(shape.head_dim));
  }

  /// New lengths, at most `max_lens`.
  void set_lens(const std::vector<std::int32_t>& values) {
    lens.host = values;
    lens.upload();
    poison();
  }

  [[nodiscard]] KvView<Kv> view(Stored* data) const {
    return {data, num_pages, shape.block_size, shape.kv_heads, shape.head_dim};
  }

  DecodeAttentionArgs<T, Kv> args() {
    const std::array<std::int64_t, 3> extents{num_seqs(), heads(), shape.head_dim};
    return {.q = {q.data(), extents, {q_width, shape.head_dim, 1}},
            .kv = view(kv.data()),
            .kv_lens = {lens.data(), {num_seqs()}},
            .block_tables = {tables.data(), {num_seqs(), table_width}},
            .scale = scale(),
            .out = {out.data(), extents, {out_width, shape.head_dim, 1}}};
  }

  /// Makes `members` begin with the pages of the first of them, as far as these hold `num_keys`
  /// keys.
  void share(const std::vector<std::int64_t>& members, std::int64_t num_keys) {
    for (const std::int64_t s : members) {
      for (std::int64_t i = 0; i < num_keys / shape.block_size; ++i)
        table_entry(s, i) = table_entry(members[0], i);
    }
    tables.upload();
    poison();
  }

  /// What the sequences have in common now, in device memory, padded to one row a sequence.
  SharedPrefixes shared_prefixes() {
    std::vector<SharedPrefixFinder::Row> rows;
    for (std::int64_t s = 0; s < num_seqs(); ++s) {
      const std::int32_t len = std::max(lens.host[static_cast<std::size_t>(s)], 1);
      rows.push_back({{&table_entry(s, 0), static_cast<std::size_t>(table_width)},
                      (len - 1) / static_cast<std::int32_t>(shape.block_size)});
    }
    finder.find(rows, shape.block_size);
    std::fill(groups.host.begin(), groups.host.end(), SharedPrefix{});
    std::fill(members.host.begin(), members.host.end(), PrefixMember{});
    std::copy(finder.groups().begin(), finder.groups().end(), groups.host.begin());
    std::copy(finder.members().begin(), finder.members().end(), members.host.begin());
    groups.upload();
    members.upload();
    return {{groups.data(), {num_seqs()}}, {members.data(), {num_seqs()}}};
  }

  /// Runs plan and op; `out.host` has the result.
  void run(cuda::DecodeWorkspace& workspace, Gpu& gpu, const SharedPrefixes& shared = {}) {
    clear_out();
    cuda::plan_decode(VectorView<const std::int32_t>(lens.data(), {num_seqs()}), shape.kv_heads,
                      workspace, gpu.context, shared);
    cuda::decode_attention(args(), workspace, gpu.context);
    gpu.sync();
    out.download();
  }

  void clear_out() {
    std::fill(out.host.begin(), out.host.end(), T(std::numeric_limits<float>::quiet_NaN()));
    out.upload();
  }

  /// Compares `out.host` with the formula in double.
  void check() {
    for (std::int64_t s = 0; s < num_seqs(); ++s) {
      for (std::int64_t h = 0; h < heads(); ++h) check_row(s, h);
      for (std::int64_t i = heads() * shape.head_dim; i < out_width; ++i)
        if (!std::isnan(static_cast<float>(out_at(s, i)))) FAIL("wrote past row " << s);
    }
    CHECK(out.guards_intact());
  }

 private:
  [[nodiscard]] BlockId& table_entry(std::int64_t s, std::int64_t i) {
    return tables.host[static_cast<std::size_t>(s * table_width + i)];
  }
  [[nodiscard]] std::int64_t count_pages() const {
    std::int64_t count = 0;
    for (const std::int32_t len : max_lens) count += ceil_div<std::int64_t>(len, shape.block_size);
    return count;
  }
  [[nodiscard]] std::int64_t widest_table() const {
    std::int64_t width = 0;
    for (const std::int32_t len : max_lens)
      width = std::max(width, ceil_div<std::int64_t>(len, shape.block_size));
    return width;
  }
  [[nodiscard]] T out_at(std::int64_t s, std::int64_t i) const {
    return out.host[static_cast<std::size_t>(s * out_width + i)];
  }
  /// A key (which = 0) or value (1) in memory that is laid out as `kv`.
  struct Row {
    Stored* data;
    float* scale;  ///< null in formats without scales
  };
  [[nodiscard]] Row row_in(std::vector<Stored>& memory, std::int64_t page, std::int64_t slot,
                           std::int64_t head, int which) const {
    const KvView<Kv> all = view(memory.data());
    Stored* const tile = all.k(static_cast<BlockId>(page), which * shape.kv_heads + head);
    Row out{tile + slot * shape.head_dim, nullptr};
    if constexpr (ScaledKvFormat<Kv>) out.scale = all.scales(tile) + slot;
    return out;
  }
  [[nodiscard]] Row row_at(std::vector<Stored>& memory, std::int64_t s, std::int64_t position,
                           std::int64_t head, int which) const {
    const std::int64_t page =
        tables.host[static_cast<std::size_t>(s * table_width + position / shape.block_size)];
    return row_in(memory, page, position % shape.block_size, head, which);
  }
  [[nodiscard]] std::vector<float> values_at(std::int64_t s, std::int64_t position,
                                             std::int64_t head, int which) {
    const Row row = row_at(kv.host, s, position, head, which);
    std::vector<float> out(static_cast<std::size_t>(shape.head_dim));
    if constexpr (ScaledKvFormat<Kv>) {
      Kv::load(row.data, *row.scale, shape.head_dim, out.data());
    } else {
      std::copy_n(row.data, shape.head_dim, out.begin());
    }
    return out;
  }

  /// Random keys and values in all pages; those of a format with scales have one in four rows that
  /// are a thousandth of the others, and one in seven of zeros.
  void fill(std::uint64_t seed) {
    const auto random =
        GpuArray<T>::random(static_cast<std::size_t>(num_pages * 2 * shape.kv_heads *
                                                     shape.block_size * shape.head_dim),
                            seed, -shape.spread, shape.spread);
    std::size_t next = 0;
    std::vector<T> row(static_cast<std::size_t>(shape.head_dim));
    for (std::int64_t page = 0; page < num_pages; ++page) {
      for (int which = 0; which < 2; ++which) {
        for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
          for (std::int64_t slot = 0; slot < shape.block_size; ++slot) {
            std::copy_n(random.host.begin() + static_cast<std::ptrdiff_t>(next), shape.head_dim,
                        row.begin());
            next += row.size();
            const Row to = row_in(kv.host, page, slot, head, which);
            if constexpr (ScaledKvFormat<Kv>) {
              const auto number = next / row.size();
              const float factor = number % 7 == 3 ? 0.f : number % 4 == 1 ? 1e-3f : 1.f;
              for (T& x : row) x = T(static_cast<float>(x) * factor);
              if constexpr (FixedScaleKvFormat<Kv>) {
                *to.scale =
                    Kv::store(row.data(), shape.head_dim, to.data, which == 0 ? 0.0173f : 0.25f);
              } else {
                *to.scale = Kv::store(row.data(), shape.head_dim, to.data);
              }
            } else {
              std::copy(row.begin(), row.end(), to.data);
            }
          }
        }
      }
    }
  }

  /// Everything but the keys and values that exist becomes NaN.
  void poison() {
    std::vector<Stored> values(original_.size());
    std::memset(values.data(), 0xff, values.size() * sizeof(Stored));  // NaN, of any float
    for (std::int64_t s = 0; s < num_seqs(); ++s) {
      for (std::int64_t i = 0; i < lens.host[static_cast<std::size_t>(s)]; ++i) {
        for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
          for (int which = 0; which < 2; ++which) {
            const Row from = row_at(original_, s, i, head, which);
            const Row to = row_at(values, s, i, head, which);
            std::copy_n(from.data, shape.head_dim, to.data);
            if (from.scale != nullptr) *to.scale = *from.scale;
          }
        }
      }
    }
    kv.host = values;
    kv.upload();
  }

  void check_row(std::int64_t s, std::int64_t h) {
    const auto len = std::max(lens.host[static_cast<std::size_t>(s)], 0);
    const auto d = static_cast<std::size_t>(shape.head_dim);
    const T* const query = q.host.data() + s * q_width + h * shape.head_dim;
    std::vector<double> scores(static_cast<std::size_t>(len)), sum(d), sum_abs(d);
    double max = -1e300, max_abs = 0, total = 0;
    for (std::int32_t i = 0; i < len; ++i) {
      const std::vector<float> key = values_at(s, i, h / shape.group, 0);
      double score = 0, abs = 0;
      for (std::size_t j = 0; j < d; ++j) {
        const double product = double{static_cast<float>(query[j])} * key[j];
        score += product, abs += std::fabs(product);
      }
      scores[static_cast<std::size_t>(i)] = score * scale();
      max = std::max(max, score * scale()), max_abs = std::max(max_abs, abs * std::fabs(scale()));
    }
    for (double& x : scores) total += x = std::exp(x - max);
    for (std::int32_t i = 0; i < len; ++i) {
      const std::vector<float> value = values_at(s, i, h / shape.group, 1);
      const double p = scores[static_cast<std::size_t>(i)] / total;
      for (std::size_t j = 0; j < d; ++j) {
        sum[j] += p * value[j];
        sum_abs[j] += p * std::fabs(value[j]);
      }
    }
    // One rounding of the result; roundings of the weights, of the scores (relative in the weight)
    // and of the exponential.
    const double u = kUnit<T>, delta = 4 * 0x1p-24 * std::sqrt(double(shape.head_dim)) * max_abs;
    for (std::size_t j = 0; j < d; ++j) {
      const double got = static_cast<float>(out_at(s, h * shape.head_dim + std::int64_t(j)));
      const double bound =
          1.5 * (u * std::fabs(sum[j]) + (u + 2 * delta + 0x1p-20) * sum_abs[j]) + 1e-7 * u;
      if (!(std::fabs(got - sum[j]) <= bound))
        FAIL("sequence " << s << " of " << len << " keys, head " << h << ", column " << j << ": "
                         << got << ", expected " << sum[j] << " ± " << bound);
    }
  }

  std::vector<Stored> original_;
};

}  // namespace nanovllm::test
