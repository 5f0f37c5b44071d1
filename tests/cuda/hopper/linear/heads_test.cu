#include "nanovllm/cuda/hopper/linear/heads.cuh"

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/ops/fp8_kv.hpp"
#include "nanovllm/ops/int8_kv.hpp"
#include "nanovllm/ops/static_fp8_kv.hpp"
#include "ops/fused_cases.hpp"

namespace nanovllm::test {
namespace {

using Bytes = std::vector<unsigned char>;

struct Heads {
  std::int64_t heads, kv_heads, head_dim;
};

/// A projection: rows of x are 8 elements apart, those of qkv 3; every third token has no slot.
template <class Kv = bf16>
class Projection {
  using Stored = KvStored<Kv>;

 public:
  static constexpr std::int64_t kPositions = 40960, kBlocks = 5, kBlockSize = 16;

  Projection(std::int64_t m, std::int64_t k, const Heads& heads)
      : m_(m),
        k_(k),
        h_(heads),
        n_((heads.heads + 2 * heads.kv_heads) * heads.head_dim),
        x_(GpuArray<bf16>::random(size(m * (k + 8)), 1)),
        norm_(GpuArray<bf16>::random(size(k), 2, .25, 2)),
        head_norms_(GpuArray<bf16>::random(size(2 * heads.head_dim), 3, .25, 2)),
        weight_(n_, k),
        positions_(size(m)),
        slots_(size(m)),
        qkv_(size(m * (n_ + 3))),
        cache_(size(kBlocks * cache(nullptr).block_stride())) {
    auto weight = GpuArray<bf16>::random(size(n_ * k), 4, -.25, .25);
    weight_.set_rows(0, MatrixView<const bf16>(weight.host.data(), {n_, k}));
    for (std::int64_t i = 0; i < m; ++i) {
      positions_.host[size(i)] = static_cast<std::int32_t>(kPositions - 1 - i * 2711 % kPositions);
      slots_.host[size(i)] = i % 3 == 2 ? kNoSlot : (i * 5 + 3) % (kBlocks * kBlockSize);
    }
    positions_.upload();
    slots_.upload();
  }

  [[nodiscard]] ProjectQkvArgs<bf16, cuda::DeviceMatrix<bf16>, Kv, bf16> args() {
    const std::int64_t d = h_.head_dim;
    return {.x = {x_.data(), {m_, k_}, {k_ + 8, 1}},
            .norm = {{norm_.data(), {k_}}, 1e-5f},
            .weight = &weight_,
            .heads = {.q_norm = {head_norms_.data(), {d}},
                      .k_norm = {head_norms_.data() + d, {d}},
                      .eps = 1e-6f,
                      .positions = {positions_.data(), {m_}},
                      .cos_sin = {angles().data(), {kPositions, d}},
                      .slots = {slots_.data(), {m_}}},
            .kv = cache(cache_.data()),
            .qkv = {qkv_.data(), {m_, n_}, {n_ + 3, 1}}};
  }

  /// Fills what is written with ones.
  void poison_outputs(const cuda::Context& context) {
    poison(qkv_.data(), static_cast<std::int64_t>(qkv_.size()), context);
    poison(cache_.data(), static_cast<std::int64_t>(cache_.size()), context);
  }

  /// All bytes of qkv, between the rows as well, and of the cache.
  [[nodiscard]] Bytes results() {
    qkv_.download();
    cache_.download();
    CHECK((qkv_.guards_intact() && cache_.guards_intact()));
    Bytes out(qkv_.host.size() * sizeof(bf16) + cache_.host.size() * sizeof(Stored));
    std::memcpy(out.data(), qkv_.host.data(), qkv_.host.size() * sizeof(bf16));
    std::memcpy(out.data() + qkv_.host.size() * sizeof(bf16), cache_.host.data(),
                cache_.host.size() * sizeof(Stored));
    return out;
  }

 private:
  [[nodiscard]] KvView<Kv> cache(Stored* data) const {
    return KvView<Kv>{data, kBlocks, kBlockSize, h_.kv_heads, h_.head_dim}.with(
        {.k = 0.0173f, .v = 0.25f});  // in a format that gets its scales
  }
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  /// Enough for heads of 128.
  static GpuArray<float>& angles() {
    static GpuArray<float> out = GpuArray<float>::random(size(kPositions * 128), 5, -1, 1);
    return out;
  }

