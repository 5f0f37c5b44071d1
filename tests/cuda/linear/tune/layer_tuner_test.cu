#include "nanovllm/cuda/linear/tune/layer_tuner.cuh"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"

namespace nanovllm::test {
namespace {

using Matrix = cuda::DeviceMatrix<bf16>;
using Linear = LinearArgs<bf16, Matrix>;

constexpr std::int64_t kHidden = 512, kQkv = 768, kQ = 384, kWidth = 640;
constexpr KvHeads kKvHeads{.num_kv_heads = 3, .head_dim = 64};

/// The matrices of some layers.
struct Layers {
  std::vector<Matrix> all;
  std::vector<const Matrix*> qkv, o, gate_up, down;
  GpuMatrix<bf16> norm = GpuMatrix<bf16>::random(1, kHidden, 5, {}, 0.25, 2);

  Layers(int count, const cuda::Context& context) {
    all.reserve(static_cast<std::size_t>(4 * count));
    const auto add = [&](std::vector<const Matrix*>& list, std::int64_t rows, std::int64_t cols) {
      all.emplace_back(rows, cols);
      cuda::detail::fill_noise(all.back().data(), rows * cols, context);
      list.push_back(&all.back());
    };
    for (int i = 0; i < count; ++i) {
      add(qkv, kQkv, kHidden), add(o, kHidden, kQ);
      add(gate_up, 2 * kWidth, kHidden), add(down, kHidden, kWidth);
    }
  }

  [[nodiscard]] InputNorm<bf16> input_norm() {
    return {VectorView<const bf16>(norm.row(0).data, {kHidden}), 1e-6f};
  }
  /// For up to `rows` rows, of which `seqs` may be decodes.
  [[nodiscard]] Projections<bf16, Matrix, bf16> lists(std::int64_t rows, std::int64_t seqs) {
    using Role = ProjectionRole;
    return {.list = {{Role::qkv, qkv, input_norm(), false, rows},
                     {Role::output, o, InputNorm<bf16>{}, true, rows},
                     {Role::gate_up, gate_up, input_norm(), false, rows},
                     {Role::down, down, InputNorm<bf16>{}, true, rows}},
            .kv_heads = kKvHeads,
            .max_seqs = seqs};
  }
};

/// The layer that `down` is, on rows of their own.
struct Down {
  GpuMatrix<bf16> x, y;

  explicit Down(std::int64_t m) : x(GpuMatrix<bf16>::random(m, kWidth, 7)), y(m, kHidden) {}

  [[nodiscard]] Linear args(const Matrix& weight) {
    return {.x = {x.view().data, x.view().extents},
            .weight = &weight,
            .y = y.view(),
            .accumulate = true};
  }
};

bool same(const cuda::DensePlan& a, const cuda::DensePlan& b) {
  return a.kernel == b.kernel && a.variant == b.variant &&
         std::memcmp(&a.algorithm, &b.algorithm, sizeof a.algorithm) == 0;
}

}  // namespace

TEST_CASE("LayerTuner keeps, of the ways that were close, the one whose layers are fastest") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  Layers layers(3, gpu.context);
  cuda::DeviceBuffer<bf16> noise(std::size_t{1} << 24);
  int num_choices = 0;
  for (const std::int64_t m : {1, 8, 64, 256}) {
    cuda::DenseEngine<cuda::DeviceArchitectures> engine;
    cuda::DenseTuner tuner(engine, gpu.context);
    const std::int64_t counts[] = {m};
    tuner.tune_linear<bf16, bf16>(layers.down, true, counts);
    Down down(m);
    const Linear of_test = down.args(layers.all[3]);
    const std::vector<cuda::DensePlan> ways = engine.close_plans(of_test);
    REQUIRE_FALSE(ways.empty());
    CHECK(same(ways[0], engine.plan_for(of_test, gpu.context)));
    num_choices += ways.size() > 1;
    for (const cuda::DensePlan& wanted : ways) {
      CAPTURE(m, static_cast<int>(wanted.kernel), wanted.variant);
      engine.choose(of_test, ways[0]);
      // Layers take much longer where `down` does not run as wanted.
      const auto run = [&](const auto& op) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(op)>, Linear>) {
          if (op.x.extent(1) == kWidth && !same(engine.plan_for(op, gpu.context), wanted))
            cuda::detail::fill_noise(noise.data(), std::int64_t{1} << 24, gpu.context);
        }
      };
      for (const std::int64_t num_seqs : {m, std::int64_t{0}}) {  // with attention, and without
        engine.choose(of_test, ways[0]);
        cuda::LayerTuner(layers.lists(m, num_seqs), engine, gpu.context)
            .tune(run, std::chrono::milliseconds(10'000));
        CHECK(same(engine.plan_for(of_test, gpu.context), wanted));
      }
    }
  }
  CHECK(num_choices > 0);
}

