#pragma once
/// Cases of the ops between the qkv projection and attention: `rope`, `kv_store`, and the fused
/// `qk_norm_rope_store`, which equals `rms_norm`, `rope` and `kv_store` in turn, bit for bit.

#include "ops/rig.hpp"

namespace nanovllm::test::ops {

/// Six tokens of one step.
template <class B, class T>
struct QkvStep {
  static constexpr std::int64_t kTokens = 6, kHeads = 4, kKvHeads = 2, kBlockSize = 4, kBlocks = 3;
  std::int64_t d;
  Array<B, T> q, k, v, q_norm, k_norm, cache;
  Array<B, float> table;
  Array<B, std::int32_t> positions;
  Array<B, Slot> slots;

  QkvStep(B& backend, std::int64_t head_dim)
      : d(head_dim),
        q(Array<B, T>::random(backend, kTokens * kHeads * d, 1)),
        k(Array<B, T>::random(backend, kTokens * kKvHeads * d, 2)),
        v(Array<B, T>::random(backend, kTokens * kKvHeads * d, 3)),
        q_norm(Array<B, T>::random(backend, d, 4)),
        k_norm(Array<B, T>::random(backend, d, 5)),
        cache(backend, kBlocks * 2 * kKvHeads * kBlockSize * d),
        table(Array<B, float>::random(backend, 20 * d, 6, -1, 1)),
        positions(backend, std::vector<std::int32_t>{5, 0, 19, 7, 7, 1}),
        slots(backend, std::vector<Slot>{3, 11, kNoSlot, 0, 8, 7}) {}

  KvView<T> kv() { return {cache.data(), kBlocks, kBlockSize, kKvHeads, d}; }
  TensorView<T, 3> q_heads() { return q.heads(kHeads, d); }
  TensorView<T, 3> k_heads() { return k.heads(kKvHeads, d); }
  TensorView<T, 3> v_heads() { return v.heads(kKvHeads, d); }
  void download() { q.download(), k.download(), v.download(), cache.download(); }

  /// The cache as kv_store should leave it, from k and v as they are on the host.
  std::vector<T> expected_cache(B& backend) {
    std::vector<T> out = Array<B, T>(backend, static_cast<std::int64_t>(cache.host.size())).host;
    for (std::size_t i = 0; i < slots.host.size(); ++i) {
      const Slot slot = slots.host[i];
      if (slot == kNoSlot) continue;
      for (std::int64_t h = 0; h < 2 * kKvHeads; ++h) {
        const auto& from = h < kKvHeads ? k.host : v.host;
        const std::int64_t row = static_cast<std::int64_t>(i) * kKvHeads + h % kKvHeads;
        const std::int64_t tile = slot / kBlockSize * 2 * kKvHeads + h;
        for (std::int64_t j = 0; j < d; ++j) {
          out[static_cast<std::size_t>((tile * kBlockSize + slot % kBlockSize) * d + j)] =
              from[static_cast<std::size_t>(row * d + j)];
        }
      }
    }
    return out;
  }
};

template <class T, class B>
void rope_cases(B& backend) {
  for (std::int64_t d : {2, 40, 64, 128, 256}) {
    INFO("head_dim " << d);
    QkvStep<B, T> step(backend, d), before(backend, d);
    backend.run(RopeArgs<T>{step.q_heads(), step.positions.vector(), step.table.matrix(d)});
    step.download();
    Worst worst;
    for (std::int64_t row = 0; row < step.kTokens * step.kHeads; ++row) {
      const std::int64_t p = step.positions.host[static_cast<std::size_t>(row / step.kHeads)];
      for (std::int64_t j = 0; j < d / 2; ++j) {
        const double x1 = before.q[row * d + j], x2 = before.q[row * d + d / 2 + j];
        const double c = step.table[p * d + j], s = step.table[p * d + d / 2 + j];
        const double y1 = x1 * c - x2 * s, y2 = x2 * c + x1 * s;
        const double slack = 2 * kFloatUnit * (std::abs(x1) + std::abs(x2)) + kTiny<T>;
        worst.add(step.q[row * d + j], y1, 1.01 * kUnit<T> * std::abs(y1) + slack);
        worst.add(step.q[row * d + d / 2 + j], y2, 1.01 * kUnit<T> * std::abs(y2) + slack);
      }
    }
    REQUIRE(worst.ratio() <= 1);
  }
}

template <class T, class B>
void kv_store_cases(B& backend) {
  for (std::int64_t d : {1, 5, 64, 128}) {
    INFO("head_dim " << d);
    QkvStep<B, T> step(backend, d);
    backend.run(KvStoreArgs<T>{step.k_heads(), step.v_heads(), step.slots.vector(), step.kv()});
    step.download();
    REQUIRE(same_bits(step.cache.host, step.expected_cache(backend)));
  }
}

template <class T, class B>
void qk_norm_rope_store_cases(B& backend) {
  for (std::int64_t d : {2, 40, 64, 128, 256}) {
    INFO("head_dim " << d);
    QkvStep<B, T> fused(backend, d), parts(backend, d);
    backend.run(QkNormRopeStoreArgs<T>{fused.q_heads(), fused.k_heads(), fused.v_heads(),
                                       fused.q_norm.vector(), fused.k_norm.vector(), 1e-6f,
                                       fused.positions.vector(), fused.table.matrix(d),
                                       fused.slots.vector(), fused.kv()});
    backend.run(RmsNormArgs<T>{parts.q.matrix(d), parts.q_norm.vector(), 1e-6f, parts.q.matrix(d)});
    backend.run(RmsNormArgs<T>{parts.k.matrix(d), parts.k_norm.vector(), 1e-6f, parts.k.matrix(d)});
    const VectorView<const std::int32_t> positions = parts.positions.vector();
    backend.run(RopeArgs<T>{parts.q_heads(), positions, parts.table.matrix(d)});
    backend.run(RopeArgs<T>{parts.k_heads(), positions, parts.table.matrix(d)});
    backend.run(KvStoreArgs<T>{parts.k_heads(), parts.v_heads(), parts.slots.vector(), parts.kv()});
    fused.download(), parts.download();
    REQUIRE(same_bits(fused.q.host, parts.q.host));
    REQUIRE(same_bits(fused.k.host, parts.k.host));
    REQUIRE(same_bits(fused.cache.host, parts.cache.host));
    REQUIRE(same_bits(fused.cache.host, fused.expected_cache(backend)));
  }
}

}  // namespace nanovllm::test::ops