  std::int64_t m_, k_;
  Heads h_;
  std::int64_t n_;
  GpuArray<bf16> x_, norm_, head_norms_;
  cuda::DeviceMatrix<bf16> weight_;
  GpuArray<std::int32_t> positions_;
  GpuArray<Slot> slots_;
  GpuArray<bf16> qkv_;
  GpuArray<Stored> cache_;
};

/// The op by the product's kernel and that of the heads.
template <class Kv>
Bytes by_two(Projection<Kv>& projection, const Gpu& gpu) {
  projection.poison_outputs(gpu.context);
  const auto args = projection.args();
  REQUIRE(cuda::small_m_linear(cuda::layer_of(args), 4, gpu.context, cuda::NextStart::after_wait));
  cuda::qk_norm_rope_store(head_args(args), gpu.context);
  gpu.sync();
  return projection.results();
}

template <class Kv>
Bytes by_one(Projection<Kv>& projection, const Gpu& gpu) {
  projection.poison_outputs(gpu.context);
  REQUIRE(cuda::small_m_project_qkv(projection.args(), gpu.context));
  gpu.sync();
  return projection.results();
}

/// Runs `project_qkv` by the kernel, for the cases of all backends.
struct HeadsBackend : CudaBackend {
  using CudaBackend::CudaBackend;
  using CudaBackend::run;
  void run(const ProjectQkvArgs<bf16, cuda::DeviceMatrix<bf16>>& args) {
    REQUIRE(cuda::small_m_project_qkv(args, context()));
  }
};

}  // namespace

TEMPLATE_TEST_CASE(
    "project_qkv of few rows in one kernel has the bits of the product and the heads' kernel", "",
    bf16, Int8Kv, Fp8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  for (const Heads& heads :
       {Heads{16, 8, 128}, Heads{4, 1, 128}, Heads{3, 3, 128}, Heads{14, 2, 128}, Heads{16, 8, 64},
        Heads{4, 1, 64}, Heads{3, 3, 64}, Heads{14, 2, 64}}) {
    for (const std::int64_t m : {1, 2, 3, 5, 7, 8}) {
      Projection<TestType> projection(m, m == 7 ? 2056 : m == 5 ? 264 : 1024, heads);
      const Bytes expected = by_two(projection, gpu);
      CAPTURE(heads.heads, heads.kv_heads, heads.head_dim, m);
      CHECK(by_one(projection, gpu) == expected);
    }
  }
}

TEST_CASE("project_qkv of few rows in one kernel equals float64") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  HeadsBackend backend(BackendConfig{});
  for (const std::int64_t n : {1, 3, 8})
    ops::project_qkv_case<bf16>(backend, {{n, 256, 128, true}, 2, 1});
  ops::project_qkv_case<bf16>(backend, {{2, 1024, 128, true}, 4, 2});
  ops::project_qkv_case<bf16>(backend, {{7, 96, 64, true}, 3, 1});
  ops::project_qkv_case<bf16>(backend, {{5, 2056, 64, true}, 0, 2});
}

TEST_CASE("project_qkv as start-up tunes it equals float64") {
  if (!has_gpu()) return;
  CudaBackend backend(BackendConfig{});
  const std::int64_t in = 256, heads = 4, kv_heads = 2, head_dim = 128;
  const cuda::DeviceMatrix<bf16> weight((heads + 2 * kv_heads) * head_dim, in);
  auto norm = GpuArray<bf16>::random(static_cast<std::size_t>(in), 1);
  backend.tune(Projections<bf16, cuda::DeviceMatrix<bf16>, bf16>{
      .list = {{ProjectionRole::qkv, {&weight}, {{norm.data(), {in}}, 1e-6f}, false, 100}},
      .kv_heads = {kv_heads, head_dim}});
  for (const std::int64_t n : {1, 2, 7, 8, 9, 33, 70})
    ops::project_qkv_case<bf16>(backend, {{n, in, head_dim, true}, heads, kv_heads});
}

TEMPLATE_TEST_CASE("project_qkv of few rows in one kernel behind poison, again and in a graph",
                   "[racecheck]", bf16, Int8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  for (const std::int64_t m : {3, 8}) {
    Projection<TestType> projection(m, 1032, {2, 1, m == 3 ? 128 : 64});
    const Bytes expected = by_one(projection, gpu);
    poison_shared_memory(gpu.context);
    CHECK(by_one(projection, gpu) == expected);
    const cuda::Graph graph = cuda::Graph::capture(gpu.context.stream, [&] {
      for (int i = 0; i < 3; ++i)
        REQUIRE(cuda::small_m_project_qkv(projection.args(), gpu.context));
    });
    for (int i = 0; i < 3; ++i) {
      projection.poison_outputs(gpu.context);
      poison_shared_memory(gpu.context);
      graph.launch(gpu.context.stream);
      gpu.sync();
      CHECK(projection.results() == expected);
    }
  }
}

TEST_CASE("project_qkv of few rows in one kernel refuses what does not fit") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  const auto takes = [&](Projection<> projection) {
    return cuda::small_m_project_qkv(projection.args(), gpu.context);
  };
  CHECK_FALSE(takes({9, 64, {2, 1, 128}}));
  CHECK_FALSE(takes({2, 60, {2, 1, 128}}));
  CHECK_FALSE(takes({2, 64, {2, 1, 96}}));
  Projection<> plain(2, 64, {2, 1, 64});
  auto args = plain.args();
  args.norm = {};
  CHECK_FALSE(cuda::small_m_project_qkv(args, gpu.context));
}

}  // namespace nanovllm::test
