// Time of varlen_attention: equal prompts of 16k tokens in all, from this step's keys and values
// and from the paged cache, and a chunk after a long prefix, in a cache of 8 bits, too. FLOP are those of visible pairs
// alone, 4 · head_dim each. Argument: path of the JSON file.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cuda_ops/fill_cache.cuh"
#include "cuda_ops/timing.cuh"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/attention/varlen/varlen_attention.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/with/eight_bits/cuda/kv_bytes.cuh"
#include "nanovllm/with/eight_bits/int8_kv.hpp"

namespace nanovllm::bench {
namespace {

struct Case {
  int num_seqs, q_len, prefix, heads, kv_heads, block_size;
  bool paged;
  bool mma = false;   ///< by the kernel for older devices
  int continued = 0;  ///< keys ahead of the first sequence, where the others have none
};

/// About normal: the sum of four uniform numbers, standard deviation 1.
__global__ void fill(bf16* to, std::int64_t size, std::uint64_t seed) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    const auto words = philox4x32(
        seed, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0});
    float sum = -2.f;
    for (int j = 0; j < 4; ++j) sum += static_cast<float>(words[j]) * 0x1p-32f;
    to[i] = bf16(sum * 1.7320508f);
  }
}

template <class T>
cuda::DeviceBuffer<T> upload(const std::vector<T>& values) {
  cuda::DeviceBuffer<T> out(values.size());
  cuda::check_cuda(cudaMemcpy(out.data(), values.data(), out.size_bytes(), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
  return out;
}

constexpr int kHeadDim = 128;

/// One set of inputs; two of them exceed the L2 cache together.
template <class Kv = bf16>
struct Inputs {
  Inputs(const Case& c, std::uint64_t seed, const cuda::Context& context)
      : n(std::int64_t{c.num_seqs} * c.q_len),
        width((c.heads + 2 * c.kv_heads) * kHeadDim),
        blocks_per_seq(ceil_div(c.prefix + c.continued + c.q_len, c.block_size)),
        qkv(n * width),
        out(n * c.heads * kHeadDim),
        pool(std::int64_t{c.num_seqs} * blocks_per_seq *
             KvView<Kv>{nullptr, 0, c.block_size, c.kv_heads, kHeadDim}.block_stride()),
        workspace(c.num_seqs, n, context) {
    fill<<<1024, 256, 0, context.stream>>>(qkv.data(), qkv.size(), seed);
    std::vector<std::int32_t> starts{0}, lens;
    for (int s = 0; s < c.num_seqs; ++s) {
      starts.push_back(starts.back() + c.q_len);
      lens.push_back(c.prefix + (s == 0 ? c.continued : 0) + c.q_len);
    }
    const int num_blocks = c.num_seqs * blocks_per_seq;
    std::vector<BlockId> table(num_blocks);
    for (int i = 0; i < num_blocks; ++i) table[i] = i;
    for (int i = num_blocks - 1; i > 0; --i) {
      const auto word = philox4x32(seed, {static_cast<std::uint32_t>(i), 1, 0, 0})[0];
      std::swap(table[i], table[word % (i + 1)]);
    }
    query_starts = upload(starts);
    kv_lens = upload(lens);
    tables = upload(table);
    const auto slice = [&](int first_head, int heads) {
      return TensorView<const bf16, 3>(qkv.data() + first_head * kHeadDim, {n, heads, kHeadDim},
                                       {width, kHeadDim, 1});
    };
    args.q = slice(0, c.heads);
    args.k = slice(c.heads, c.kv_heads);
    args.v = slice(c.heads + c.kv_heads, c.kv_heads);
    args.kv = {pool.data(), num_blocks, c.block_size, c.kv_heads, kHeadDim};
    if constexpr (ScaledKvFormat<Kv>) {
      fill_cache(args.kv);
    } else {
      fill<<<1024, 256, 0, context.stream>>>(pool.data(), pool.size(), seed + 1);
    }
    args.query_starts = {query_starts.data(), {c.num_seqs + 1}};
    args.kv_lens = {kv_lens.data(), {c.num_seqs}};
    args.block_tables = {tables.data(), {c.num_seqs, blocks_per_seq}};
    args.has_prefix = c.paged;
    args.scale = 1.f / std::sqrt(float{kHeadDim});
    args.out = {out.data(), {n, c.heads, kHeadDim}};
    cuda::plan_varlen(args.query_starts, args.kv_lens, n, workspace, context);
    cuda::check_cuda(cudaStreamSynchronize(context.stream), "cudaStreamSynchronize");
  }

  std::int64_t n, width;
  int blocks_per_seq;
  cuda::DeviceBuffer<bf16> qkv, out;
  cuda::DeviceBuffer<KvStored<Kv>> pool;
  cuda::DeviceBuffer<std::int32_t> query_starts, kv_lens;
  cuda::DeviceBuffer<BlockId> tables;
  cuda::VarlenWorkspace workspace;
  VarlenAttentionArgs<bf16, Kv> args;
};

template <class Kv = bf16>
void measure(const Case& c, const cuda::Context& context, Report& report) {
  std::vector<std::unique_ptr<Inputs<Kv>>> inputs;
  for (int i = 0; i < 2; ++i) inputs.push_back(std::make_unique<Inputs<Kv>>(c, 10 * i, context));
  const Timing timing = time_in_graph(
      context,
      [&](int i) {
        Inputs<Kv>& in = *inputs[i % 2];
        if (c.mma) {
          cuda::varlen_attention_mma(in.args, in.workspace.schedule(), context);
        } else {
          cuda::varlen_attention<cuda::DeviceArchitectures>(in.args, in.workspace, context);
        }
      },
      6, 10);
  const double q = c.q_len;
  const double pairs = c.num_seqs * (q * c.prefix + q * (q + 1) / 2) + q * c.continued;
  const double row = 2.0 * kHeadDim;  // bytes of a head
  const double bytes = inputs[0]->n * 2 * c.heads * row +
                       2.0 * (c.num_seqs * (c.prefix + q) + c.continued) * c.kv_heads * row;
  std::string name = "varlen " + std::to_string(c.num_seqs) + " x " + std::to_string(c.q_len);
  if (c.prefix > 0) name += " behind " + std::to_string(c.prefix);
  name += ", " + std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " heads, ";
  name += c.paged ? "blocks of " + std::to_string(c.block_size) : "new keys";
  if (c.continued > 0) name += ", one behind " + std::to_string(c.continued);
  name += c.mma ? ", mma.sync" : "";
  if constexpr (ScaledKvFormat<Kv>) name += concat(", ", kv_format_name<Kv>());
  report.add(name, timing, bytes, 4.0 * kHeadDim * pairs * c.heads);
  constexpr double kPeak = 770;  // TFLOP/s of cuBLAS on one H200, bf16
  std::printf("%56s %.0f%% of %.0f TFLOP/s\n", "",
              100 * 4e-6 * kHeadDim * pairs * c.heads / timing.median_us / kPeak, kPeak);
}

void plan_time(int num_seqs, int q_len, const cuda::Context& context, Report& report) {
  const Case c{num_seqs, q_len, 0, 8, 1, 64, false};
  Inputs<> inputs(c, 1, context);
  report.add("plan_varlen " + std::to_string(num_seqs) + " x " + std::to_string(q_len),
             time_in_graph(context,
                           [&](int) {
                             cuda::plan_varlen(inputs.args.query_starts, inputs.args.kv_lens,
                                               inputs.n, inputs.workspace, context);
                           }),
             0, 0);
}

void measure_all(Report& report) {
  cuda::Stream stream;
  const cuda::Context context = cuda::Context::on(stream.get());
  for (const auto& [heads, kv_heads] : {std::pair{16, 8}, std::pair{32, 8}}) {
    for (const bool paged : {false, true}) {
      for (int num_seqs = 16; num_seqs >= 1; num_seqs /= 2) {
        measure(Case{num_seqs, 16384 / num_seqs, 0, heads, kv_heads, 64, paged}, context, report);
      }
    }
    for (const int block_size : {16, 256}) {
      measure(Case{4, 4096, 0, heads, kv_heads, block_size, true}, context, report);
    }
    measure(Case{1, 2048, 30720, heads, kv_heads, 64, true}, context, report);
    measure(Case{64, 256, 1024, heads, kv_heads, 64, true}, context, report);
    measure<Int8Kv>(Case{1, 2048, 30720, heads, kv_heads, 64, true}, context, report);
    measure<Int8Kv>(Case{64, 256, 1024, heads, kv_heads, 64, true}, context, report);
    measure(Case{256, 64, 0, heads, kv_heads, 64, false}, context, report);
  }
  measure(Case{1, 16384, 0, 16, 1, 64, false}, context, report);
  for (int num_seqs = 16; num_seqs >= 1; num_seqs /= 4) {
    measure(Case{num_seqs, 16384 / num_seqs, 0, 16, 8, 64, true, true}, context, report);
  }
  for (const int heads : {16, 32}) {
    for (const int continued : {1, 1024, 8192})
      measure(Case{16, 1024, 0, heads, 8, 64, true, false, continued}, context, report);
  }
  plan_time(1, 16384, context, report);
  plan_time(256, 64, context, report);
}

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  nanovllm::bench::Report report;
  nanovllm::bench::measure_all(report);
  if (argc > 1) report.write(argv[1]);
}
