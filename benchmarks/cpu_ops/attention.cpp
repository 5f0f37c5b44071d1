// Attention at Qwen3's head counts: prompts beside the multiply-add rate, decodes beside memory.

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
#include "options.hpp"

namespace {

using nanovllm::bf16;
using nanovllm::BlockId;
using nanovllm::DType;
using nanovllm::cpu::AlignedBuffer;

constexpr std::int64_t kHeadDim = 128, kKvHeads = 8, kBlockSize = 16;

/// `num_seqs` sequences of `kv_len` tokens, the last `q_len` of which are queries; random data in
/// shuffled blocks.
template <class T>
struct Batch {
  std::int64_t num_seqs, q_len, kv_len, heads;
  std::int64_t rows = num_seqs * q_len, blocks = nanovllm::ceil_div(kv_len, kBlockSize);
  AlignedBuffer<T> q{rows * heads * kHeadDim}, out{q.size()}, new_kv{rows * kKvHeads * kHeadDim};
  AlignedBuffer<T> cache{num_seqs * blocks * 2 * kKvHeads * kBlockSize * kHeadDim};
  std::vector<BlockId> tables = std::vector<BlockId>(static_cast<std::size_t>(num_seqs * blocks));
  std::vector<std::int32_t> starts, lens;

  Batch(std::int64_t seqs, std::int64_t queries, std::int64_t keys, std::int64_t num_heads)
      : num_seqs(seqs), q_len(queries), kv_len(keys), heads(num_heads) {
    std::mt19937 random(1);
    fill(q, random);
    fill(cache, random);
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

  void attend() {
    const nanovllm::KvView<T> kv{cache.data(), num_seqs * blocks, kBlockSize, kKvHeads, kHeadDim};
    const float scale = 1.f / std::sqrt(static_cast<float>(kHeadDim));
    if (q_len == 1) {
      nanovllm::cpu::decode_attention(
          nanovllm::DecodeAttentionArgs<T>{.q = {q.data(), {rows, heads, kHeadDim}},
                                           .kv = kv,
                                           .kv_lens = {lens.data(), {num_seqs}},
                                           .block_tables = {tables.data(), {num_seqs, blocks}},
                                           .scale = scale,
                                           .out = {out.data(), {rows, heads, kHeadDim}}},
          cpu_ops::context());
      return;
    }
    nanovllm::cpu::varlen_attention(
        nanovllm::VarlenAttentionArgs<T>{.q = {q.data(), {rows, heads, kHeadDim}},
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
template <class T>
void prompt(benchmark::State& state, std::int64_t q_len, std::int64_t kv_len, std::int64_t heads) {
  Batch<T> batch(1, q_len, kv_len, heads);
  const double pairs = static_cast<double>(q_len) * static_cast<double>(2 * kv_len - q_len + 1) / 2;
  cpu_ops::measure(
      state, pairs * static_cast<double>(4 * heads * kHeadDim), "GFLOP/s",
      [] { return cpu_ops::arithmetic_rate(cpu_ops::context(), DType::float32); },
      [&] { batch.attend(); });
}

/// Counts every key and value once, against reading memory.
template <class T>
void decode(benchmark::State& state, std::int64_t num_seqs, std::int64_t kv_len,
            std::int64_t heads) {
  Batch<T> batch(num_seqs, 1, kv_len, heads);
  const auto elements = static_cast<double>(num_seqs * kv_len * 2 * kKvHeads * kHeadDim);
  cpu_ops::measure(
      state, elements * sizeof(T), "GB/s",
      [] { return cpu_ops::read_bandwidth(cpu_ops::context()); }, [&] { batch.attend(); });
}

template <class T>
void register_all() {
  const auto add = [](const std::string& label, auto function) {
    const std::string type(name(nanovllm::kDType<T>));
    benchmark::RegisterBenchmark(("attention/" + type + "/" + label).c_str(), function)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (std::int64_t heads : {16, 32}) {  // Qwen3-0.6B and 8B
    const std::string suffix = "/heads:" + std::to_string(heads);
    for (auto [q_len, kv_len] : {std::pair{512, 512}, {2048, 2048}, {512, 4096}}) {
      const std::int64_t queries = q_len, keys = kv_len;
      add("prompt/q:" + std::to_string(q_len) + "/kv:" + std::to_string(kv_len) + suffix,
          [=](benchmark::State& state) { prompt<T>(state, queries, keys, heads); });
    }
    for (auto [num_seqs, kv_len] : {std::pair{1, 512}, {1, 8192}, {16, 512}, {16, 4096}}) {
      const std::int64_t seqs = num_seqs, keys = kv_len;
      add("decode/n:" + std::to_string(num_seqs) + "/kv:" + std::to_string(kv_len) + suffix,
          [=](benchmark::State& state) { decode<T>(state, seqs, keys, heads); });
    }
  }
}

[[maybe_unused]] const bool registered = (register_all<bf16>(), register_all<float>(), true);

}  // namespace
