// Attention at Qwen3's head counts: prompts beside the multiply-add rate, decodes beside memory. The
// cache is of the queries' type, or of eight bits.

#include "nanovllm/cpu/kernels/attention.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ceilings.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/kernels/kv_store.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "options.hpp"

namespace {

using nanovllm::bf16;
using nanovllm::BlockId;
using nanovllm::DType;
using nanovllm::cpu::AlignedBuffer;

constexpr std::int64_t kHeadDim = 128, kKvHeads = 8, kBlockSize = 16;

/// `num_seqs` sequences of `kv_len` tokens, the last `q_len` of which are queries; random data in
/// shuffled blocks.
template <class T, class Kv>
struct Batch {
  std::int64_t num_seqs, q_len, kv_len, heads;
  std::int64_t rows = num_seqs * q_len, blocks = nanovllm::ceil_div(kv_len, kBlockSize);
  AlignedBuffer<T> q{rows * heads * kHeadDim}, out{q.size()}, new_kv{rows * kKvHeads * kHeadDim};
  nanovllm::KvView<Kv> kv = shape();
  AlignedBuffer<nanovllm::KvStored<Kv>> cache{kv.num_blocks * kv.block_stride()};
  std::vector<BlockId> tables = std::vector<BlockId>(static_cast<std::size_t>(num_seqs * blocks));
  std::vector<std::int32_t> starts, lens;

  Batch(std::int64_t seqs, std::int64_t queries, std::int64_t keys, std::int64_t num_heads)
      : num_seqs(seqs), q_len(queries), kv_len(keys), heads(num_heads) {
    std::mt19937 random(1);
    fill(q, random);
    kv.data = cache.data();
    fill_cache(random);
    std::iota(tables.begin(), tables.end(), 0);
    std::shuffle(tables.begin(), tables.end(), random);
    for (std::int64_t s = 0; s <= num_seqs; ++s) {
      starts.push_back(static_cast<std::int32_t>(s * q_len));
    }
    lens.assign(static_cast<std::size_t>(num_seqs), static_cast<std::int32_t>(kv_len));
  }

