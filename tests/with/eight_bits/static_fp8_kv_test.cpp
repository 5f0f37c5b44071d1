#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/kernels/kv_store.hpp"
#include "nanovllm/kv/kv_pool.hpp"

using namespace nanovllm;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
std::vector<fp8_e4m3> stored(const std::vector<T>& row, float scale) {
  std::vector<fp8_e4m3> out(row.size());
  const auto n = static_cast<std::int64_t>(row.size());
  CHECK(StaticFp8Kv::store(row.data(), n, out.data(), scale) == scale);
  return out;
}

/// What attention reads of `row`.
template <class T>
std::vector<float> there_and_back(const std::vector<T>& row, float scale) {
  std::vector<float> out(row.size());
  StaticFp8Kv::load(stored(row, scale).data(), scale, static_cast<std::int64_t>(row.size()),
                    out.data());
  return out;
}

/// The multiple of e4m3's step at `x` that is nearest, ties to even, at most ±448.
double nearest_e4m3(double x) {
  const double magnitude = std::abs(x);
  const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
  const double step = std::ldexp(1., exponent - 3);
  return std::copysign(std::min(std::nearbyint(magnitude / step) * step, 448.), x);
}

}  // namespace

static_assert(sizeof(KvView<float>) == 40 && sizeof(KvView<Fp8Kv>) == 40);  // no scales in these
static_assert(sizeof(KvView<StaticFp8Kv>) == 48);
static_assert(kv_format_name<StaticFp8Kv>() != kv_format_name<Fp8Kv>());

// float8_e4m3fn of ml_dtypes 0.6.0 (JAX's), of numpy.clip(x / scale, -448, 448) in float32.
TEST_CASE("rows by fixed scales have the bits of another implementation", "[fp8]") {
  const std::vector<float> row = {
      0.f,     -0.f,         1.f,           -1.f,       1.0625f,        1.1875f,
      0.3f,    -0.7f,        3.14159f,      17.3f,      -100.5f,        240.f,
      447.9f,  448.f,        449.f,         -464.1f,    1e9f,           0.015625f,
      0.0146f, 0.001953125f, 0.0009765625f, 9.7657e-4f, -0.0029296875f, 1e-6f};
  struct Case {
    float scale;
    std::array<std::uint8_t, 24> bits;
  };
  const std::vector<Case> cases = {
      {1.f, {0x00, 0x80, 0x38, 0xb8, 0x38, 0x3a, 0x2a, 0xb3, 0x45, 0x59, 0xed, 0x77,
             0x7e, 0x7e, 0x7e, 0xfe, 0x7e, 0x08, 0x07, 0x01, 0x00, 0x01, 0x82, 0x00}},
      {0.0173f, {0x00, 0x80, 0x66, 0xe6, 0x67, 0x69, 0x59, 0xe2, 0x73, 0x7e, 0xfe, 0x7e,
                 0x7e, 0x7e, 0x7e, 0xfe, 0x7e, 0x36, 0x36, 0x1e, 0x16, 0x16, 0xa3, 0x00}},
      {0.25f, {0x00, 0x80, 0x48, 0xc8, 0x48, 0x4a, 0x3a, 0xc3, 0x55, 0x69, 0xfd, 0x7e,
               0x7e, 0x7e, 0x7e, 0xfe, 0x7e, 0x18, 0x17, 0x04, 0x02, 0x02, 0x86, 0x00}},
      {3.7f, {0x00, 0x80, 0x29, 0xa9, 0x29, 0x2a, 0x1a, 0xa4, 0x36, 0x49, 0xde, 0x68,
              0x6f, 0x6f, 0x6f, 0xf0, 0x7e, 0x02, 0x02, 0x00, 0x00, 0x00, 0x80, 0x00}}};
  for (const Case& c : cases) {
    const std::vector<fp8_e4m3> got = stored(row, c.scale);
    for (std::size_t i = 0; i < row.size(); ++i) {
      CAPTURE(c.scale, i, row[i]);
      CHECK(int{got[i].bits} == int{c.bits[i]});
    }
  }
}

