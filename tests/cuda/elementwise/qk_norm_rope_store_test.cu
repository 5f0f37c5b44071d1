#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"

#include "cuda/gpu_matrix.cuh"
#include "nanovllm/cuda/elementwise/kv_store.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/elementwise/rowwise.cuh"

namespace nanovllm::test {

namespace {

constexpr std::int64_t kMaxPositions = 50;

GpuMatrix<float> rope_table(std::int64_t head_dim, Placement placement = {}) {
  GpuMatrix<float> out(kMaxPositions, head_dim, placement);
  for (std::int64_t p = 0; p < kMaxPositions; ++p) {
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
      const double angle = static_cast<double>(p) * std::pow(100.0, exponent);
      out(p, i) = static_cast<float>(std::cos(angle));
      out(p, head_dim / 2 + i) = static_cast<float>(std::sin(angle));
    }
  }
  out.upload();
  return out;
}

std::vector<std::int32_t> some_positions(std::int64_t n) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<std::int32_t>(i * 31 % kMaxPositions));
  return out;
}

/// Distinct slots in no order; every fifth token has none.
std::vector<Slot> some_slots(std::int64_t n, std::int64_t num_slots) {
  std::vector<Slot> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(i % 5 == 2 ? kNoSlot : i * 7 % num_slots);
  return out;
}

/// One step's activations, laid out as the qkv projection writes them: q, k and v of a token side
/// by side in one row. A cache of 7 does not divide the number of slots, so that i · 7 are
/// distinct.
template <class T>
struct Step {
  std::int64_t n, heads, kv_heads, d, block_size = 3, num_blocks;
  GpuMatrix<T> qkv, q_norm, k_norm, cache;
  GpuMatrix<float> table;
  GpuArray<std::int32_t> positions;
  GpuArray<Slot> slots;

  Step(std::int64_t tokens, std::int64_t q_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
       Placement placement)
      : n(tokens),
        heads(q_heads),
        kv_heads(num_kv_heads),
        d(head_dim),
        num_blocks(tokens % 7 == 6 ? tokens + 2 : tokens + 1),
        qkv(GpuMatrix<T>::random(n, (heads + 2 * kv_heads) * d, 1, placement)),
        q_norm(GpuMatrix<T>::random(1, d, 2)),
        k_norm(GpuMatrix<T>::random(1, d, 3)),
        cache(1, num_blocks * 2 * kv_heads * block_size * d),
        table(rope_table(d, {placement.pad, 0})),
        positions(some_positions(n)),
        slots(some_slots(n, num_blocks * block_size)) {}

  TensorView<T, 3> part(std::int64_t first, std::int64_t count) {
    TensorView<T, 3> out = qkv.heads(d);
    out.data += first * d;
    out.extents[1] = count;
    return out;
  }
  TensorView<T, 3> q() { return part(0, heads); }
  TensorView<T, 3> k() { return part(heads, kv_heads); }
  TensorView<T, 3> v() { return part(heads + kv_heads, kv_heads); }
  KvView<T> kv() { return {cache.view().data, num_blocks, block_size, kv_heads, d}; }
  VectorView<const std::int32_t> position_view() { return {positions.data(), {n}}; }
  VectorView<const Slot> slot_view() { return {slots.data(), {n}}; }

  void fused(Gpu& gpu) {
    cuda::qk_norm_rope_store(
        QkNormRopeStoreArgs<T>{q(), k(), v(), q_norm.row(0), k_norm.row(0), 1e-6f, position_view(),
                               table.view(), slot_view(), kv()},
        gpu.context);
  }
  void in_turn(Gpu& gpu) {
    for (std::int64_t i = 0; i < n; ++i) {
      const MatrixView<T> q_heads(q().at(i), {heads, d}), k_heads(k().at(i), {kv_heads, d});
      cuda::rms_norm(RmsNormArgs<T>{q_heads, q_norm.row(0), 1e-6f, q_heads}, gpu.context);
      cuda::rms_norm(RmsNormArgs<T>{k_heads, k_norm.row(0), 1e-6f, k_heads}, gpu.context);
    }
    cuda::rope(RopeArgs<T>{q(), position_view(), table.view()}, gpu.context);
    cuda::rope(RopeArgs<T>{k(), position_view(), table.view()}, gpu.context);
    cuda::kv_store(KvStoreArgs<T>{k(), v(), slot_view(), kv()}, gpu.context);
  }
  void finish(Gpu& gpu) {
    gpu.sync();
    qkv.download(), cache.download();
  }
  [[nodiscard]] std::int64_t cache_index(Slot slot, std::int64_t head, std::int64_t j) const {
    const std::int64_t block = slot / block_size, offset = slot % block_size;
    return ((block * 2 * kv_heads + head) * block_size + offset) * d + j;
  }
};

