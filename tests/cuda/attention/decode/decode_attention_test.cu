// decode_attention against a float64 formula, on paged caches whose unused parts are poison.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "cuda/attention/decode/decode_problem.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/attention/decode/decode_attention.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"

namespace nanovllm::test {

namespace {

template <class T, class Kv = T>
std::vector<T> expect_right(const Shape& shape, const std::vector<std::int32_t>& lens,
                            std::uint64_t seed,
                            std::optional<cuda::DecodeGrid> grid = std::nullopt) {
  CAPTURE(shape.group, shape.kv_heads, shape.head_dim, shape.block_size, lens.size(),
          lens.empty() ? 0 : lens[0]);
  Gpu gpu;
  Problem<T, Kv> problem(shape, lens, seed);
  cuda::DecodeWorkspace workspace(
      std::max<std::int64_t>(problem.num_seqs(), 1), shape.kv_heads, shape.group, shape.head_dim,
      gpu.context,
      grid.value_or(cuda::default_decode_grid(shape.group, shape.head_dim, gpu.context.num_sms,
                                              gpu.context.max_shared_bytes)));
  problem.run(workspace, gpu);
  problem.check();
  return problem.out.host;
}

std::vector<std::int32_t> random_lens(std::size_t count, std::int32_t most, std::uint64_t seed) {
  std::vector<std::int32_t> lens(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i), 3, 3, 3});
    const auto bound = static_cast<std::uint32_t>(words[1] % 4 == 0 ? most : most / 8 + 1);
    lens[i] = words[2] % 16 == 0 ? 0 : static_cast<std::int32_t>(words[0] % (bound + 1));
  }
  return lens;
}

const std::vector<std::int32_t> kEdgeLens{1, 0, 15, 16, 17, 63, 64, 65, 0, 127, 129, 1000};

template <class T>
bool equal_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Copies queries and the newest key and value of every sequence from equally shaped arrays, or
/// fills them with NaN when there are none. With values, lets its successor start at once.
__global__ void set_newest_kernel(DecodeAttentionArgs<bf16> args, std::int64_t q_size,
                                  const bf16* q_from, const bf16* kv_from) {
  if (q_from != nullptr) cuda::grid_dependency_launch();
  cuda::grid_dependency_wait();
  cuda::grid_dependency_launch();
  const std::int64_t thread = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  const std::int64_t num_threads = std::int64_t{gridDim.x} * blockDim.x;
  bf16 nan;
  nan.bits = 0xffff;
  auto* const q = const_cast<bf16*>(args.q.data);
  for (std::int64_t i = thread; i < q_size; i += num_threads)
    q[i] = q_from == nullptr ? nan : q_from[i];
  const auto& kv = args.kv;
  const std::int64_t row = 2 * kv.num_kv_heads * kv.head_dim;
  for (std::int64_t i = thread; i < args.kv_lens.extent(0) * row; i += num_threads) {
    const std::int64_t s = i / row, head = i % row / kv.head_dim, newest = args.kv_lens.data[s] - 1;
    if (newest < 0) continue;
    bf16* const to = kv.k(*args.block_tables.at(s, newest / kv.block_size), head) +
                     newest % kv.block_size * kv.head_dim + i % kv.head_dim;
    *to = kv_from == nullptr ? nan : kv_from[to - kv.data];
  }
}

}  // namespace

TEST_CASE("Decode attention: group sizes", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  for (const std::int64_t group : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16}) {
    expect_right<bf16>({.group = group}, kEdgeLens, 1);
    expect_right<half>({.group = group, .kv_heads = 1}, kEdgeLens, 2);
  }
}

TEST_CASE("Decode attention: head_dim 64, 128 and others", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  expect_right<bf16>({.group = 4, .head_dim = 64}, kEdgeLens, 3);
  expect_right<half>({.group = 16, .head_dim = 64, .block_size = 32}, kEdgeLens, 4);
  expect_right<bf16>({.group = 4, .head_dim = 80}, kEdgeLens, 5);
  expect_right<bf16>({.group = 17, .kv_heads = 1}, kEdgeLens, 6);
  expect_right<float>({.group = 4, .head_dim = 64}, kEdgeLens, 7);
}

