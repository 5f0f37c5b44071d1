// Ops whose operands are of different element types, on the CPU and on each of its instruction
// sets. The law: they give, bit for bit, what the op of one type gives for the same values.

#include <cstdint>
#include <vector>

#include "nanovllm/cpu/backend.hpp"
#include "ops/rig.hpp"

using namespace nanovllm;
using namespace nanovllm::test::ops;

namespace {

template <class T>
std::vector<float> widened(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

template <class W>
std::vector<float> product(CpuBackend& backend, Array<CpuBackend, float>& x,
                           const Weight<CpuBackend, W>& w, std::int64_t cols) {
  const std::int64_t n = static_cast<std::int64_t>(x.host.size()) / cols, rows = w.matrix.rows();
  auto y = Array<CpuBackend, float>::random(backend, n * rows, 3);
  backend.run(LinearArgs<float, typename CpuBackend::Matrix<W>>{x.matrix(cols), &w.matrix,
                                                                y.matrix(rows), true});
  y.download();
  return y.host;
}

template <class F>
void on_every_isa(const F& test) {
  for (int isa = static_cast<int>(cpu::kLeastIsa); isa <= static_cast<int>(cpu::best_isa());
       ++isa) {
    INFO("isa " << cpu::name(static_cast<cpu::Isa>(isa)));
    CpuBackend backend(BackendConfig{.num_threads = 2}, static_cast<cpu::Isa>(isa));
    test(backend);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("linear and embedding: 16-bit weights, float32 activations", "[ops][mixed]",
                   bf16, half) {
  on_every_isa([](CpuBackend& backend) {
    for (const std::int64_t cols : {1, 31, 64, 65, 200, 513}) {
      for (const std::int64_t n : {1, 5, 13}) {
        INFO(n << " rows of " << cols);
        const std::int64_t rows = 37;
        const Weight<CpuBackend, TestType> narrow(backend, rows, cols, 2);
        Weight<CpuBackend, float> wide(backend, rows, cols, 2);
        wide.host = widened(narrow.host);
        backend.set_rows(wide.matrix, 0, MatrixView<const float>(wide.host.data(), {rows, cols}));
        auto x = Array<CpuBackend, float>::random(backend, n * cols, 1);
        REQUIRE(same_bits(product(backend, x, narrow, cols), product(backend, x, wide, cols)));

        Array<CpuBackend, TokenId> tokens(backend, std::vector<TokenId>{0, 36, 35, 7, 99});
        Array<CpuBackend, float> a(backend, 5 * cols), b(backend, 5 * cols);
        backend.run(EmbeddingArgs<float, CpuBackend::Matrix<TestType>>{
            tokens.vector(), &narrow.matrix, 0, a.matrix(cols)});
        backend.run(EmbeddingArgs<float, CpuBackend::Matrix<float>>{tokens.vector(), &wide.matrix,
                                                                    0, b.matrix(cols)});
        a.download(), b.download();
        REQUIRE(same_bits(a.host, b.host));
      }
    }
  });
}

TEMPLATE_TEST_CASE("norms: 16-bit weights, float32 activations", "[ops][mixed]", bf16, half) {
  on_every_isa([](CpuBackend& backend) {
    for (const std::int64_t width : {1, 16, 75}) {
      auto x = Array<CpuBackend, float>::random(backend, 3 * width, 1);
      auto narrow = Array<CpuBackend, TestType>::random(backend, width, 2);
      Array<CpuBackend, float> wide(backend, widened(narrow.host));
      auto r1 = Array<CpuBackend, float>::random(backend, 3 * width, 4);
      auto r2 = Array<CpuBackend, float>::random(backend, 3 * width, 4);
      Array<CpuBackend, float> a(backend, 3 * width), b(backend, 3 * width);
      backend.run(
          RmsNormArgs<float, TestType>{x.matrix(width), narrow.vector(), 1e-6f, a.matrix(width)});
      backend.run(RmsNormArgs<float>{x.matrix(width), wide.vector(), 1e-6f, b.matrix(width)});
      a.download(), b.download();
      REQUIRE(same_bits(a.host, b.host));
      backend.run(AddRmsNormArgs<float, TestType>{x.matrix(width), r1.matrix(width),
                                                  narrow.vector(), 1e-6f, a.matrix(width)});
      backend.run(AddRmsNormArgs<float>{x.matrix(width), r2.matrix(width), wide.vector(), 1e-6f,
                                        b.matrix(width)});
      a.download(), b.download(), r1.download(), r2.download();
      REQUIRE(same_bits(a.host, b.host));
      REQUIRE(same_bits(r1.host, r2.host));
    }
  });
}

TEMPLATE_TEST_CASE("attention and kv_store: a 16-bit cache, float32 activations", "[ops][mixed]",
                   bf16, half) {
  on_every_isa([](CpuBackend& backend) {
    for (const std::int64_t d : {8, 64}) {
      constexpr std::int64_t kHeads = 4, kKvHeads = 2, kLen = 75, kBlock = 16, kBlocks = 5;
      const std::int64_t size = kBlocks * 2 * kKvHeads * kBlock * d;
      auto k = Array<CpuBackend, float>::random(backend, kLen * kKvHeads * d, 1);
      auto v = Array<CpuBackend, float>::random(backend, kLen * kKvHeads * d, 2);
      auto q = Array<CpuBackend, float>::random(backend, kLen * kHeads * d, 3);
      std::vector<Slot> slots;
      for (std::int64_t i = 0; i < kLen; ++i) slots.push_back(static_cast<Slot>(79 - i));
      Array<CpuBackend, Slot> slot_array(backend, slots);
      Array<CpuBackend, TestType> narrow(
          backend, std::vector<TestType>(static_cast<std::size_t>(size), TestType(0.f)));
      const KvView<TestType> narrow_kv{narrow.data(), kBlocks, kBlock, kKvHeads, d};
      backend.run(KvStoreArgs<float, TestType>{k.heads(kKvHeads, d), v.heads(kKvHeads, d),
                                               slot_array.vector(), narrow_kv});
      narrow.download();
      // Rounded on the way: what lies in slot 79 is row 0 of k.
      for (std::int64_t i = 0; i < d; ++i) {
        const float expected = TestType(static_cast<float>(k[i]));
        REQUIRE(float{narrow_kv.k(4, 0)[15 * d + i]} == expected);
      }
      Array<CpuBackend, float> wide(backend, widened(narrow.host));
      const KvView<float> wide_kv{wide.data(), kBlocks, kBlock, kKvHeads, d};

      Array<CpuBackend, BlockId> tables(backend, std::vector<BlockId>{3, 1, 0, 2, 4});
      Array<CpuBackend, std::int32_t> starts(backend, std::vector<std::int32_t>{0, kLen});
      Array<CpuBackend, std::int32_t> lens(backend, std::vector<std::int32_t>{kLen});
      Array<CpuBackend, float> a(backend, kLen * kHeads * d), b(backend, kLen * kHeads * d);
      backend.run(VarlenAttentionArgs<float, TestType>{
          q.heads(kHeads, d), k.heads(kKvHeads, d), v.heads(kKvHeads, d), narrow_kv,
          starts.vector(), lens.vector(), tables.matrix(kBlocks), true, 0.3f, a.heads(kHeads, d)});
      backend.run(VarlenAttentionArgs<float>{
          q.heads(kHeads, d), k.heads(kKvHeads, d), v.heads(kKvHeads, d), wide_kv, starts.vector(),
          lens.vector(), tables.matrix(kBlocks), true, 0.3f, b.heads(kHeads, d)});
      a.download(), b.download();
      REQUIRE(same_bits(a.host, b.host));

      const auto one = q.heads(kHeads, d).slice(0, 1);
      backend.run(DecodeAttentionArgs<float, TestType, HeadShape<0, 2>>{
          one, narrow_kv, lens.vector(), tables.matrix(kBlocks), 0.3f,
          a.heads(kHeads, d).slice(0, 1)});
      backend.run(DecodeAttentionArgs<float>{one, wide_kv, lens.vector(), tables.matrix(kBlocks),
                                             0.3f, b.heads(kHeads, d).slice(0, 1)});
      a.download(), b.download();
      REQUIRE(same_bits(a.host, b.host));

      const DecodeAttentionArgs<float, TestType, HeadShape<128, 2>> other{
          one,           narrow_kv,
          lens.vector(), tables.matrix(kBlocks),
          0.3f,          a.heads(kHeads, d).slice(0, 1)};
      CHECK_THROWS_WITH(backend.run(other), Catch::Matchers::Contains("compiled for head_dim 128"));
      const DecodeAttentionArgs<float, TestType, HeadShape<0, 4>> grouped{
          one,           narrow_kv,
          lens.vector(), tables.matrix(kBlocks),
          0.3f,          a.heads(kHeads, d).slice(0, 1)};
      CHECK_THROWS_WITH(backend.run(grouped),
                        Catch::Matchers::Contains("compiled for 4 query heads a kv head"));
    }
  });
}
