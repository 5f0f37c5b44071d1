// decode_attention of sequences that have blocks in common, against a float64 formula.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "cuda/attention/decode/decode_problem.cuh"
#include "cuda/attention/decode/shared_problem.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/attention/decode/decode_attention.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"

namespace nanovllm::test {

namespace {

const std::vector<Group> kGroups{{2, 512}, {17, 256}, {20, 128}, {3, 1280}};

}  // namespace

TEST_CASE("Shared prefixes: group sizes and head_dim", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  for (const std::int64_t group : {1, 2, 3, 4, 5, 8, 9, 16}) {
    auto problem = with_groups<bf16>({.group = group}, kGroups, 5, 1);
    expect_right(problem);
    auto narrow = with_groups<half>(
        {.group = group, .kv_heads = 3, .head_dim = 64, .block_size = 64}, kGroups, 5, 2);
    expect_right(narrow);
  }
}

TEST_CASE("Shared prefixes: block sizes and heads", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  for (const std::int64_t block_size : {32, 128, 256}) {
    auto problem = with_groups<bf16>({.kv_heads = 5, .block_size = block_size},
                                     {{2, 512}, {17, 256}, {3, 1280}}, 0, 3);
    expect_right(problem);
  }
}

TEST_CASE("Shared prefixes: many groups, few members, one own key", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  auto pairs = with_groups<bf16>({.kv_heads = 8}, std::vector<Group>(60, {2, 256}), 0, 4, 1);
  expect_right(pairs);
  auto one = with_groups<bf16>({.kv_heads = 8}, {{100, 512}}, 0, 5, 40);
  expect_right(one);
  auto two = with_groups<half>({.group = 16, .kv_heads = 1}, {{2, 4096}}, 0, 6, 17);
  expect_right(two);
}

TEST_CASE("Shared prefixes: grids of other sizes", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  for (const int warps : {4, 8}) {
    for (const int blocks : {1, 2, 5, 64, 132}) {
      for (const int least : {1, 8, 100000}) {
        auto problem = with_groups<bf16>({.group = 4, .kv_heads = 3}, {{9, 272}, {20, 640}}, 3, 7);
        expect_right(problem, cuda::DecodeGrid{blocks, warps, least});
      }
    }
  }
}

TEST_CASE("Shared prefixes: a grid with more blocks than run at once shares nothing",
          "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  auto problem = with_groups<bf16>({.group = 4}, {{20, 640}}, 3, 8);
  cuda::DecodeWorkspace workspace =
      workspace_for(problem, gpu, cuda::DecodeGrid{2 * gpu.context.num_sms, 8, 1});
  CHECK(workspace.max_chunks() == 0);
  problem.run(workspace, gpu, problem.shared_prefixes());
  problem.check();
}

TEST_CASE("Shared prefixes: of two workspaces on a device the first alone shares",
          "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  auto problem = with_groups<bf16>({.group = 4}, {{20, 640}}, 3, 16);
  const SharedPrefixes shared = problem.shared_prefixes();
  std::optional<cuda::DecodeWorkspace> first(workspace_for(problem, gpu));
  cuda::DecodeWorkspace second = workspace_for(problem, gpu);
  CHECK(first->max_chunks() > 0);
  CHECK(second.max_chunks() == 0);
  for (cuda::DecodeWorkspace* workspace : {&*first, &second}) {
    problem.run(*workspace, gpu, shared);
    problem.check();
  }
  first.reset();
  CHECK(workspace_for(problem, gpu).max_chunks() > 0);
}

TEST_CASE("Shared prefixes: several levels", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  for (const std::int64_t group : {1, 2, 4, 16}) {
    CAPTURE(group);
    // All begin alike, halves go on alike, then quarters; group 16 has no room for all of it.
    const std::int64_t count = 48;
    std::vector<std::int32_t> lens(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < lens.size(); ++i)
      lens[i] = 1300 + static_cast<std::int32_t>(i * 37 % 200);
    Problem<bf16> problem({.group = group, .kv_heads = 4}, lens, 9);
    const auto order = shuffled(count, 10);
    for (std::int64_t part = 12; part <= count; part *= 2) {
      for (std::int64_t first = 0; first < count; first += part) {
        problem.share({order.begin() + first, order.begin() + first + part}, part == 12   ? 1280
                                                                             : part == 24 ? 768
                                                                                          : 304);
      }
    }
    expect_right(problem);
    CHECK(problem.finder.groups().size() == 7);
  }
}

TEST_CASE("Shared prefixes: no room for all groups", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  // Two levels of pairs of pairs: three chunks for four sequences, and room for two.
  const std::int64_t count = 64;
  Problem<half> problem({.group = 16, .kv_heads = 2},
                        std::vector<std::int32_t>(static_cast<std::size_t>(count), 1201), 11);
  for (std::int64_t first = 0; first < count; first += 4) {
    problem.share({first, first + 1, first + 2, first + 3}, 512);
    problem.share({first, first + 1}, 1008);
    problem.share({first + 2, first + 3}, 1200);
  }
  expect_right(problem);
  CHECK(problem.finder.groups().size() == 48);
}

TEST_CASE("Shared prefixes: a graph is replayed with other groups", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  Gpu gpu;
  Problem<bf16> problem({.group = 2, .kv_heads = 8, .block_size = 64},
                        std::vector<std::int32_t>(33, 1500), 12);
  cuda::DecodeWorkspace workspace = workspace_for(problem, gpu);
  SharedPrefixes shared = problem.shared_prefixes();
  problem.run(workspace, gpu, shared);
  const auto graph = cuda::Graph::capture(gpu.stream.get(), [&] {
    cuda::plan_decode(VectorView<const std::int32_t>(problem.lens.data(), {33}), 8, workspace,
                      gpu.context, shared);
    for (int layer = 0; layer < 3; ++layer)
      cuda::decode_attention(problem.args(), workspace, gpu.context);
  });
  std::size_t num_groups = 0;
  for (int step = 0; step < 6; ++step) {
    CAPTURE(step);
    std::vector<std::int32_t> lens(33, 0);  // in step 5 all are padding
    for (std::size_t i = 0; i < lens.size(); ++i)
      lens[i] = step == 5 ? 0 : 1100 + static_cast<std::int32_t>(i * 131 % 400);
    problem.set_lens(lens);
    if (step == 1) problem.share(shuffled(20, 13), 512);
    if (step == 2) problem.share(shuffled(33, 14), 128);
    if (step == 3) problem.share({1, 5, 9, 13, 32}, 1024);
    num_groups += [&] {
      shared = problem.shared_prefixes();
      return problem.finder.groups().size();
    }();
    problem.clear_out();
    graph.launch(gpu.stream.get());
    gpu.sync();
    problem.out.download();
    problem.check();
  }
  CHECK(num_groups > 3);
}

TEST_CASE("Shared prefixes: fewer bytes, less time", "[cuda][decode_attention]") {
  if (!has_gpu()) return;
  // Even from the L2 cache, which holds all of it.
  Gpu gpu;
  auto problem = with_groups<bf16>({.kv_heads = 4, .block_size = 64}, {{64, 2048}}, 0, 15, 64);
  cuda::DecodeWorkspace workspace = workspace_for(problem, gpu);
  const auto time = [&](const SharedPrefixes& shared) {
    problem.run(workspace, gpu, shared);
    cudaEvent_t events[2];
    cuda::check_cuda(cudaEventCreate(&events[0]), "cudaEventCreate");
    cuda::check_cuda(cudaEventCreate(&events[1]), "cudaEventCreate");
    cuda::check_cuda(cudaEventRecord(events[0], gpu.stream.get()), "cudaEventRecord");
    for (int i = 0; i < 20; ++i) cuda::decode_attention(problem.args(), workspace, gpu.context);
    cuda::check_cuda(cudaEventRecord(events[1], gpu.stream.get()), "cudaEventRecord");
    gpu.sync();
    float ms = 0;
    cuda::check_cuda(cudaEventElapsedTime(&ms, events[0], events[1]), "cudaEventElapsedTime");
    for (cudaEvent_t event : events) cuda::check_cuda(cudaEventDestroy(event), "cudaEventDestroy");
    return ms / 20;
  };
  const SharedPrefixes shared = problem.shared_prefixes();
  const float alone = time({}), together = time(shared);
  INFO("a layer alone " << alone << " ms, together " << together << " ms");
  CHECK(together < alone);
}

}  // namespace nanovllm::test
