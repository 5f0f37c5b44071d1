#pragma once
/// Operands of `project_qkv` on the device, for kernels that do all of it.

#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/kv_view.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm::test {

using Bytes = std::vector<unsigned char>;

struct Heads {
  std::int64_t heads, kv_heads, head_dim;
};

/// A projection: rows of x are 8 elements apart, those of qkv 3; every third token has no slot.
template <class Kv = bf16, class Matrix = cuda::DeviceMatrix<bf16>>
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
        normed_(size(m * k)),
        cache_(size(kBlocks * cache(nullptr).block_stride())) {
    auto weight = GpuArray<bf16>::random(size(n_ * k), 4, -.25, .25);
    const MatrixView<const bf16> rows(weight.host.data(), {n_, k});
    if constexpr (requires { weight_.set_rows(0, rows); }) {
      weight_.set_rows(0, rows);
    } else {
      const Gpu gpu;
      weight_.set_rows(0, rows, gpu.context);
      gpu.sync();
    }
    for (std::int64_t i = 0; i < m; ++i) {
      positions_.host[size(i)] = static_cast<std::int32_t>(kPositions - 1 - i * 2711 % kPositions);
      slots_.host[size(i)] = i % 3 == 2 ? kNoSlot : (i * 5 + 3) % (kBlocks * kBlockSize);
    }
    positions_.upload();
    slots_.upload();
  }

  [[nodiscard]] ProjectQkvArgs<bf16, Matrix, Kv, bf16> args() {
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
            .qkv = {qkv_.data(), {m_, n_}, {n_ + 3, 1}},
            .normed = {normed_.data(), {m_, k_}}};
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
  Matrix weight_;
  GpuArray<std::int32_t> positions_;
  GpuArray<Slot> slots_;
  GpuArray<bf16> qkv_, normed_;
  GpuArray<Stored> cache_;
};

}  // namespace nanovllm::test
