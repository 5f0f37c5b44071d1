#include "nanovllm/cpu/kernels/rowwise.hpp"

#include <cstring>
#include <set>

#include "cpu/op_test.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

TestMatrix<float> rope_table(std::int64_t positions, std::int64_t head_dim) {
  TestMatrix<float> out(positions, head_dim, 0);
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      out(p, i) = static_cast<float>(std::cos(angle));
      out(p, head_dim / 2 + i) = static_cast<float>(std::sin(angle));
    }
  }
  return out;
}

const std::vector<std::int32_t> kPositions = {5, 0, 19, 7, 7, 1};
const std::vector<Slot> kSlots = {3, 11, kNoSlot, 0, 8, 7};

}  // namespace

TEMPLATE_TEST_CASE("rope rotates the pairs (j, j + d/2) by the position's angles", "[rope]", float,
                   bf16) {
  cpu::ThreadPool pool(2);
  for (cpu::Isa isa : available_isas()) {
    for (std::int64_t d : {2, 6, 40, 64, 80, 128, 256}) {
      const std::int64_t n = 6, heads = 3;
      auto table = rope_table(20, d);
      auto x = TestMatrix<TestType>::random(n, heads * d, 1);
      const auto before = x;
      cpu::rope(RopeArgs<TestType>{x.heads(d), {kPositions.data(), {n}}, table.view()},
                {&pool, isa});
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t p = kPositions[static_cast<std::size_t>(i)];
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t j = 0; j < d / 2; ++j) {
            const double x1 = before.value(i, h * d + j), x2 = before.value(i, h * d + d / 2 + j);
            const double c = table.value(p, j), s = table.value(p, d / 2 + j);
            const double bound = 1.01 * kUnit<TestType> + 2 * 0x1p-24;
            const double y1 = x1 * c - x2 * s, y2 = x2 * c + x1 * s;
            REQUIRE(std::abs(x.value(i, h * d + j) - y1) <= bound * std::abs(y1) + 0x1p-22);
            REQUIRE(std::abs(x.value(i, h * d + d / 2 + j) - y2) <= bound * std::abs(y2) + 0x1p-22);
          }
        }
      }
      REQUIRE(x.padding_untouched());
    }
  }
}

TEST_CASE("rope refuses positions outside its table and odd head sizes", "[rope]") {
  cpu::ThreadPool pool(1);
  auto table = rope_table(4, 6);
  TestMatrix<float> x(1, 6), odd(1, 5);
  for (std::int32_t position : {-1, 4}) {
    CHECK_THROWS_AS(cpu::rope(RopeArgs<float>{x.heads(6), {&position, {1}}, table.view()}, {&pool}),
                    ShapeError);
  }
  const std::int32_t position = 0;
  CHECK_THROWS_AS(cpu::rope(RopeArgs<float>{odd.heads(5), {&position, {1}}, table.view()}, {&pool}),
                  ShapeError);
}

TEMPLATE_TEST_CASE("kv_store writes each token's heads to its slot and nothing else", "[kv_store]",
                   float, bf16) {
  cpu::ThreadPool pool(2);
  const std::int64_t n = 6, kv_heads = 2, d = 5, block_size = 4, num_blocks = 3;
  auto k = TestMatrix<TestType>::random(n, kv_heads * d, 1),
       v = TestMatrix<TestType>::random(n, kv_heads * d, 2);
  TestMatrix<TestType> cache(1, num_blocks * 2 * kv_heads * block_size * d, 0);
  const KvView<TestType> kv{cache.view().data, num_blocks, block_size, kv_heads, d};
  cpu::kv_store(KvStoreArgs<TestType>{k.heads(d), v.heads(d), {kSlots.data(), {n}}, kv}, {&pool});
  std::set<const TestType*> written;
  for (std::int64_t i = 0; i < n; ++i) {
    const Slot slot = kSlots[static_cast<std::size_t>(i)];
    if (slot == kNoSlot) continue;
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      for (std::int64_t j = 0; j < d; ++j) {
        const TestType* key =
            kv.k(static_cast<BlockId>(slot / block_size), h) + slot % block_size * d + j;
        const TestType* value =
            kv.v(static_cast<BlockId>(slot / block_size), h) + slot % block_size * d + j;
        REQUIRE(static_cast<float>(*key) == k.value(i, h * d + j));
        REQUIRE(static_cast<float>(*value) == v.value(i, h * d + j));
        written.insert(key), written.insert(value);
      }
    }
  }
  REQUIRE(written.size() == 5u * 2 * kv_heads * d);
  for (std::int64_t i = 0; i < num_blocks * 2 * kv_heads * block_size * d; ++i) {
    if (!written.count(kv.data + i)) REQUIRE(std::isnan(static_cast<float>(kv.data[i])));
  }
}