TEST_CASE("Decode attention: block sizes", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  for (const std::int64_t block_size : {16, 32, 48, 64, 128, 256, 1, 8, 24}) {
    expect_right<bf16>({.block_size = block_size}, kEdgeLens, 8);
    expect_right<half>({.group = 5, .block_size = block_size}, {5000, 31}, 9);
  }
}

TEST_CASE("Decode attention: one sequence of every kind of length", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  for (const std::int32_t len : {0, 1, 15, 16, 17, 63, 64, 65, 128, 255, 256, 257, 1000, 5000}) {
    expect_right<bf16>({.group = 4, .kv_heads = 1}, {len}, 10);
    expect_right<bf16>({.kv_heads = 8, .block_size = 64}, {len}, 11);
  }
  expect_right<bf16>({.kv_heads = 1, .block_size = 256}, {70000}, 12);
}

TEST_CASE("Decode attention: ragged batches", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  expect_right<bf16>({}, {}, 13);
  for (const std::size_t count : {1, 2, 3, 7, 31, 64, 131, 132, 133, 300}) {
    expect_right<bf16>({.kv_heads = 3}, random_lens(count, 700, count), 14);
    expect_right<half>({.group = 4, .kv_heads = 8, .block_size = 64}, random_lens(count, 90, count),
                       15);
  }
  expect_right<bf16>({.group = 8, .kv_heads = 1}, std::vector<std::int32_t>(300, 0), 16);
  expect_right<bf16>({.group = 1, .kv_heads = 1}, std::vector<std::int32_t>(2100, 3), 17);
}

TEST_CASE("Decode attention: grids of other sizes", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  const std::vector<std::int32_t> lens = random_lens(9, 900, 5);
  for (const int warps : {4, 8}) {
    for (const int blocks : {1, 2, 5, 64, 132, 264}) {
      for (const int least : {1, 8, 100000}) {
        expect_right<bf16>({.group = 8, .block_size = 32}, lens, 18,
                           cuda::DecodeGrid{blocks, warps, least});
      }
    }
    expect_right<bf16>({.group = 16, .head_dim = 64}, lens, 19, cuda::DecodeGrid{100, warps, 1});
    expect_right<bf16>({.group = 16}, lens, 20, cuda::DecodeGrid{100, warps, 1});
  }
}

TEST_CASE("Decode attention: scores far apart, and any scale", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  expect_right<bf16>({.group = 4, .spread = 20}, {1000, 40, 3000}, 21);
  expect_right<half>({.group = 4, .scale = -0.3f}, {1000, 40}, 22);
  expect_right<bf16>({.group = 4, .scale = 1e-30f}, {1000, 40}, 23);
}

TEST_CASE("Decode attention: lengths change from step to step", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const std::vector<std::int32_t> most(40, 1200);
  Problem<bf16> problem({.group = 4}, most, 24);
  cuda::DecodeWorkspace workspace(64, 4, 8, 128, gpu.context);
  for (std::uint64_t step = 0; step < 4; ++step) {
    problem.set_lens(random_lens(most.size(), 1200, 100 + step));
    problem.run(workspace, gpu);
    problem.check();
  }
}

TEST_CASE("Decode attention: a graph is replayed with other lengths", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const std::vector<std::int32_t> most(33, 1500);
  Problem<bf16> problem({.group = 2, .kv_heads = 8, .block_size = 64}, most, 25);
  cuda::DecodeWorkspace workspace(33, 8, 2, 128, gpu.context);
  problem.run(workspace, gpu);
  const auto graph = cuda::Graph::capture(gpu.stream.get(), [&] {
    cuda::plan_decode(VectorView<const std::int32_t>(problem.lens.data(), {33}), 8, workspace,
                      gpu.context);
    for (int layer = 0; layer < 3; ++layer)
      cuda::decode_attention(problem.args(), workspace, gpu.context);
  });
  for (std::uint64_t step = 0; step < 4; ++step) {
    problem.set_lens(step == 3 ? std::vector<std::int32_t>(33, 0)
                               : random_lens(most.size(), 1500, 200 + step));
    problem.clear_out();
    graph.launch(gpu.stream.get());
    gpu.sync();
    problem.out.download();
    problem.check();
    const std::vector<bf16> replayed = problem.out.host;
    problem.run(workspace, gpu);
    CHECK(equal_bits(replayed, problem.out.host));
  }
}

