// Times plan_decode and decode_attention of bf16 on caches larger than L2, pages shuffled; caches of
// bf16, and of 8 bits with scales.
// Argument 1: a path for the results as JSON. Argument 2: 'shared', shared prefixes alone, or 'kv',
// the three formats side by side alone.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "fill_cache.cuh"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/attention/decode/decode_attention.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/with/eight_bits/cuda/kv_bytes.cuh"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "timing.cuh"

namespace nanovllm::bench {
namespace {

constexpr std::int64_t kHeadDim = 128;

/// Pseudorandom values in [-1, 1): exponents and mantissas of bf16 from a hash of the index.
__global__ void fill_kernel(bf16* data, std::int64_t size, std::uint32_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < size;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 16, x *= 0x85ebca6bu, x ^= x >> 13, x *= 0xc2b2ae35u, x ^= x >> 16;
    data[i] = bf16(static_cast<float>(x >> 8) * 0x1p-23f - 1.f);
  }
}

void fill(cuda::DeviceBuffer<bf16>& buffer, std::uint32_t seed) {
  fill_kernel<<<1024, 256>>>(buffer.data(), static_cast<std::int64_t>(buffer.size()), seed);
  cuda::check_cuda(cudaDeviceSynchronize(), "fill_kernel");
}

template <class T>
cuda::DeviceBuffer<T> to_device(const std::vector<T>& values) {
  cuda::DeviceBuffer<T> out(values.size());
  cuda::check_cuda(cudaMemcpy(out.data(), values.data(), out.size_bytes(), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
  return out;
}

/// A permutation of 0 … count - 1.
std::vector<BlockId> shuffled(std::int64_t count) {
  std::vector<BlockId> ids(static_cast<std::size_t>(count));
  std::uint64_t state = 12345;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<BlockId>(i);
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(ids[i], ids[(state >> 33) % (i + 1)]);
  }
  return ids;
}

struct Case {
  std::int64_t batch, context, heads, kv_heads, page;
  cuda::DecodeStart start = cuda::DecodeStart::after_predecessor;
};

/// Times one case. Each call of the op reads another share of the pool, which holds at least two
/// steps' keys and 512 MB.
template <class Kv = bf16>
void run_case(const Case& c, const cuda::Context& context, Report& report) {
  const std::int64_t pages_a_seq = ceil_div(c.context, c.page), pages = c.batch * pages_a_seq;
  KvView<Kv> kv{nullptr, pages, c.page, c.kv_heads, kHeadDim};
  const double kv_bytes = 2. * static_cast<double>(c.batch * c.context * c.kv_heads) *
                          (kHeadDim * sizeof(KvStored<Kv>) + kKvScaleBytes<Kv>);
  const int shares = static_cast<int>(
      std::clamp<std::int64_t>(static_cast<std::int64_t>(512e6 / kv_bytes), 2, 512));
  kv.num_blocks *= shares;
  cuda::DeviceBuffer<KvStored<Kv>> pool(
      static_cast<std::size_t>(kv.num_blocks * kv.block_stride()));
  kv.data = pool.data();
  if constexpr (ScaledKvFormat<Kv>) {
    bench::fill_cache(kv);
  } else {
    fill(pool, 1);
  }
  const auto q_size = static_cast<std::size_t>(c.batch * (c.heads + 2 * c.kv_heads) * kHeadDim);
  cuda::DeviceBuffer<bf16> qkv(q_size);
  cuda::DeviceBuffer<bf16> out(static_cast<std::size_t>(c.batch * c.heads * kHeadDim));
  fill(qkv, 2);
  auto tables = to_device(shuffled(pages * shares));
  auto lens = to_device(std::vector<std::int32_t>(static_cast<std::size_t>(c.batch),
                                                  static_cast<std::int32_t>(c.context)));
  const VectorView<const std::int32_t> kv_lens(lens.data(), {c.batch});
  cuda::DecodeWorkspace workspace(c.batch, c.kv_heads, c.heads / c.kv_heads, kHeadDim, context);
  const std::array<std::int64_t, 3> extents{c.batch, c.heads, kHeadDim};
  cuda::plan_decode(kv_lens, c.kv_heads, workspace, context);
  const auto attend = [&](int call) {
    const MatrixView<const BlockId> table(tables.data() + call % shares * pages,
                                          {c.batch, pages_a_seq});
    cuda::decode_attention(
        DecodeAttentionArgs<bf16, Kv, HeadShape<kHeadDim>>{
            .q = {qkv.data(), extents, {(c.heads + 2 * c.kv_heads) * kHeadDim, kHeadDim, 1}},
            .kv = kv,
            .kv_lens = kv_lens,
            .block_tables = table,
            .scale = 1.f / std::sqrt(static_cast<float>(kHeadDim)),
            .out = {out.data(), extents}},
        workspace, context, c.start);
  };
  const auto timing = bench::time_in_graph(context, attend, std::max(20, shares));
  const double flop = 4. * static_cast<double>(c.batch * c.context * c.heads * kHeadDim);
  report.add(
      concat("decode_attention ", c.batch, " x ", c.context, ", heads ", c.heads, "/", c.kv_heads,
             ", page ", c.page, c.start == cuda::DecodeStart::early ? ", early" : "",
             ScaledKvFormat<Kv> ? concat(", ", kv_format_name<Kv>()) : ""),
      timing, kv_bytes, flop);
}

/// Sequences in groups that have a prefix in common.
struct SharedCase {
  std::int64_t groups, members, prefix, own;
};

/// The same, with shared prefixes read once and without. Bytes are those of every key once.
void run_shared(const SharedCase& c, const cuda::Context& context, Report& report) {
  constexpr std::int64_t kHeads = 16, kKvHeads = 8, kPage = 64;
  const std::int64_t batch = c.groups * c.members, context_len = c.prefix + c.own;
  const std::int64_t pages_a_prefix = c.prefix / kPage, pages_a_tail = ceil_div(c.own, kPage);
  const std::int64_t columns = pages_a_prefix + pages_a_tail;
  const std::int64_t pages = c.groups * pages_a_prefix + batch * pages_a_tail;
  const std::int64_t page_size = 2 * kKvHeads * kPage * kHeadDim;
  const double kv_bytes =
      2. * static_cast<double>((c.groups * c.prefix + batch * c.own) * 2 * kKvHeads * kHeadDim);
  const int shares = static_cast<int>(
      std::clamp<std::int64_t>(static_cast<std::int64_t>(512e6 / kv_bytes), 2, 512));
  cuda::DeviceBuffer<bf16> pool(static_cast<std::size_t>(page_size * pages * shares));
  cuda::DeviceBuffer<bf16> qkv(
      static_cast<std::size_t>(batch * (kHeads + 2 * kKvHeads) * kHeadDim));
  cuda::DeviceBuffer<bf16> out(static_cast<std::size_t>(batch * kHeads * kHeadDim));
  fill(pool, 1);
  fill(qkv, 2);

  const std::vector<BlockId> free = shuffled(pages * shares);
  std::vector<BlockId> tables;
  for (int share = 0; share < shares; ++share) {
    const auto page = [&](std::int64_t i) {
      return free[static_cast<std::size_t>(share * pages + i)];
    };
    for (std::int64_t s = 0; s < batch; ++s) {
      for (std::int64_t i = 0; i < pages_a_prefix; ++i)
        tables.push_back(page(s / c.members * pages_a_prefix + i));
      for (std::int64_t i = 0; i < pages_a_tail; ++i)
        tables.push_back(page(c.groups * pages_a_prefix + s * pages_a_tail + i));
    }
  }
  std::vector<SharedPrefix> groups;
  std::vector<PrefixMember> members;
  for (std::int64_t g = 0; g < c.groups; ++g) {
    groups.push_back({.first = static_cast<std::int32_t>(g * c.members),
                      .count = static_cast<std::int32_t>(c.members),
                      .begin = 0,
                      .end = static_cast<std::int32_t>(c.prefix)});
  }
  for (std::int64_t s = 0; s < batch; ++s) {
    const auto row = static_cast<std::int32_t>(s);
    members.push_back(
        {.decode = row, .place = row, .group = static_cast<std::int32_t>(s / c.members)});
  }
  auto all_tables = to_device(tables);
  auto all_groups = to_device(groups);
  auto all_members = to_device(members);
  auto lens = to_device(std::vector<std::int32_t>(static_cast<std::size_t>(batch),
                                                  static_cast<std::int32_t>(context_len)));
  const VectorView<const std::int32_t> kv_lens(lens.data(), {batch});
  const std::array<std::int64_t, 3> extents{batch, kHeads, kHeadDim};
  for (const bool shares_prefixes : {false, true}) {
    cuda::DecodeWorkspace workspace(batch, kKvHeads, kHeads / kKvHeads, kHeadDim, context);
    SharedPrefixes shared;
    if (shares_prefixes) shared = {{all_groups.data(), {c.groups}}, {all_members.data(), {batch}}};
    cuda::plan_decode(kv_lens, kKvHeads, workspace, context, shared);
    const auto attend = [&](int call) {
      const std::int64_t first = std::int64_t{call % shares} * batch * columns;
      cuda::decode_attention(
          DecodeAttentionArgs<bf16>{
              .q = {qkv.data(), extents, {(kHeads + 2 * kKvHeads) * kHeadDim, kHeadDim, 1}},
              .kv = {pool.data(), pages * shares, kPage, kKvHeads, kHeadDim},
              .kv_lens = kv_lens,
              .block_tables = {all_tables.data() + first, {batch, columns}},
              .scale = 1.f / std::sqrt(static_cast<float>(kHeadDim)),
              .out = {out.data(), extents}},
          workspace, context, cuda::DecodeStart::after_predecessor);
    };
    const auto timing = bench::time_in_graph(context, attend, std::max(20, shares));
    report.add(concat("decode_attention ", c.groups, " x ", c.members, " x (", c.prefix, " + ",
                      c.own, shares_prefixes ? "), read once" : ")"),
               timing, kv_bytes, 0);
  }
}

void run_plan(std::int64_t batch, const cuda::Context& context, Report& report) {
  auto lens = to_device(std::vector<std::int32_t>(static_cast<std::size_t>(batch), 1000));
  cuda::DecodeWorkspace workspace(batch, 8, 4, kHeadDim, context);
  const auto plan = [&](int) {
    cuda::plan_decode(VectorView<const std::int32_t>(lens.data(), {batch}), 8, workspace, context);
  };
  report.add(concat("plan_decode, ", batch, " sequences"), bench::time_in_graph(context, plan), 0,
             0);
}

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  using namespace nanovllm::bench;
  nanovllm::cuda::Stream stream;
  const nanovllm::cuda::Context context = nanovllm::cuda::Context::on(stream.get());
  Report report;
  const std::string part = argc > 2 ? argv[2] : "";
  if (part != "shared") {
    for (const auto& [batch, length] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {256, 512}, {256, 1024}, {64, 512}, {64, 4096}, {8, 512}, {1, 512}, {1, 32768}}) {
      for (const std::int64_t heads : {16, 32}) {
        const Case c{batch, length, heads, 8, 64};
        run_case(c, context, report);
        run_case<nanovllm::Int8Kv>(c, context, report);
        run_case<nanovllm::Fp8Kv>(c, context, report);
      }
    }
  }
  if (part == "kv") return report.write(argv[1]), 0;
  for (const SharedCase& c : std::vector<SharedCase>{{1, 8, 4096, 16},
                                                     {1, 16, 16384, 16},
                                                     {1, 64, 16384, 64},
                                                     {1, 128, 16384, 128},
                                                     {1, 2, 1024, 16},
                                                     {1, 256, 2048, 100},
                                                     {8, 32, 2048, 100},
                                                     {64, 4, 2048, 100},
                                                     {4, 4, 512, 64}}) {
    run_shared(c, context, report);
  }
  if (part == "shared") return report.write(argv[1]), 0;
  for (const std::int64_t heads : {16, 32}) {
    for (const std::int64_t page : {256, 64, 16}) {
      for (const auto& [batch, length] :
           std::vector<std::pair<std::int64_t, std::int64_t>>{{256, 1024},
                                                              {64, 4096},
                                                              {64, 1024},
                                                              {16, 8192},
                                                              {8, 1024},
                                                              {1, 128},
                                                              {1, 1024},
                                                              {1, 32768}}) {
        run_case({batch, length, heads, 8, page}, context, report);
      }
    }
  }
  for (const auto& [batch, length] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {64, 1024}, {8, 1024}, {1, 128}, {1, 1024}, {1, 32768}}) {
    run_case({batch, length, 16, 8, 64, nanovllm::cuda::DecodeStart::early}, context, report);
  }
  for (const std::int64_t batch : {1, 64, 512}) run_plan(batch, context, report);
  if (argc > 1) report.write(argv[1]);
}
