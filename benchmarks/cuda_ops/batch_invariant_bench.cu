// What one order of summation costs: dense layers of Qwen3-0.6B and 8B and attention in bf16, as
// the default backend and as the batch-invariant one runs them. Arguments: JSON file, and
// optionally "linear" or "attention" alone.

#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/attention/decode/decode_attention.cuh"
#include "nanovllm/cuda/attention/varlen/varlen_attention.cuh"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/with/batch_invariant/attention/attention.cuh"
#include "nanovllm/with/batch_invariant/linear/engine.cuh"

namespace nanovllm::bench {
namespace {

using cuda::DeviceBuffer;
using cuda::DeviceMatrix;

struct Shape {
  const char* name;
  std::int64_t n, k;
  bool accumulate, is_head;
};

constexpr Shape kShapes[] = {
    {"0.6B qkv", 4096, 1024, false, false},      {"0.6B o", 1024, 2048, true, false},
    {"0.6B gate_up", 6144, 1024, false, false},  {"0.6B down", 1024, 3072, true, false},
    {"0.6B lm_head", 151936, 1024, false, true}, {"8B qkv", 6144, 4096, false, false},
    {"8B o", 4096, 4096, true, false},           {"8B gate_up", 24576, 4096, false, false},
    {"8B down", 4096, 12288, true, false},       {"8B lm_head", 151936, 4096, false, true}};

struct Bench {
  cuda::Stream stream;
  cuda::Context context = cuda::Context::on(stream.get());
  Report report;

  template <class Out>
  void linear(const Shape& s) {
    const std::int64_t most = s.is_head ? 256 : 8192;
    std::deque<DeviceMatrix<bf16>> weights;
    std::vector<const DeviceMatrix<bf16>*> pointers;
    const std::int64_t copies =
        std::max<std::int64_t>(1, (std::int64_t{200} << 20) / (2 * s.n * s.k));
    for (std::int64_t i = 0; i < copies; ++i) {
      weights.emplace_back(s.n, s.k);
      cuda::detail::fill_noise(weights.back().data(), s.n * s.k, context);
      pointers.push_back(&weights.back());
    }
    DeviceBuffer<bf16> x(std::size_t(most * s.k));
    DeviceBuffer<Out> y(std::size_t(most * s.n));
    cuda::detail::fill_noise(x.data(), most * s.k, context);
    cuda::detail::fill_noise(y.data(), most * s.n, context);
    cuda::DenseEngine<cuda::DeviceArchitectures> fast;
    cuda::BatchInvariantLinear invariant;
    std::vector<std::int64_t> rows;
    for (const std::int64_t m : cuda::kRowBuckets) {
      if (m <= most) rows.push_back(m);
    }
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    cuda::DenseTuner(fast, context).tune_linear<bf16, Out>(pointers, s.accumulate, rows);
    const auto middle = Clock::now();
    invariant.tune<bf16, Out>(pointers, false, rows, context);
    const std::chrono::duration<double> first = middle - start, second = Clock::now() - middle;
    std::printf("%s: tuned in %.2f and %.2f s\n", s.name, first.count(), second.count());
    for (const std::int64_t m : {64, 256, 1024, 8192}) {
      if (m > most) continue;
      int all = 0, keep = 0;
      for (const cuda::BatchInvariantPlan& plan :
           invariant.blas_candidates<bf16, Out>(m, s.n, s.k)) {
        ++all;
        keep += invariant.count_differences<bf16, Out>(plan, m, s.n, s.k, context) == 0;
      }
      std::printf("%s M=%lld: %d of %d algorithms of cuBLASLt keep the order\n", s.name,
                  static_cast<long long>(m), keep, all);
    }
    for (const std::int64_t m : {1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192}) {
      if (m > most) continue;
      const double bytes = 2.0 * (s.n * s.k + m * s.k) + double(sizeof(Out)) * m * s.n;
      const double flop = 2.0 * m * s.n * s.k;
      const int calls = m <= 256 ? int(std::clamp<double>(3e8 / bytes, 2, 20)) : 2;
      const auto args = [&](int i, bool accumulate) {
        return LinearArgs<bf16, DeviceMatrix<bf16>, Out>{
            .x = MatrixView<const bf16>(x.data(), {m, s.k}),
            .weight = pointers[std::size_t(i) % pointers.size()],
            .y = MatrixView<Out>(y.data(), {m, s.n}),
            .accumulate = accumulate};
      };
      const std::string name = std::string(s.name) + " M=" + std::to_string(m);
      report.add(name + " default",
                 time_in_graph(
                     context, [&](int i) { cuda::linear(args(i, s.accumulate), fast, context); },
                     calls, 10),
                 bytes, flop);
      const cuda::BatchInvariantPlan plan = invariant.plan_for(args(0, false), context);
      const std::string way =
          plan.is_blas ? std::string("cuBLASLt")
                       : std::to_string(plan.block.rows) + "x" + std::to_string(plan.block.tokens);
      report.add(name + " batch-invariant (" + way + ")",
                 time_in_graph(
                     context, [&](int i) { invariant.run(args(i, false), context); }, calls, 10),
                 bytes, flop);
    }
  }