TEST_CASE("LayerTuner finds two ways of which each alone is slower, on few rows") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  Layers layers(3, gpu.context);
  cuda::DeviceBuffer<bf16> noise(std::size_t{1} << 24);
  int num_choices = 0;
  for (const std::int64_t m : {1, 5, 16}) {
    cuda::DenseEngine<cuda::DeviceArchitectures> engine;
    cuda::DenseTuner tuner(engine, gpu.context);
    const std::int64_t counts[] = {m};
    tuner.tune_linear<bf16, bf16>(layers.down, true, counts);
    tuner.tune_linear<bf16, bf16>(layers.o, true, counts);
    Down down(m);
    GpuMatrix<bf16> q(m, kQ), y(m, kHidden);
    const Linear of_down = down.args(layers.all[3]);
    const Linear of_o{.x = {q.view().data, q.view().extents},
                      .weight = &layers.all[1],
                      .y = y.view(),
                      .accumulate = true};
    const auto down_ways = engine.close_plans(of_down), o_ways = engine.close_plans(of_o);
    REQUIRE_FALSE(down_ways.empty());
    REQUIRE_FALSE(o_ways.empty());
    if (down_ways.size() == 1 || o_ways.size() == 1) continue;
    ++num_choices;
    const auto is_last = [&](const Linear& op, const std::vector<cuda::DensePlan>& ways) {
      return same(engine.plan_for(op, gpu.context), ways.back());
    };
    const auto run = [&](const auto& op) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(op)>, Linear>) {
        if (op.x.extent(1) != kWidth) return;
        const bool o_is = is_last(of_o, o_ways), down_is = is_last(of_down, down_ways);
        for (int i = 0; i < (o_is == down_is ? (o_is ? 0 : 1) : 2); ++i)
          cuda::detail::fill_noise(noise.data(), std::int64_t{1} << 24, gpu.context);
      }
    };
    CAPTURE(m);
    cuda::LayerTuner(layers.lists(m, m), engine, gpu.context)
        .tune(run, std::chrono::milliseconds(10'000));
    CHECK(is_last(of_o, o_ways));
    CHECK(is_last(of_down, down_ways));
  }
  CHECK(num_choices > 0);
}

TEST_CASE("LayerTuner keeps the way to run project_qkv whose layers are fastest") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  Layers layers(3, gpu.context);
  cuda::DeviceBuffer<bf16> noise(std::size_t{1} << 24);
  const auto spend_time = [&] {
    cuda::detail::fill_noise(noise.data(), std::int64_t{1} << 24, gpu.context);
  };
  int num_choices = 0;
  for (const std::int64_t m : {1, 8, 64}) {
    cuda::DenseEngine<cuda::DeviceArchitectures> engine;
    cuda::DenseTuner tuner(engine, gpu.context);
    // The parts take long, what follows the product no time.
    tuner.tune_qkv(layers.qkv, layers.input_norm(), kKvHeads, m, [&](const auto& op) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(op)>, Linear>) spend_time();
    });
    GpuMatrix<bf16> x(m, kHidden), y(m, kQkv);
    const cuda::DenseLayer<bf16> layer{.x = {x.view().data, x.view().extents},
                                       .norm = layers.input_norm(),
                                       .weight = layers.qkv[0]->view(),
                                       .y = y.view()};
    const auto is = [&](const cuda::DensePlan& wanted) {
      const cuda::DensePlan plan = engine.plan_for(layer, gpu.context);
      return plan.kernel == wanted.kernel && plan.variant == wanted.variant;
    };
    const std::vector<cuda::DensePlan> ways = engine.close_plans(layer);
    REQUIRE_FALSE(ways.empty());
    CHECK(is(ways[0]));
    num_choices += ways.size() > 1;
    for (const cuda::DensePlan& wanted : ways) {
      CAPTURE(m, static_cast<int>(wanted.kernel), wanted.variant);
      engine.choose(layer, ways[0]);
      bool ran_heads = false,
           agrees = true;  // heads are an op of their own where no kernel has them
      const auto run = [&](const auto& op) {
        using Op = std::remove_cvref_t<decltype(op)>;
        if constexpr (std::is_same_v<Op, QkNormRopeStoreArgs<bf16, bf16, bf16>>) ran_heads = true;
        if constexpr (std::is_same_v<Op, Linear>) {
          if (op.x.extent(1) != kQ) return;
          const auto kernel = engine.plan_for(layer, gpu.context).kernel;
          agrees = agrees && ran_heads == (kernel != cuda::DenseKernel::native_heads);
          ran_heads = false;
          if (!is(wanted)) spend_time();
        }
      };
      cuda::LayerTuner(layers.lists(m, m), engine, gpu.context)
          .tune(run, std::chrono::milliseconds(10'000));
      CHECK(is(wanted));
      CHECK(agrees);
    }
  }
  CHECK(num_choices > 0);
}