TEST_CASE("Decode attention: equal inputs give equal bits", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (const std::size_t count : {1, 8, 100}) {
    Problem<bf16> problem({.group = 4, .kv_heads = 8},
                          random_lens(count, count == 1 ? 6000 : 800, 7), 26);
    if (count == 1) problem.set_lens({problem.max_lens[0]});
    cuda::DecodeWorkspace workspace(problem.num_seqs(), 8, 4, 128, gpu.context);
    problem.run(workspace, gpu);
    problem.check();
    const std::vector<bf16> first = problem.out.host;
    const auto graph = cuda::Graph::capture(gpu.stream.get(), [&] {
      for (int i = 0; i < 50; ++i) cuda::decode_attention(problem.args(), workspace, gpu.context);
    });
    for (int i = 0; i < 10; ++i) {
      problem.clear_out();
      graph.launch(gpu.stream.get());
      gpu.sync();
      problem.out.download();
      CHECK(equal_bits(first, problem.out.host));
    }
  }
}

TEST_CASE("Decode attention: an early start sees the newest keys and queries",
          "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (const std::size_t count : {1, 40}) {
    Problem<bf16> problem({.group = 4, .kv_heads = 8},
                          count == 1 ? std::vector<std::int32_t>{1500} : random_lens(count, 900, 9),
                          28);
    cuda::DecodeWorkspace workspace(problem.num_seqs(), 8, 4, 128, gpu.context);
    problem.run(workspace, gpu);
    problem.check();
    const std::vector<bf16> expected = problem.out.host;
    GpuArray<bf16> q(problem.q.host), kv(problem.kv.host);
    const cuda::LaunchConfig config{.grid = 16, .block = 256};
    // What the early start must not read too soon is poison until the kernel just before it.
    const auto set_newest = [&](const bf16* q_from, const bf16* kv_from) {
      cuda::launch(set_newest_kernel, config, gpu.context, problem.args(),
                   static_cast<std::int64_t>(problem.q.size()), q_from, kv_from);
    };
    const auto graph = cuda::Graph::capture(gpu.stream.get(), [&] {
      for (int layer = 0; layer < 20; ++layer) {
        set_newest(nullptr, nullptr);
        cuda::plan_decode(VectorView<const std::int32_t>(problem.lens.data(), {problem.num_seqs()}),
                          8, workspace, gpu.context);
        set_newest(nullptr, nullptr);
        set_newest(q.data(), kv.data());
        cuda::decode_attention(problem.args(), workspace, gpu.context, cuda::DecodeStart::early);
      }
    });
    for (int i = 0; i < 10; ++i) {
      problem.clear_out();
      graph.launch(gpu.stream.get());
      gpu.sync();
      problem.out.download();
      CHECK(equal_bits(expected, problem.out.host));
    }
  }
}

TEST_CASE("Decode attention: bad input", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  Problem<bf16> problem({.group = 4}, {10, 20}, 27);
  const VectorView<const std::int32_t> lens(problem.lens.data(), {2});
  CHECK_THROWS_AS(cuda::DecodeWorkspace(0, 2, 4, 128, gpu.context), ConfigError);
  CHECK_THROWS_AS(cuda::DecodeWorkspace(1 << 20, 2, 4, 128, gpu.context), ConfigError);
  CHECK_THROWS_AS(cuda::DecodeWorkspace(2, 2, 4, 128, gpu.context, cuda::DecodeGrid{132, 6, 8}),
                  ConfigError);
  cuda::DecodeWorkspace one(1, 2, 4, 128, gpu.context), narrow(2, 2, 2, 128, gpu.context),
      low(2, 2, 4, 64, gpu.context), good(2, 2, 4, 128, gpu.context);
  CHECK_THROWS_AS(cuda::plan_decode(lens, 2, one, gpu.context), ShapeError);
  CHECK_THROWS_AS(cuda::plan_decode(lens, 3, good, gpu.context), ShapeError);
  CHECK_THROWS_AS(cuda::decode_attention(problem.args(), good, gpu.context), ShapeError);
  for (cuda::DecodeWorkspace* workspace : {&narrow, &low, &good})
    cuda::plan_decode(lens, 2, *workspace, gpu.context);
  CHECK_THROWS_AS(cuda::decode_attention(problem.args(), narrow, gpu.context), ShapeError);
  CHECK_THROWS_AS(cuda::decode_attention(problem.args(), low, gpu.context), ShapeError);
  cuda::decode_attention(problem.args(), good, gpu.context);
  gpu.sync();
  // Tiles that 31 bits cannot count: the plan would be one of other keys.
  auto endless = problem.args();
  endless.block_tables.extents[1] = std::int64_t{1} << 32;
  CHECK_THROWS_AS(cuda::decode_attention(endless, good, gpu.context), ShapeError);
}

