#include "nanovllm/model/rope_scaling.hpp"

#include <numeric>

#include "catch.hpp"

namespace nv = nanovllm;

namespace {

/// A rope and the heads that it turns.
struct Rope {
  nv::RopeConfig rope{};
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
};

std::vector<double> inv_freq_of(const Rope& config) {
  return nv::rope_inv_freq(config.rope, config.head_dim);
}
nv::YarnRange yarn_range(const Rope& config) {
  return nv::yarn_range(config.rope, config.head_dim);
}
double attention_factor(const Rope& config) { return nv::rope_attention_factor(config.rope); }
std::int64_t context_length(const Rope& config) {
  return nv::rope_context_length(config.rope, config.max_position_embeddings);
}

Rope plain(double theta, std::int64_t head_dim, std::int64_t max_positions) {
  Rope config;
  config.head_dim = head_dim;
  config.max_position_embeddings = max_positions;
  config.rope.theta = theta;
  return config;
}

Rope yarn(double theta, std::int64_t head_dim, double factor, std::int64_t original) {
  Rope config = plain(theta, head_dim, original);
  config.rope.type = nv::RopeType::yarn;
  config.rope.factor = factor;
  config.rope.original_max_position_embeddings = original;
  return config;
}

/// What transformers 5.17.0 computes in float32 (ROPE_INIT_FUNCTIONS["yarn"]): the frequencies of
/// some pairs, the sum of all, and the attention factor.
struct Golden {
  Rope config;
  std::vector<std::pair<std::size_t, double>> inv_freq;
  double sum;
  double attention_factor;
};

std::vector<Golden> goldens() {
  std::vector<Golden> out;
  out.push_back({yarn(1e6, 128, 4, 32768),
                 {{0, 1},
                  {1, 0.805842221},
                  {16, 0.0316227786},
                  {25, 0.0041317381},
                  {32, 0.000602941145},
                  {38, 9.26230132e-05},
                  {63, 3.10234441e-07}},
                 5.14403483,
                 1.13862944});

  auto betas = yarn(1e4, 64, 2.5, 2048);
  betas.rope.beta_fast = 16;
  betas.rope.beta_slow = 2;
  betas.rope.attention_factor = 0.75;
  out.push_back({betas,
                 {{0, 1},
                  {1, 0.749894202},
                  {8, 0.100000001},
                  {12, 0.0268793609},
                  {16, 0.00549999997},
                  {19, 0.00168678595},
                  {31, 5.33408565e-05}},
                 3.95264342,
                 0.75});

  auto exact = yarn(5e5, 80, 8, 8192);
  exact.rope.truncate = false;
  exact.rope.mscale = 0.9;
  exact.rope.mscale_all_dim = 0.4;
  out.push_back({exact,
                 {{0, 1},
                  {1, 0.720320463},
                  {10, 0.0376060307},
                  {16, 0.00320845284},
                  {20, 0.000395238632},
                  {24, 4.7591333e-05},
                  {39, 3.4706764e-07}},
                 3.55718538,
                 1.09598802});

  // Contexts so short that both ends of the range fall below the first pair.
  out.push_back({yarn(1e4, 64, 4, 4),
                 {{0, 1}, {1, 0.749894202}, {16, 0.00999999978}, {31, 0.00013335215}},
                 3.99790823,
                 1.13862944});
  out.push_back({yarn(1e4, 64, 4, 32),
                 {{0, 1}, {1, 0.656157434}, {16, 0.00249999994}, {31, 3.33380376e-05}},
                 2.76616688,
                 1.13862944});
  return out;
}

}  // namespace

TEST_CASE("Plain RoPE has the powers of theta for frequencies", "[rope]") {
  const auto config = plain(1e6, 128, 40960);
  const auto inv_freq = inv_freq_of(config);
  REQUIRE(inv_freq.size() == 64);
  for (std::size_t i = 0; i < 64; ++i) {
    const auto exponent = -static_cast<long double>(i) / 64;
    CHECK(inv_freq[i] ==
          Approx(static_cast<double>(std::exp(exponent * std::log(1e6L)))).epsilon(1e-14));
  }
  CHECK(attention_factor(config) == 1);
  CHECK(context_length(config) == 40960);
}

TEST_CASE("YaRN's frequencies and factor are those of transformers", "[rope]") {
  for (const Golden& golden : goldens()) {
    const auto inv_freq = inv_freq_of(golden.config);
    REQUIRE(inv_freq.size() == static_cast<std::size_t>(golden.config.head_dim / 2));
    for (const auto& [i, expected] : golden.inv_freq) {
      CAPTURE(golden.config.rope.theta, golden.config.rope.factor, i);
      CHECK(inv_freq[i] == Approx(expected).epsilon(2e-6));
    }
    const double sum = std::accumulate(inv_freq.begin(), inv_freq.end(), 0.0);
    CHECK(sum == Approx(golden.sum).epsilon(1e-6));
    CHECK(attention_factor(golden.config) == Approx(golden.attention_factor).epsilon(1e-8));
  }
}

TEST_CASE("Qwen3's YaRN passes from plain to stretched between pairs 23 and 40", "[rope]") {
  const auto config = yarn(1e6, 128, 4, 32768);
  const nv::YarnRange range = yarn_range(config);
  CHECK(range.low == 23);
  CHECK(range.high == 40);
  const nv::YarnRange longer = yarn_range(yarn(1e6, 128, 4, 40960));
  CHECK(longer.low == 24);
  CHECK(longer.high == 41);

  const auto stretched = inv_freq_of(config);
  const auto untouched = inv_freq_of(plain(1e6, 128, 40960));
  for (std::size_t i = 0; i < 64; ++i) {
    const double ratio = untouched[i] / stretched[i];
    if (i <= 23) CHECK(ratio == Approx(1).epsilon(1e-12));
    if (i > 23 && i < 40) CHECK((ratio > 1 && ratio < 4));
    if (i >= 40) CHECK(ratio == Approx(4).epsilon(1e-12));
  }
  CHECK(attention_factor(config) == Approx(0.1 * std::log(4.0) + 1).epsilon(1e-14));
}

TEST_CASE("YaRN lengthens the context, and a factor of 1 changes nothing", "[rope]") {
  auto config = yarn(1e6, 128, 4, 32768);
  CHECK(context_length(config) == 131072);
  config.max_position_embeddings = 262144;
  CHECK(context_length(config) == 262144);
  config.rope.factor = 1e300;
  CHECK(context_length(config) == 2147483647);

  const auto one = yarn(1e6, 128, 1, 32768);
  const auto expected = inv_freq_of(plain(1e6, 128, 32768));
  const auto got = inv_freq_of(one);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-14));
  CHECK(attention_factor(one) == 1);
}