TEST_CASE("LayerTuner without time to spend leaves what was chosen") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  Layers layers(1, gpu.context);
  cuda::DenseEngine<cuda::DeviceArchitectures> engine;
  const std::int64_t counts[] = {8};
  cuda::DenseTuner(engine, gpu.context).tune_linear<bf16, bf16>(layers.down, true, counts);
  Down down(8);
  const Linear of_test = down.args(layers.all[3]);
  const cuda::DensePlan chosen = engine.plan_for(of_test, gpu.context);
  cuda::LayerTuner(layers.lists(8, 8), engine, gpu.context)
      .tune([](const auto&) {}, std::chrono::milliseconds(0));
  CHECK(same(engine.plan_for(of_test, gpu.context), chosen));
}

TEST_CASE("A backend's dense layers give what they gave before it was tuned") {
  if (!has_gpu()) return;
  if (!Gpu().is_hopper()) return;
  constexpr std::int64_t kMost = 96, kSeqs = 40;
  CudaBackend backend{BackendConfig{}};
  Layers layers(2, backend.context());
  auto x = GpuMatrix<bf16>::random(kMost, kHidden, 11);
  GpuMatrix<bf16> normed(kMost, kHidden), both(kMost, 2 * kWidth), act(kMost, kWidth);
  const auto results = [&](std::int64_t m) {
    backend.run(GatedLinearArgs<bf16, Matrix>{.x = {x.view().data, {m, kHidden}},
                                              .norm = layers.input_norm(),
                                              .weight = &layers.all[2],
                                              .out = act.view().slice(0, m),
                                              .normed = normed.view().slice(0, m),
                                              .gate_up = both.view().slice(0, m)});
    backend.synchronize();
    act.download();
    std::vector<double> out;
    for (std::int64_t i = 0; i < m * kWidth; ++i) out.push_back(act.value(i / kWidth, i % kWidth));
    return out;
  };
  std::vector<std::vector<double>> before;  // as each op is by itself
  for (const std::int64_t m : {1, 5, 33, 96}) before.push_back(results(m));
  backend.reserve({.limits = {.max_num_batched_tokens = kMost,
                              .max_num_seqs = kSeqs,
                              .max_model_len = 1024,
                              .shares_prefixes = false},
                   .vocab_size = 1,
                   .num_heads = kQ / kKvHeads.head_dim,
                   .num_kv_heads = kKvHeads.num_kv_heads,
                   .head_dim = kKvHeads.head_dim});
  backend.tune(layers.lists(kMost, kSeqs));
  std::size_t next = 0;
  for (const std::int64_t m : {1, 5, 33, 96}) {
    const std::vector<double> after = results(m);
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < after.size(); ++i) {
      largest = std::max(largest, std::abs(before[next][i]));
      error = std::max(error, std::abs(after[i] - before[next][i]));
    }
    CAPTURE(m, largest);
    CHECK(largest > 0);
    CHECK(error <= 0.02 * largest);  // the norm's product is rounded once, or once more
    ++next;
  }
}

}  // namespace nanovllm::test