  static void fill(AlignedBuffer<T>& buffer, std::mt19937& random) {
    std::normal_distribution<float> normal;
    std::vector<T> values(65'537);
    for (T& value : values) value = T(normal(random));
    for (std::int64_t i = 0; i < buffer.size(); ++i) {
      buffer.data()[i] = values[static_cast<std::size_t>(i) % values.size()];
    }
  }

  [[nodiscard]] nanovllm::KvView<Kv> shape() const {
    nanovllm::KvView<Kv> out;
    out.num_blocks = num_seqs * blocks;
    out.block_size = kBlockSize;
    out.num_kv_heads = kKvHeads;
    out.head_dim = kHeadDim;
    return out;
  }

  void fill_cache(std::mt19937& random) {
    AlignedBuffer<T> values(8 * kBlockSize * kHeadDim);
    fill(values, random);
    for (std::int64_t row = 0; row < kv.num_blocks * 2 * kKvHeads * kBlockSize; ++row) {
      const std::int64_t tile = row / kBlockSize;
      nanovllm::cpu::detail::store_row(kv, values.data() + row % (8 * kBlockSize) * kHeadDim,
                                       static_cast<BlockId>(tile / (2 * kKvHeads)),
                                       tile % (2 * kKvHeads), row % kBlockSize);
    }
  }

  void attend() {
    const float scale = 1.f / std::sqrt(static_cast<float>(kHeadDim));
    if (q_len == 1) {
      nanovllm::cpu::decode_attention(
          nanovllm::DecodeAttentionArgs<T, Kv>{.q = {q.data(), {rows, heads, kHeadDim}},
                                               .kv = kv,
                                               .kv_lens = {lens.data(), {num_seqs}},
                                               .block_tables = {tables.data(), {num_seqs, blocks}},
                                               .scale = scale,
                                               .out = {out.data(), {rows, heads, kHeadDim}}},
          cpu_ops::context());
      return;
    }
    nanovllm::cpu::varlen_attention(
        nanovllm::VarlenAttentionArgs<T, Kv>{.q = {q.data(), {rows, heads, kHeadDim}},
                                             .k = {new_kv.data(), {rows, kKvHeads, kHeadDim}},
                                             .v = {new_kv.data(), {rows, kKvHeads, kHeadDim}},
                                             .kv = kv,
                                             .query_starts = {starts.data(), {num_seqs + 1}},
                                             .kv_lens = {lens.data(), {num_seqs}},
                                             .block_tables = {tables.data(), {num_seqs, blocks}},
                                             .scale = scale,
                                             .out = {out.data(), {rows, heads, kHeadDim}}},
        cpu_ops::context());
  }
};

/// Counts the multiply-adds of visible (query, key) pairs alone, against those of float32.
template <class T, class Kv>
void prompt(benchmark::State& state, std::int64_t q_len, std::int64_t kv_len, std::int64_t heads) {
  Batch<T, Kv> batch(1, q_len, kv_len, heads);
  const double pairs = static_cast<double>(q_len) * static_cast<double>(2 * kv_len - q_len + 1) / 2;
  cpu_ops::measure(
      state, pairs * static_cast<double>(4 * heads * kHeadDim), "GFLOP/s",
      [] { return cpu_ops::arithmetic_rate(cpu_ops::context(), DType::float32); },
      [&] { batch.attend(); });
}

/// Counts every key and value once, against reading memory.
template <class T, class Kv>
void decode(benchmark::State& state, std::int64_t num_seqs, std::int64_t kv_len,
            std::int64_t heads) {
  Batch<T, Kv> batch(num_seqs, 1, kv_len, heads);
  constexpr std::int64_t kRowBytes =
      kHeadDim * sizeof(nanovllm::KvStored<Kv>) + nanovllm::kKvScaleBytes<Kv>;
  cpu_ops::measure(
      state, static_cast<double>(num_seqs * kv_len * 2 * kKvHeads * kRowBytes), "GB/s",
      [] { return cpu_ops::read_bandwidth(cpu_ops::context()); }, [&] { batch.attend(); });
}

template <class T, class Kv = T>
void register_all(const std::string& type) {
  const auto add = [&](const std::string& label, auto function) {
    benchmark::RegisterBenchmark(("attention/" + type + "/" + label).c_str(), function)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (std::int64_t heads : {16, 32}) {  // Qwen3-0.6B and 8B
    const std::string suffix = "/heads:" + std::to_string(heads);
    for (auto [q_len, kv_len] : {std::pair{512, 512}, {2048, 2048}, {512, 4096}}) {
      const std::int64_t queries = q_len, keys = kv_len;
      add("prompt/q:" + std::to_string(q_len) + "/kv:" + std::to_string(kv_len) + suffix,
          [=](benchmark::State& state) { prompt<T, Kv>(state, queries, keys, heads); });
    }
    for (auto [num_seqs, kv_len] :
         {std::pair{1, 512}, {1, 1024}, {1, 8192}, {8, 1024}, {8, 8192}, {16, 512}, {16, 4096}}) {
      const std::int64_t seqs = num_seqs, keys = kv_len;
      add("decode/n:" + std::to_string(num_seqs) + "/kv:" + std::to_string(kv_len) + suffix,
          [=](benchmark::State& state) { decode<T, Kv>(state, seqs, keys, heads); });
    }
  }
}

[[maybe_unused]] const bool registered =
    (register_all<bf16>("bfloat16"), register_all<float>("float32"),
     register_all<bf16, nanovllm::Int8Kv>("bfloat16_int8_kv"),
     register_all<bf16, nanovllm::Fp8Kv>("bfloat16_fp8_kv"), true);

}  // namespace