  /// Both ops of both kinds on a pool of pages of 64 tokens, head_dim 128.
  void attention(std::int64_t batch, std::int64_t q_len, std::int64_t kv_len, std::int64_t heads,
                 std::int64_t kv_heads) {
    constexpr std::int64_t kDim = 128, kPage = 64;
    const std::int64_t pages_a_seq = ceil_div(kv_len, kPage), pages = batch * pages_a_seq;
    const double kv_bytes = 4. * double(batch * kv_len * kv_heads * kDim);
    const int shares =
        q_len > 1 ? 1 : int(std::clamp<std::int64_t>(std::int64_t(512e6 / kv_bytes), 2, 128));
    DeviceBuffer<bf16> pool(std::size_t(2 * kv_heads * kPage * kDim * pages * shares));
    const std::int64_t n = batch * q_len;
    DeviceBuffer<bf16> q(std::size_t(n * heads * kDim)), k(std::size_t(n * kv_heads * kDim)),
        v(k.size()), out(q.size());
    for (auto* buffer : {&pool, &q, &k, &v})
      cuda::detail::fill_noise(buffer->data(), std::int64_t(buffer->size()), context);
    std::vector<BlockId> ids(static_cast<std::size_t>(pages * shares));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = BlockId(i * 7919 % ids.size());
    std::vector<std::int32_t> starts;
    const std::vector<std::int32_t> lens(static_cast<std::size_t>(batch),
                                         static_cast<std::int32_t>(kv_len));
    for (std::int64_t i = 0; i <= batch; ++i) starts.push_back(std::int32_t(i * q_len));
    const auto there = [](const auto& values) {
      DeviceBuffer<typename std::decay_t<decltype(values)>::value_type> to(values.size());
      cuda::check_cuda(
          cudaMemcpy(to.data(), values.data(), to.size_bytes(), cudaMemcpyHostToDevice),
          "cudaMemcpy");
      return to;
    };
    const auto tables = there(ids);
    const auto lens_there = there(lens), starts_there = there(starts);
    const VectorView<const std::int32_t> kv_lens(lens_there.data(), {batch});
    const VectorView<const std::int32_t> query_starts(starts_there.data(), {batch + 1});
    const bool decodes = q_len == 1;
    cuda::DecodeWorkspace decode(batch, kv_heads, heads / kv_heads, kDim, context);
    cuda::VarlenWorkspace varlen(batch, n, context);
    cuda::BatchInvariantAttention invariant(
        {.limits = {.max_num_batched_tokens = n, .max_num_seqs = batch, .max_model_len = kv_len},
         .vocab_size = 1,
         .num_heads = heads,
         .num_kv_heads = kv_heads,
         .head_dim = kDim},
        context);
    invariant.plan({.num_decodes = decodes ? batch : 0,
                    .num_tokens = n,
                    .query_starts = query_starts,
                    .kv_lens = kv_lens},
                   context);
    if (decodes) {
      cuda::plan_decode(kv_lens, kv_heads, decode, context);
    } else {
      cuda::plan_varlen(query_starts, kv_lens, n, varlen, context);
    }
    const KvView<bf16> cache{pool.data(), pages * shares, kPage, kv_heads, kDim};
    const std::array<std::int64_t, 3> wide{n, heads, kDim}, narrow{n, kv_heads, kDim};
    const float scale = 1.f / std::sqrt(float(kDim));
    const auto table = [&](int i) {
      return MatrixView<const BlockId>(tables.data() + i % shares * pages, {batch, pages_a_seq});
    };
    const auto run = [&](int i, bool in_order) {
      if (decodes) {
        const DecodeAttentionArgs<bf16> args{.q = {q.data(), wide},
                                             .kv = cache,
                                             .kv_lens = kv_lens,
                                             .block_tables = table(i),
                                             .scale = scale,
                                             .out = {out.data(), wide}};
        in_order ? invariant.run(args, context) : cuda::decode_attention(args, decode, context);
      } else {
        const VarlenAttentionArgs<bf16> args{.q = {q.data(), wide},
                                             .k = {k.data(), narrow},
                                             .v = {v.data(), narrow},
                                             .kv = cache,
                                             .query_starts = query_starts,
                                             .kv_lens = kv_lens,
                                             .block_tables = table(i),
                                             .has_prefix = q_len != kv_len,
                                             .scale = scale,
                                             .out = {out.data(), wide}};
        in_order ? invariant.run(args, context)
                 : cuda::varlen_attention<cuda::DeviceArchitectures>(args, varlen, context);
      }
    };
    if (!decodes) {  // what the batch-invariant kernel is made of
      const auto mma = [&](int i) {
        cuda::varlen_attention_mma(
            VarlenAttentionArgs<bf16, bf16, HeadShape<kDim>>{.q = {q.data(), wide},
                                                             .k = {k.data(), narrow},
                                                             .v = {v.data(), narrow},
                                                             .kv = cache,
                                                             .query_starts = query_starts,
                                                             .kv_lens = kv_lens,
                                                             .block_tables = table(i),
                                                             .scale = scale,
                                                             .out = {out.data(), wide}},
            varlen.schedule(), context);
      };
      report.add(concat("varlen ", batch, " x ", q_len, ", heads ", heads, "/", kv_heads, " mma"),
                 time_in_graph(context, mma, 4, 10), 0, 0);
    }
    const double flop = decodes ? 0
                                : 4. * kDim * double(heads * batch * q_len) *
                                      (double(kv_len) - double(q_len - 1) / 2);
    for (const bool in_order : {false, true}) {
      report.add(
          concat(decodes ? "decode " : "varlen ", batch, " x ", q_len, " of ", kv_len, ", heads ",
                 heads, "/", kv_heads, in_order ? " batch-invariant" : " default"),
          time_in_graph(
              context, [&](int i) { run(i, in_order); }, decodes ? std::max(20, shares) : 4, 10),
          decodes ? kv_bytes : 0, flop);
    }
  }
};

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  nanovllm::bench::Bench bench;
  const auto runs = [&](const char* part) { return argc < 3 || std::strcmp(argv[2], part) == 0; };
  if (runs("attention")) {
    for (const auto& [batch, context] : {std::pair<int, int>{1, 512},
                                         {1, 1024},
                                         {1, 32768},
                                         {8, 1024},
                                         {64, 512},
                                         {64, 1024},
                                         {64, 4096},
                                         {256, 512},
                                         {256, 1024}})
      bench.attention(batch, 1, context, 16, 8);
    bench.attention(64, 1, 1024, 32, 8);
    for (const auto& [batch, length] :
         {std::pair<int, int>{32, 256}, {16, 512}, {16, 1024}, {4, 4096}, {1, 16384}})
      bench.attention(batch, length, length, 16, 8);
  }
  if (runs("linear")) {
    for (const auto& shape : nanovllm::bench::kShapes)
      shape.is_head ? bench.linear<float>(shape) : bench.linear<nanovllm::bf16>(shape);
  }
  if (argc > 1) bench.report.write(argv[1]);
}