TEST_CASE("rows by fixed scales are divided, not multiplied by 1 / scale", "[fp8]") {
  // By the same implementation; a product would be 0x08 and 0x0d.
  CHECK(int{stored(std::vector<float>{0.06142578646540642f}, 3.7f)[0].bits} == 0x09);
  CHECK(int{stored(std::vector<float>{0.007324219215661287f}, 0.3f)[0].bits} == 0x0c);
}

TEMPLATE_TEST_CASE("rows by fixed scales equal a formula in float64", "[fp8]", float, bf16, half) {
  for (const float scale : {1.f, 0.0173f, 0.25f, 3.7f, 1e-3f}) {
    std::vector<TestType> row;
    for (std::uint32_t i = 0; i < 500; ++i) {
      const auto words = philox4x32(11, {i, 0, 0, 0});
      const double x = (static_cast<double>(words[0]) * 0x1p-31 - 1) *
                       std::exp2(static_cast<double>(i % 24) - 12);
      row.push_back(TestType(static_cast<float>(x)));
    }
    const std::vector<float> got = there_and_back(row, scale);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float x = float(row[i]), quotient = x / scale;
      CAPTURE(scale, i, x);
      CHECK(got[i] == static_cast<float>(nearest_e4m3(double{quotient}) * double{scale}));
      if (std::abs(quotient) <= 448.f)
        CHECK(std::abs(double{got[i]} - x) <=
              std::max(std::abs(double{x}) / 16, double{scale} / 1024) * (1 + 1e-6));
    }
  }
}

TEST_CASE("fixed scales saturate, and NaN stays where it is", "[fp8]") {
  const std::vector<float> got =
      there_and_back(std::vector<float>{1e30f, -1e30f, kInfinity, -kInfinity, kNan, -2.f}, 0.5f);
  CHECK(got[0] == 224.f);
  CHECK(got[1] == -224.f);
  CHECK(got[2] == 224.f);
  CHECK(got[3] == -224.f);
  CHECK(std::isnan(got[4]));
  CHECK(got[5] == -2.f);
  std::vector<fp8_e4m3> one(1);
  const float x = 3.f;
  CHECK(StaticFp8Kv::store(&x, 1, one.data()) == 1.f);  // not given
  CHECK(float(one[0]) == 3.f);
}

TEST_CASE("keys and values are stored by the view's scales, and rows keep them", "[fp8]") {
  constexpr std::int64_t kHeads = 2, kDim = 8, kBlock = 4;
  using Pool = KvPool<StaticFp8Kv, std::vector<fp8_e4m3>>;
  Pool pool({.num_layers = 2,
             .num_kv_heads = kHeads,
             .head_dim = kDim,
             .block_size = kBlock,
             .element_bytes = 1,
             .scale_bytes = 4},
            3);
  CHECK(pool.size_bytes() == 3 * 2 * 2 * kHeads * kBlock * (kDim + 4));
  cpu::ThreadPool threads{1};
  const cpu::Context context{&threads, cpu::best_isa()};
  const Slot slot = 9;  // token 1 of block 2
  std::vector<float> k, v;
  for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
    k.push_back(0.75f * static_cast<float>(i));
    v.push_back(-0.5f * static_cast<float>(i));
  }
  const auto rows = [&](std::vector<float>& data) {
    return TensorView<float, 3>{data.data(), {1, kHeads, kDim}};
  };
  const KvScales layer_scales[] = {{.k = 0.125f, .v = 3.f}, {}};
  for (std::int64_t layer : {0, 1}) {
    const KvScales& scales = layer_scales[layer];
    const KvView<StaticFp8Kv> view = pool.layer(layer).with(scales);
    cpu::kv_store(
        KvStoreArgs<float, StaticFp8Kv>{
            .k = rows(k), .v = rows(v), .slots = {&slot, {1}}, .kv = view},
        context);
    const KvView<StaticFp8Kv> plain = pool.layer(layer);  // as readers have it
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const auto check_row = [&](fp8_e4m3* tile, const std::vector<float>& from, float scale) {
        CHECK(plain.scales(tile)[1] == scale);
        for (std::int64_t d = 0; d < kDim; ++d) {
          const float x = from[static_cast<std::size_t>(head * kDim + d)];
          CHECK(float(tile[kDim + d]) == nearest_e4m3(double{x / scale}));
        }
      };
      check_row(plain.k(2, head), k, scales.k);
      check_row(plain.v(2, head), v, scales.v);
    }
  }
}