TEST_CASE("Decode attention: heads known to the compiler change no bit",
          "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const auto check_heads = [&]<int kHeadDim, int kGroup>() {
    Problem<bf16> problem({.group = kGroup ? kGroup : 4, .head_dim = kHeadDim ? kHeadDim : 64},
                          {100, 0, 1, 517, 16}, 31);
    cuda::DecodeWorkspace workspace(5, problem.shape.kv_heads, problem.shape.group,
                                    problem.shape.head_dim, gpu.context);
    problem.run(workspace, gpu);
    const std::vector<bf16> expected = problem.out.host;
    problem.clear_out();
    const auto any = problem.args();
    using Args = DecodeAttentionArgs<bf16, bf16, HeadShape<kHeadDim, kGroup>>;
    Args args{any.q, any.kv, any.kv_lens, any.block_tables, any.scale, any.out};
    cuda::decode_attention(args, workspace, gpu.context);
    gpu.sync();
    problem.out.download();
    CHECK(equal_bits(expected, problem.out.host));
    args.q.extents[1] += args.kv.num_kv_heads;
    args.out.extents[1] += args.kv.num_kv_heads;
    if (kGroup > 0)
      CHECK_THROWS_AS(cuda::decode_attention(args, workspace, gpu.context), ShapeError);
  };
  check_heads.operator()<128, 2>();
  check_heads.operator()<128, 0>();
  check_heads.operator()<64, 12>();
  check_heads.operator()<0, 8>();
  check_heads.operator()<128, 17>();  // the CUDA cores
}

namespace {

/// Block 0 publishes a part after `delay` ns; block 1 collects it.
__global__ void late_part_kernel(cuda::DecodeProblem<bf16> problem, std::uint64_t delay,
                                 float* sums) {
  using Traits = cuda::DecodeTraits<bf16, 128, 1, 8>;
  using namespace cuda::detail;
  const auto now = [] {
    std::uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  if (blockIdx.x == 0) {
    for (const std::uint64_t begin = now(); now() - begin < delay;) __nanosleep(1000);
    float* const part = partial_at<Traits>(problem, 0, 1);
    publish(part, {1.f, 2.f, 3.f, 4.f});
    publish(part + Traits::kHeadDim, {0.f, 5.f, 0.f, 0.f});
  } else {
    DecodePart total;
    add_blocks<Traits>(problem, 0, 1, 0, 0, total);
    sums[threadIdx.x] = total.sum + total.out.w;
  }
}

}  // namespace

TEST_CASE("Decode attention: a part that comes late is waited for by the clock",
          "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  // All bytes of a GpuArray are 0xff, so every word is kDecodeEmptyWord.
  GpuArray<float> partials(2 * 2 * (128 + cuda::kDecodePartExtra)), sums(32);
  cuda::DecodeProblem<bf16> problem{};
  problem.group = 1;
  problem.partials = partials.data();
  constexpr std::uint64_t kDelay = 10'000'000'000;  // four million looks take less
  late_part_kernel<<<2, 32, 0, gpu.stream.get()>>>(problem, kDelay, sums.data());
  gpu.sync();
  sums.download();
  for (const float sum : sums.host) CHECK(sum == 9.f);
}

}  // namespace nanovllm::test
