#pragma once
/// How a dense layer of given shape is run: the choices, what they are remembered by, and the
/// stopwatch that decides between them.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/linear/blas.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {

/// What a choice is remembered by.
struct LinearKey {
  std::int64_t n;
  std::int64_t k;
  std::int64_t bucket;
  cudaDataType_t in;
  cudaDataType_t out;
  bool accumulate;
  std::uint32_t alignment;  ///< bytes that divide all pointers and rows, at most 16

  auto operator<=>(const LinearKey&) const = default;
};

/// What runs a dense layer.
enum class LinearKernel : std::uint8_t { blas, small_m, mid_m, wide_m };

/// One way to run a dense layer.
struct LinearPlan {
  LinearKernel kernel = LinearKernel::blas;
  int size = 0;               ///< tiles of a block or a form of mid_m or wide_m, if any
  BlasAlgorithm algorithm{};  ///< of LinearKernel::blas
};

/// The ways in force to run ops, and those that were close to them when they were timed.
template <class Key, class Plan>
class TunedPlans {
 public:
  /// The way in force; null where none is.
  [[nodiscard]] const Plan* find(const Key& key) const {
    const auto found = in_force_.find(key);
    return found == in_force_.end() ? nullptr : &found->second;
  }
  void choose(const Key& key, const Plan& plan) { in_force_.insert_or_assign(key, plan); }

  /// The first way that is timed for `key` from here on is in force until another is faster.
  void restart(const Key& key) { timed_.erase(key); }
  /// Takes note of the time of a way, and puts it in force if it is the fastest.
  void add(const Key& key, const Plan& plan, double ms) {
    auto& ways = timed_[key];
    const auto faster = [ms](const auto& way) { return way.first <= ms; };
    if (std::none_of(ways.begin(), ways.end(), faster)) choose(key, plan);
    ways.emplace_back(ms, plan);
  }

  /// Of those that were timed, the fastest first, and at most kMost of those that take no more than
  /// kSlack times as long; none where nothing was timed.
  [[nodiscard]] std::vector<Plan> close_plans(const Key& key) const {
    const auto found = timed_.find(key);
    if (found == timed_.end()) return {};
    auto sorted = found->second;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Plan> out;
    for (const auto& [ms, plan] : sorted) {
      if (out.size() == kMost || ms > kSlack * sorted[0].first) break;
      out.push_back(plan);
    }
    return out;
  }

 private:
  static constexpr std::size_t kMost = 4;
  static constexpr double kSlack = 1.16;
  std::map<Key, Plan> in_force_;
  std::map<Key, std::vector<std::pair<double, Plan>>> timed_;
};

namespace detail {

/// Fills `p` with numbers in [-1, 1): the power a product takes, and so the clock, depend on them.
template <Element T>
__global__ void __launch_bounds__(256) fill_noise_kernel(T* p, std::int64_t size) {
  grid_dependency_wait();
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += stride) {
    std::uint32_t h = static_cast<std::uint32_t>(i) * 0x9e3779b1u;
    h = (h ^ h >> 15) * 0x85ebca77u;
    p[i] = from_float<T>(static_cast<float>(h >> 16) * 0x1p-15f - 1.f);
  }
}

template <Element T>
void fill_noise(T* p, std::int64_t size, const Context& context) {
  if (size == 0) return;
  launch(fill_noise_kernel<T>, {.grid = dim3(1024), .block = dim3(256)}, context, p, size);
}

/// Milliseconds of one call: the fastest of three replays of a graph of `calls` calls run(i), less
/// when the first takes longer than `hopeless_ms` a call.
template <class Run>
[[nodiscard]] double time_calls(const Context& context, int calls, double hopeless_ms,
                                const Run& run) {
  const Graph graph = Graph::capture(context.stream, [&] {
    for (int i = 0; i < calls; ++i) run(i);
  });
  Event begin(true), end(true);
  double best = std::numeric_limits<double>::infinity();
  for (int replay = 0; replay < 4; ++replay) {
    begin.record(context.stream);
    graph.launch(context.stream);
    end.record(context.stream);
    end.synchronize();
    const double ms = static_cast<double>(end.milliseconds_since(begin)) / calls;
    if (replay > 0) best = std::min(best, ms);  // the first warms up
    if (ms > hopeless_ms) break;
  }
  return best;
}

}  // namespace detail
}  // namespace nanovllm::cuda
