#pragma once
// Operands of decode_attention where sequences have blocks in common.

#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "cuda/attention/decode/decode_problem.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/attention/decode/decode_attention.cuh"

namespace nanovllm::test {

/// Numbers 0 to count - 1 in an order that depends on `seed`.
inline std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  for (std::size_t i = out.size(); i > 1; --i)
    std::swap(out[i - 1], out[philox4x32(seed, {static_cast<std::uint32_t>(i), 5, 5, 5})[0] % i]);
  return out;
}

/// One level of groups: `count` sequences that have `num_keys` keys in common, and more of their
/// own.
struct Group {
  std::int64_t count;
  std::int32_t num_keys;
};

/// A batch with such groups and `num_single` sequences besides, in any order.
template <class T, class Kv = T>
Problem<T, Kv> with_groups(const Shape& shape, const std::vector<Group>& groups,
                           std::int64_t num_single, std::uint64_t seed,
                           std::int32_t most_own = 200) {
  std::vector<std::int32_t> lens;
  const auto own = [&] {
    return static_cast<std::int32_t>(
        1 + philox4x32(seed, {static_cast<std::uint32_t>(lens.size()), 6, 6, 6})[0] %
                static_cast<std::uint32_t>(most_own));
  };
  for (const Group& group : groups) {
    for (std::int64_t i = 0; i < group.count; ++i) lens.push_back(group.num_keys + own());
  }
  for (std::int64_t i = 0; i < num_single; ++i) lens.push_back(i % 4 == 3 ? 0 : 3 * own());
  const auto order = shuffled(static_cast<std::int64_t>(lens.size()), seed);
  std::vector<std::int32_t> placed(lens.size());
  for (std::size_t i = 0; i < lens.size(); ++i)
    placed[static_cast<std::size_t>(order[i])] = lens[i];
  Problem<T, Kv> problem(shape, placed, seed);
  auto next = order.begin();
  for (const Group& group : groups) {
    problem.share({next, next + group.count}, group.num_keys);
    next += group.count;
  }
  return problem;
}

template <class T, class Kv>
cuda::DecodeWorkspace workspace_for(const Problem<T, Kv>& problem, Gpu& gpu,
                                    std::optional<cuda::DecodeGrid> grid = std::nullopt) {
  const Shape& shape = problem.shape;
  return cuda::DecodeWorkspace(
      problem.num_seqs(), shape.kv_heads, shape.group, shape.head_dim, gpu.context,
      grid.value_or(cuda::default_decode_grid(shape.group, shape.head_dim, gpu.context.num_sms,
                                              gpu.context.max_shared_bytes)));
}

/// Right with sharing, twice, and then without: nothing is left in the workspace.
template <class T, class Kv>
void expect_right(Problem<T, Kv>& problem, std::optional<cuda::DecodeGrid> grid = std::nullopt) {
  CAPTURE(problem.shape.group, problem.shape.kv_heads, problem.shape.head_dim,
          problem.shape.block_size, problem.num_seqs());
  Gpu gpu;
  cuda::DecodeWorkspace workspace = workspace_for(problem, gpu, grid);
  const SharedPrefixes shared = problem.shared_prefixes();
  REQUIRE_FALSE(problem.finder.groups().empty());
  problem.run(workspace, gpu, shared);
  problem.check();
  const std::vector<T> first = problem.out.host;
  problem.run(workspace, gpu, shared);
  CHECK(std::memcmp(first.data(), problem.out.host.data(), first.size() * sizeof(T)) == 0);
  problem.run(workspace, gpu);
  problem.check();
}

}  // namespace nanovllm::test