/// Expected q and k rows in float64, rounded to T after the norm as the contract says. A rounding
/// that falls the other way is one unit of T, hence the bound.
template <class T>
void check_heads(Step<T>& step, Step<T>& before) {
  Worst worst;
  const std::int64_t d = step.d;
  for (std::int64_t i = 0; i < step.n; ++i) {
    const std::int64_t p = step.positions.host[static_cast<std::size_t>(i)];
    for (std::int64_t h = 0; h < step.heads + step.kv_heads; ++h) {
      GpuMatrix<T>& weight = h < step.heads ? step.q_norm : step.k_norm;
      double sum = 0;
      for (std::int64_t j = 0; j < d; ++j) sum += std::pow(before.qkv.value(i, h * d + j), 2);
      const double inverse = 1 / std::sqrt(sum / static_cast<double>(d) + double{1e-6f});
      const auto normed = [&](std::int64_t j) {
        const double x = rounded<T>(before.qkv.value(i, h * d + j) * inverse);
        return rounded<T>(x * weight.value(0, j));
      };
      for (std::int64_t j = 0; j < d / 2; ++j) {
        const double x1 = normed(j), x2 = normed(j + d / 2);
        const double c = step.table.value(p, j), s = step.table.value(p, d / 2 + j);
        const double tiny = std::is_same_v<T, half> ? 0x1p-22 : 1e-30;
        const double bound = (4.1 * kUnit<T> + 40 * 0x1p-24) * (std::abs(x1) + std::abs(x2)) + tiny;
        worst.add(step.qkv.value(i, h * d + j), x1 * c - x2 * s, bound);
        worst.add(step.qkv.value(i, h * d + d / 2 + j), x2 * c + x1 * s, bound);
      }
    }
  }
  REQUIRE(worst.ratio() <= 1);
}

/// The cache holds exactly the stored tokens' k, as it is in the activations now, and v.
template <class T>
void check_cache(Step<T>& step, Step<T>& before) {
  GpuMatrix<T> expected(1, step.num_blocks * 2 * step.kv_heads * step.block_size * step.d);
  for (std::int64_t i = 0; i < step.n; ++i) {
    const Slot slot = step.slots.host[static_cast<std::size_t>(i)];
    if (slot == kNoSlot) continue;
    for (std::int64_t h = 0; h < step.kv_heads; ++h) {
      for (std::int64_t j = 0; j < step.d; ++j) {
        expected(0, step.cache_index(slot, h, j)) = step.qkv(i, (step.heads + h) * step.d + j);
        expected(0, step.cache_index(slot, step.kv_heads + h, j)) =
            before.qkv(i, (step.heads + step.kv_heads + h) * step.d + j);
      }
    }
  }
  REQUIRE(step.cache.same_bits(expected));
  REQUIRE(step.cache.surroundings_intact());
  REQUIRE(step.qkv.surroundings_intact());
}

}  // namespace

TEMPLATE_TEST_CASE("qk_norm_rope_store is the formula, and its three parts in turn bit for bit",
                   "[qk_norm_rope_store]", float, bf16, half) {
  if (!has_gpu()) return;
  using T = TestType;
  Gpu gpu;
  for (std::int64_t d : {2, 6, 40, 64, 128, 256, 512}) {
    for (std::int64_t n : {0, 1, 6, 33}) {
      for (const Placement& placement : kPlacements) {
        const std::int64_t heads = n == 6 ? 5 : 4, kv_heads = n == 6 ? 1 : 2;
        INFO(n << " tokens, head_dim " << d << ", pad " << placement.pad << ", shift "
               << placement.shift);
        Step<T> before(n, heads, kv_heads, d, placement), fused(n, heads, kv_heads, d, placement),
            in_turn(n, heads, kv_heads, d, placement);
        fused.fused(gpu), in_turn.in_turn(gpu);
        fused.finish(gpu), in_turn.finish(gpu);
        REQUIRE(fused.qkv.same_bits(in_turn.qkv));
        REQUIRE(fused.cache.same_bits(in_turn.cache));
        check_heads(fused, before);
        check_cache(fused, before);
      }
    }
  }
}

TEST_CASE("qk_norm_rope_store of many tokens has the bits of each alone, every time",
          "[qk_norm_rope_store]") {
  if (!has_gpu()) return;
  Gpu gpu;
  Step<bf16> before(1500, 16, 8, 128, {}), first(1500, 16, 8, 128, {});
  first.fused(gpu), first.finish(gpu);
  check_cache(first, before);
  for (int repeat = 0; repeat < 4; ++repeat) {
    Step<bf16> again(1500, 16, 8, 128, {});
    again.fused(gpu), again.finish(gpu);
    REQUIRE(again.qkv.same_bits(first.qkv));
    REQUIRE(again.cache.same_bits(first.cache));
  }
  Step<bf16> few(3, 16, 8, 128, {});  // the same first tokens, elsewhere in a smaller cache
  few.fused(gpu), few.finish(gpu);
  REQUIRE(few.qkv.same_rows(first.qkv, 0, 3, 0));
}

TEST_CASE("the ops between qkv and attention refuse operands that do not fit",
          "[qk_norm_rope_store]") {
  if (!has_gpu()) return;
  Gpu gpu;
  Step<float> odd(2, 4, 2, 5, {}), wide(2, 4, 2, 514, {});
  CHECK_THROWS_AS(odd.fused(gpu), ShapeError);
  CHECK_THROWS_AS(wide.fused(gpu), ShapeError);
  CHECK_THROWS_AS(
      cuda::rope(RopeArgs<float>{odd.q(), odd.position_view(), odd.table.view()}, gpu.context),
      ShapeError);
  CHECK_THROWS_AS(
      cuda::kv_store(KvStoreArgs<float>{odd.q(), odd.v(), odd.slot_view(), odd.kv()}, gpu.context),
      ShapeError);
}

}  // namespace nanovllm::test
