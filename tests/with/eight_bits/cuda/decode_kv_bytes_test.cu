// decode_attention over caches with 8-bit elements and scales, against a float64 formula; some rows
// are zeros, some small, and scales after the last key are NaN.

#include <cstdint>
#include <vector>

#include "cuda/attention/decode/decode_problem.cuh"
#include "cuda/attention/decode/shared_problem.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/with/eight_bits/cuda/kv_bytes.cuh"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"

namespace nanovllm::test {

namespace {

const std::vector<std::int32_t> kEdgeLens{1, 0, 15, 16, 17, 63, 64, 65, 0, 127, 129, 1000};

template <class T, class Kv>
void expect_right(const Shape& shape, const std::vector<std::int32_t>& lens, std::uint64_t seed,
                  std::optional<cuda::DecodeGrid> grid = std::nullopt) {
  CAPTURE(Kv::kName, shape.group, shape.kv_heads, shape.head_dim, shape.block_size, lens.size());
  Gpu gpu;
  Problem<T, Kv> problem(shape, lens, seed);
  cuda::DecodeWorkspace workspace = workspace_for(problem, gpu, grid);
  problem.run(workspace, gpu);
  problem.check();
  const std::vector<T> first = problem.out.host;
  problem.run(workspace, gpu);
  CHECK(std::memcmp(first.data(), problem.out.host.data(), first.size() * sizeof(T)) == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("Decode attention in 8 bits: groups, heads and blocks",
                   "[cuda][decode_attention]", Int8Kv, Fp8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  for (const std::int64_t group : {1, 2, 5, 8, 9, 16})
    expect_right<bf16, TestType>({.group = group}, kEdgeLens, 1);
  expect_right<bf16, TestType>({.group = 4, .head_dim = 64}, kEdgeLens, 2);
  expect_right<bf16, TestType>({.group = 16, .head_dim = 64, .block_size = 32}, kEdgeLens, 3);
  for (const std::int64_t block_size : {16, 48, 64, 256})
    expect_right<bf16, TestType>({.kv_heads = 3, .block_size = block_size}, {5000, 31}, 4);
}

TEMPLATE_TEST_CASE("Decode attention in 8 bits: the CUDA cores", "[cuda][decode_attention]", Int8Kv,
                   Fp8Kv) {
  if (!has_gpu()) return;
  expect_right<float, TestType>({.group = 4}, kEdgeLens, 5);
  expect_right<bf16, TestType>({.group = 4, .head_dim = 80}, kEdgeLens, 6);
  expect_right<bf16, TestType>({.group = 17, .kv_heads = 1}, kEdgeLens, 7);
  expect_right<bf16, TestType>({.block_size = 8}, kEdgeLens, 8);
}

TEMPLATE_TEST_CASE("Decode attention in 8 bits: batches, grids and spreads",
                   "[cuda][decode_attention]", Int8Kv, Fp8Kv) {
  if (!has_gpu()) return;
  for (const std::size_t count : {1, 3, 64, 133, 300}) {
    std::vector<std::int32_t> lens(count);
    for (std::size_t i = 0; i < count; ++i)
      lens[i] = static_cast<std::int32_t>(
          philox4x32(count, {static_cast<std::uint32_t>(i), 3, 3, 3})[0] % (i % 4 == 0 ? 700 : 90));
    expect_right<bf16, TestType>({.kv_heads = 8, .block_size = 64}, lens, 9);
  }
  for (const int warps : {4, 8}) {
    for (const int blocks : {1, 5, 132})
      expect_right<bf16, TestType>({.group = 8}, {900, 1, 0, 333}, 10,
                                   cuda::DecodeGrid{blocks, warps, 1});
  }
  expect_right<bf16, TestType>({.group = 4, .spread = 20}, {1000, 40, 3000}, 11);
  expect_right<bf16, TestType>({.group = 4, .spread = 1e-6}, {1000, 40, 3000}, 12);
  expect_right<bf16, TestType>({.group = 4, .scale = -0.3f}, {1000, 40}, 13);
}

TEMPLATE_TEST_CASE("Decode attention in 8 bits: shared prefixes", "[cuda][decode_attention]",
                   Int8Kv, Fp8Kv) {
  if (!has_gpu()) return;
  const std::vector<Group> groups{{2, 512}, {17, 256}, {20, 128}, {3, 1280}};
  for (const std::int64_t group : {1, 2, 5, 16}) {
    auto problem = with_groups<bf16, TestType>({.group = group, .kv_heads = 3}, groups, 5, 14);
    test::expect_right(problem);
    auto narrow = with_groups<bf16, TestType>(
        {.group = group, .kv_heads = 2, .head_dim = 64, .block_size = 64}, groups, 5, 15);
    test::expect_right(narrow);
  }
}

}  // namespace nanovllm::test