TEST_CASE("kv_store refuses slots outside the cache", "[kv_store]") {
  cpu::ThreadPool pool(1);
  TestMatrix<float> k(1, 4), cache(1, 2 * 2 * 4, 0);
  const KvView<float> kv{cache.view().data, 1, 2, 1, 4};
  for (Slot slot : {Slot{-2}, Slot{2}}) {
    CHECK_THROWS_AS(
        cpu::kv_store(KvStoreArgs<float>{k.heads(4), k.heads(4), {&slot, {1}}, kv}, {&pool}),
        ShapeError);
  }
}

TEMPLATE_TEST_CASE("qk_norm_rope_store equals its three parts in turn, bit for bit",
                   "[qk_norm_rope_store]", float, bf16) {
  cpu::ThreadPool pool(2);
  for (cpu::Isa isa : available_isas()) {
    const cpu::Context context{&pool, isa};
    for (std::int64_t d : {2, 40, 64, 128}) {
      const std::int64_t n = 6, heads = 4, kv_heads = 2, block_size = 4, num_blocks = 3;
      auto table = rope_table(20, d);
      auto q = TestMatrix<TestType>::random(n, heads * d, 1),
           k = TestMatrix<TestType>::random(n, kv_heads * d, 2);
      auto v = TestMatrix<TestType>::random(n, kv_heads * d, 3);
      auto q_norm = TestMatrix<TestType>::random(1, d, 4),
           k_norm = TestMatrix<TestType>::random(1, d, 5);
      auto q2 = q, k2 = k;
      TestMatrix<TestType> cache(1, num_blocks * 2 * kv_heads * block_size * d, 0);
      auto cache2 = cache;
      const KvView<TestType> kv{cache.view().data, num_blocks, block_size, kv_heads, d};
      const KvView<TestType> kv2{cache2.view().data, num_blocks, block_size, kv_heads, d};
      const VectorView<const std::int32_t> positions{kPositions.data(), {n}};
      const VectorView<const Slot> slots{kSlots.data(), {n}};
      cpu::qk_norm_rope_store(
          QkNormRopeStoreArgs<TestType>{q.heads(d), k.heads(d), v.heads(d), q_norm.row_view(0),
                                        k_norm.row_view(0), 1e-6f, positions, table.view(), slots,
                                        kv},
          context);
      for (std::int64_t i = 0; i < n; ++i) {
        const MatrixView<TestType> q_heads(&q2(i, 0), {heads, d}),
            k_heads(&k2(i, 0), {kv_heads, d});
        cpu::rms_norm(RmsNormArgs<TestType>{q_heads, q_norm.row_view(0), 1e-6f, q_heads}, context);
        cpu::rms_norm(RmsNormArgs<TestType>{k_heads, k_norm.row_view(0), 1e-6f, k_heads}, context);
      }
      cpu::rope(RopeArgs<TestType>{q2.heads(d), positions, table.view()}, context);
      cpu::rope(RopeArgs<TestType>{k2.heads(d), positions, table.view()}, context);
      cpu::kv_store(KvStoreArgs<TestType>{k2.heads(d), v.heads(d), slots, kv2}, context);
      INFO(cpu::name(isa) << " head_dim " << d);
      REQUIRE(q.same_bits(q2));
      REQUIRE(k.same_bits(k2));
      REQUIRE(cache.same_bits(cache2));
    }
  }
}
