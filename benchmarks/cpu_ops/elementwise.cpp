// The ops that touch every element once or twice, at the sizes of Qwen3-0.6B, beside memory. For
// few rows the operands stay in cache between calls, as they do in a model, and the share
// exceeds 1.

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ceilings.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/kernels/rowwise.hpp"
#include "options.hpp"

namespace {

using nanovllm::bf16;
using nanovllm::cpu::AlignedBuffer;

constexpr std::int64_t kHidden = 1024, kIntermediate = 3072, kHeads = 16, kKvHeads = 8,
                       kHeadDim = 128, kBlockSize = 16;

template <class T>
AlignedBuffer<T> random_buffer(std::int64_t size) {
  AlignedBuffer<T> out(size);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < size; ++i) {
    out.data()[i] = i < 65'537 ? T(normal(random)) : out.data()[i - 65'537];
  }
  return out;
}

template <class Body>
void against_memory(benchmark::State& state, double bytes, const Body& body) {
  cpu_ops::measure(
      state, bytes, "GB/s", [] { return cpu_ops::read_bandwidth(cpu_ops::context()); }, body);
}

/// Reads x, residual and weight, writes residual and out.
template <class T>
void add_rms_norm(benchmark::State& state, std::int64_t n) {
  auto x = random_buffer<T>(n * kHidden), residual = random_buffer<T>(n * kHidden),
       weight = random_buffer<T>(kHidden);
  const nanovllm::AddRmsNormArgs<T> args{.x = {x.data(), {n, kHidden}},
                                         .residual = {residual.data(), {n, kHidden}},
                                         .weight = {weight.data(), {kHidden}},
                                         .out = {x.data(), {n, kHidden}}};
  against_memory(state, static_cast<double>(4 * n * kHidden) * sizeof(T),
                 [&] { nanovllm::cpu::add_rms_norm(args, cpu_ops::context()); });
}

/// Reads gate and up, writes out.
template <class T>
void silu_mul(benchmark::State& state, std::int64_t n) {
  auto gate_up = random_buffer<T>(n * 2 * kIntermediate), out = random_buffer<T>(n * kIntermediate);
  const nanovllm::SiluMulArgs<T> args{.gate_up = {gate_up.data(), {n, 2 * kIntermediate}},
                                      .out = {out.data(), {n, kIntermediate}}};
  against_memory(state, static_cast<double>(3 * n * kIntermediate) * sizeof(T),
                 [&] { nanovllm::cpu::silu_mul(args, cpu_ops::context()); });
}

/// Reads q, k, v and the table, writes q, k and both caches. Weights of one and true rotations keep
/// the values, which are updated in place again and again, of normal size.
template <class T>
void qk_norm_rope_store(benchmark::State& state, std::int64_t n) {
  const std::int64_t blocks = nanovllm::ceil_div(n, kBlockSize);
  auto q = random_buffer<T>(n * kHeads * kHeadDim), k = random_buffer<T>(n * kKvHeads * kHeadDim),
       v = random_buffer<T>(n * kKvHeads * kHeadDim),
       cache = random_buffer<T>(blocks * 2 * kKvHeads * kBlockSize * kHeadDim);
  std::vector<T> weight(kHeadDim, T(1.f));
  std::vector<float> table;
  std::vector<std::int32_t> positions;
  std::vector<nanovllm::Slot> slots;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto angle = static_cast<float>(i);
    table.insert(table.end(), kHeadDim / 2, std::cos(angle));
    table.insert(table.end(), kHeadDim / 2, std::sin(angle));
    positions.push_back(static_cast<std::int32_t>(i));
    slots.push_back(i);
  }
  const nanovllm::QkNormRopeStoreArgs<T> args{
      .q = {q.data(), {n, kHeads, kHeadDim}},
      .k = {k.data(), {n, kKvHeads, kHeadDim}},
      .v = {v.data(), {n, kKvHeads, kHeadDim}},
      .q_norm = {weight.data(), {kHeadDim}},
      .k_norm = {weight.data(), {kHeadDim}},
      .positions = {positions.data(), {n}},
      .cos_sin = {table.data(), {n, kHeadDim}},
      .slots = {slots.data(), {n}},
      .kv = {cache.data(), blocks, kBlockSize, kKvHeads, kHeadDim}};
  const auto elements = static_cast<double>(n * kHeadDim * (2 * kHeads + 5 * kKvHeads));
  against_memory(state, elements * sizeof(T),
                 [&] { nanovllm::cpu::qk_norm_rope_store(args, cpu_ops::context()); });
}

template <class T>
void register_all() {
  const auto add = [](const char* op, std::int64_t n, auto function) {
    const std::string label = "elementwise/" + std::string(name(nanovllm::kDType<T>)) + "/" + op +
                              "/n:" + std::to_string(n);
    benchmark::RegisterBenchmark(label.c_str(),
                                 [=](benchmark::State& state) { function(state, n); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  };
  for (std::int64_t n : {1, 16, 512, 4096}) {
    add("add_rms_norm", n, add_rms_norm<T>);
    add("silu_mul", n, silu_mul<T>);
    add("qk_norm_rope_store", n, qk_norm_rope_store<T>);
  }
}

[[maybe_unused]] const bool registered = (register_all<bf16>(), register_all<float>(), true);

}  // namespace
