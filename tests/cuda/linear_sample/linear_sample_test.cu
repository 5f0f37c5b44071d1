// Logits and the plain draw from them in one kernel: the logits against float64, the tokens against
// the CPU's draw from the logits that the same kernel stores.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"
#include "cuda/sampling/sampler_batch.cuh"
#include "cuda/spend_time.cuh"
#include "nanovllm/cuda/linear_sample/engine.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"

namespace nanovllm::test {
namespace {

constexpr float kTemperatures[] = {0.f,   1.f,   .6f,    1.7f,  1e-3f,  100.f,  1e-30f, 1e30f,
                                   1e-6f, 1e-9f, 1e-12f, 1e-4f, 1e-20f, 1e-38f, 1e38f};
constexpr std::size_t kUsual = 5;  // of them

SamplingRow plain_settings(std::mt19937& random, std::size_t num_temperatures) {
  SamplingRow out;
  out.temperature = kTemperatures[random() % num_temperatures];
  if (out.temperature == 0) out.top_k = 3, out.top_p = .5f, out.min_p = .1f;  // ignored
  out.seed = random() * std::uint64_t{0x100000001};
  out.position = random() % 8 == 0 ? random() * std::uint64_t{0x100000003} : random() % 40000;
  return out;
}

/// What a layer reads and writes, and a device to run it on. NaN stands between the rows.
class Rig {
 public:
  explicit Rig(const Gpu& gpu) : gpu_(gpu), workspace_(gpu.context) {}

  /// Rows of x and W as they are given; both with elements between their rows.
  void load(GpuMatrix<bf16> x, GpuMatrix<bf16> weight) {
    x_.emplace(std::move(x));
    weight_.emplace(std::move(weight));
  }
  /// x and W such that the logits are those of `batch`, nearly: each in three parts that bf16 holds.
  void load(const Batch& batch) {
    const std::int64_t m = batch.size(), k = align_up<std::int64_t>(3 * m, 8);
    GpuMatrix<bf16> x(m, k, {8, 0}), weight(batch.vocab, k);
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t c = 0; c < k; ++c) x(r, c) = bf16(c / 3 == r ? 1.f : 0.f);
      for (std::int64_t t = 0; t < batch.vocab; ++t) {
        float left = std::max(batch.logits[static_cast<std::size_t>(r * batch.vocab + t)], -1e30f);
        for (int part = 0; part < 3; ++part) {
          const bf16 piece(left);
          weight(t, 3 * r + part) = piece;
          left -= static_cast<float>(piece);
        }
      }
    }
    for (std::int64_t t = 0; t < batch.vocab; ++t)
      for (std::int64_t c = 3 * m; c < k; ++c) weight(t, c) = bf16(0.f);
    x.upload(), weight.upload();
    load(std::move(x), std::move(weight));
  }

  /// The logits of x's first m rows.
  GpuMatrix<float> logits(std::int64_t m, std::int64_t pad = 0) {
    GpuMatrix<float> out(m, vocab(), {pad, 0});
    cuda::LinearSampleLayer layer = this->layer(m);
    layer.logits = out.view();
    poison_shared_memory(gpu_.context);
    REQUIRE(cuda::linear_sample(layer, workspace_, maps_, gpu_.context));
    gpu_.sync();
    out.download();
    REQUIRE(out.surroundings_intact());
    return out;
  }

  /// The tokens of x's first rows, one for each of `settings`, drawn `repeats` times: the same ones.
  std::vector<TokenId> draw(const std::vector<SamplingRow>& settings, int repeats = 1) {
    const auto m = static_cast<std::int64_t>(settings.size());
    GpuArray<SamplingRow> rows(settings);
    std::vector<TokenId> first;
    for (int i = 0; i < repeats; ++i) {
      GpuArray<TokenId> tokens(settings.size());
      cuda::LinearSampleLayer layer = this->layer(m);
      layer.rows = {rows.data(), {m}};
      layer.tokens = {tokens.data(), {m}};
      if (i == 0) poison_shared_memory(gpu_.context);
      REQUIRE(cuda::linear_sample(layer, workspace_, maps_, gpu_.context));
      gpu_.sync();
      tokens.download();
      REQUIRE(tokens.guards_intact());
      if (i == 0) first = tokens.host;
      REQUIRE(tokens.host == first);
    }
    return first;
  }

  /// Draws, and checks that these are the CPU's tokens for the logits that are stored.
  void check(const std::vector<SamplingRow>& settings, int repeats = 1) {
    const auto m = static_cast<std::int64_t>(settings.size());
    const GpuMatrix<float> stored = logits(m);
    Batch batch(vocab());
    for (std::int64_t r = 0; r < m; ++r) {
      std::vector<float> row;
      for (std::int64_t t = 0; t < vocab(); ++t)
        row.push_back(static_cast<float>(stored.value(r, t)));
      batch.add(row, settings[static_cast<std::size_t>(r)]);
    }
    Outputs expected = batch.expected(), out = expected;
    out.tokens = draw(settings, repeats);
    compare(batch, out, expected);
  }

  [[nodiscard]] std::int64_t vocab() { return weight_->view().extent(0); }
  [[nodiscard]] GpuMatrix<bf16>& x() { return *x_; }
  [[nodiscard]] GpuMatrix<bf16>& weight() { return *weight_; }

  [[nodiscard]] cuda::LinearSampleLayer layer(std::int64_t m) {
    const auto rows = x_->view().slice(0, m);
    return {.x = {rows.data, rows.extents, rows.strides},
            .weight = {weight_->view().data, weight_->view().extents}};
  }
  [[nodiscard]] cuda::LinearSampleWorkspace& workspace() { return workspace_; }
  [[nodiscard]] cuda::TensorMaps& maps() { return maps_; }

 private:
  const Gpu& gpu_;
  cuda::LinearSampleWorkspace workspace_;
  cuda::TensorMaps maps_;
  std::optional<GpuMatrix<bf16>> x_, weight_;
};

/// Takes a fifth of a millisecond, and then writes x and the rows' settings.
__global__ void write_late_kernel(bf16* x, const bf16* from, int size, SamplingRow* rows,
                                  const SamplingRow* from_rows, int num_rows) {
  cuda::grid_dependency_launch();
  cuda::grid_dependency_wait();
  spend_time(200'000);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < size; i += static_cast<int>(blockDim.x)) x[i] = from[i];
  for (int i = thread; i < num_rows; i += static_cast<int>(blockDim.x)) rows[i] = from_rows[i];
}

/// Rows of every kind, none of them with an infinite logit.
Batch finite_batch(std::int64_t vocab, std::int64_t rows, std::mt19937& random) {
  Batch batch(vocab);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::vector<float> row = random_row(vocab, kShapes[random() % std::size(kShapes)], random,
                                        random() % 3 == 0 ? .5f : 3.f);
    batch.add(row, {});
  }
  return batch;
}

}  // namespace

TEST_CASE("linear_sample's logits equal float64", "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  Rig rig(gpu);
  for (const auto& [m, vocab, k] : {std::array<std::int64_t, 3>{1, 1, 8},
                                    {1, 300, 1024},
                                    {5, 129, 584},
                                    {16, 255, 64},
                                    {31, 1000, 200},
                                    {64, 513, 1032},
                                    {33, 257, 128},
                                    {17, 640, 72},
                                    {64, 1025, 2120}}) {
    rig.load(GpuMatrix<bf16>::random(m, k, 1, {8, 0}), GpuMatrix<bf16>::random(vocab, k, 2));
    CAPTURE(m, vocab, k);
    const GpuMatrix<float> y = rig.logits(m, 5);
    Worst worst;
    for (std::int64_t i = 0; i<m; i += m> 20 ? 7 : 1) {
      for (std::int64_t t = 0; t < vocab; ++t) {
        double sum = 0, size = 0;
        for (std::int64_t c = 0; c < k; ++c) {
          const double term = rig.x().value(i, c) * rig.weight().value(t, c);
          sum += term, size += std::abs(term);
        }
        worst.add(y.value(i, t), sum,
                  8 * 0x1p-24 * std::sqrt(static_cast<double>(k) + 1.) * size + 1e-30);
      }
    }
    CHECK(worst.ratio() <= 1);
  }
}

TEST_CASE("linear_sample draws the CPU's tokens", "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  Rig rig(gpu);
  std::mt19937 random(31);
  for (const auto& [vocab, rows] : {std::array<std::int64_t, 2>{1, 3},
                                    {2, 8},
                                    {7, 16},
                                    {16, 31},
                                    {33, 50},
                                    {127, 64},
                                    {129, 9},
                                    {1023, 64},
                                    {4099, 33},
                                    {9999, 7},
                                    {20001, 40},
                                    {40001, 1},
                                    {60000, 2},
                                    {33000, 17},
                                    {17003, 63}}) {
    rig.load(finite_batch(vocab, rows, random));
    for (const std::size_t temperatures : {kUsual, std::size(kTemperatures)}) {
      CAPTURE(vocab, rows);
      std::vector<SamplingRow> settings;
      for (std::int64_t r = 0; r < rows; ++r)
        settings.push_back(plain_settings(random, temperatures));
      rig.check(settings, 2);
    }
  }
}

TEST_CASE("linear_sample draws the plain sampler's tokens from many rows", "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  Rig rig(gpu);
  std::mt19937 random(32);
  constexpr std::int64_t kRows = 64, kVocab = 151936, kIn = 64;
  rig.load(GpuMatrix<bf16>::random(kRows, kIn, 3), GpuMatrix<bf16>::random(kVocab, kIn, 4));
  cuda::SamplerWorkspace sampler(kRows, kVocab, gpu.context);
  GpuArray<std::int32_t> starts(std::vector<std::int32_t>(kRows + 1));
  GpuArray<float> logprobs(kRows);
  GpuArray<TokenId> expected(kRows);
  for (const std::int64_t m : {1, 8, 15, 24, 40, 64}) {
    GpuMatrix<float> stored(m, kVocab);
    cuda::LinearSampleLayer layer = rig.layer(m);
    layer.logits = stored.view();
    REQUIRE(cuda::linear_sample(layer, rig.workspace(), rig.maps(), gpu.context));
    for (int repeat = 0; repeat < 30; ++repeat) {
      CAPTURE(m, repeat);
      std::vector<SamplingRow> settings;
      for (std::int64_t r = 0; r < m; ++r) settings.push_back(plain_settings(random, kUsual));
      GpuArray<SamplingRow> rows(settings);
      SampleArgs args{.logits = stored.view(), .plain = true};
      args.batch.rows = {rows.data(), {m}};
      args.batch.banned.starts = {starts.data(), {m + 1}};
      args.tokens = {expected.data(), {m}};
      args.logprobs = {logprobs.data(), {m}};
      args.top_tokens = {nullptr, {m, 0}};
      args.top_logprobs = {nullptr, {m, 0}};
      cuda::sample(args, sampler, gpu.context);
      gpu.sync();
      expected.download();
      const std::vector<TokenId> tokens = rig.draw(settings);
      REQUIRE(std::equal(tokens.begin(), tokens.end(), expected.host.begin()));
    }
  }
}

TEST_CASE(
    "Logits that are no numbers, infinite or equal are drawn from by linear_sample as by the "
    "CPU",
    "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  Rig rig(gpu);
  std::mt19937 random(33);
  enum Kind {
    some_minus_inf,
    all_minus_inf,
    nan,
    plus_inf,
    some_plus_inf,
    ties,
    zeros,
    huge,
    one_late
  };
  for (const std::int64_t vocab : {100, 3000, 40000}) {
    for (const Kind kind : {some_minus_inf, all_minus_inf, nan, plus_inf, some_plus_inf, ties,
                            zeros, huge, one_late}) {
      std::vector<float> row;
      for (std::int64_t t = 0; t < vocab; ++t) {
        const auto word = random();
        float x = static_cast<float>(word % 1000) / 250.f - 2.f;
        if (kind == some_minus_inf && word % 3 != 0) x = -kInfinity;
        if (kind == all_minus_inf) x = -kInfinity;
        if (kind == nan && word % 3 != 0) x = kNaN;
        if (kind == plus_inf && t == vocab / 2) x = kInfinity;
        if (kind == some_plus_inf && word % 50 == 0) x = kInfinity;
        if (kind == ties) x = word % 40 == 0 ? 3.f : 1.f;
        if (kind == zeros) x = word % 2 == 0 ? 0.f : -0.f;
        if (kind == huge) x = x * 1e30f;
        if (kind == one_late) x = t == vocab - 9 ? 1.f : 0.f;
        row.push_back(x);
      }
      for (const std::int64_t m : {1, 9, 20, 40, 64}) {
        GpuMatrix<bf16> x(m, 8), weight(vocab, 8);  // the same logits in all rows
        for (std::int64_t c = 0; c < 8; ++c) {
          for (std::int64_t r = 0; r < m; ++r) x(r, c) = bf16(c == 0 ? 1.f : 0.f);
          for (std::int64_t t = 0; t < vocab; ++t)
            weight(t, c) = bf16(c == 0 ? row[static_cast<std::size_t>(t)] : 0.f);
        }
        x.upload(), weight.upload();
        rig.load(std::move(x), std::move(weight));
        std::vector<SamplingRow> settings;
        for (std::int64_t r = 0; r < m; ++r)
          settings.push_back(
              plain_settings(random, r % 4 == 0 ? std::size(kTemperatures) : kUsual));
        if (kind == one_late) settings[0].temperature = 1e-38f;
        CAPTURE(vocab, static_cast<int>(kind), m);
        rig.check(settings);
      }
    }
  }
}

TEST_CASE("Races in linear_sample that float32 cannot tell apart are decided by scores",
          "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  Rig rig(gpu);
  std::mt19937 random(34);
  for (const std::int64_t vocab : {40, 3000, 30000}) {
    for (const std::int64_t rows : {7, 16, 30, 64}) {
      Batch batch(vocab);
      std::vector<SamplingRow> settings;
      for (std::int64_t r = 0; r < rows; ++r) {
        SamplingRow row{
            .temperature = kTemperatures[1 + random() % 3], .seed = random(), .position = random()};
        const auto one = static_cast<std::uint32_t>(random() % static_cast<unsigned>(vocab));
        const auto other = static_cast<std::uint32_t>(
            (one + 1 + random() % static_cast<unsigned>(vocab - 1)) % static_cast<unsigned>(vocab));
        // In every second row `one` is unlucky, and so is the token that shares its byte of noise.
        const auto is_unlucky = [&](std::uint32_t token) {
          return sampling_bits(row.seed, row.position, token) > 0xe0000000u;
        };
        while (r % 2 == 0 && !(is_unlucky(one) && is_unlucky(one ^ 8u))) ++row.position;
        // Only these two can win, and their scores differ by what a float32 logit is rounded by.
        const auto noise = [&](std::uint32_t token) {
          const auto bits = sampling_bits(row.seed, row.position, token);
          return std::log(-std::log1p(-to_unit_interval(bits)));
        };
        std::vector<float> x(static_cast<std::size_t>(vocab), -100.f);
        x[one] = static_cast<float>(double{row.temperature} * noise(one));
        x[other] = static_cast<float>(double{row.temperature} * noise(other));
        batch.add(x, row);
        settings.push_back(row);
      }
      rig.load(batch);
      CAPTURE(vocab, rows);
      rig.check(settings, 3);
    }
  }
}

TEST_CASE("A row has the same logits among any rows of linear_sample", "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  Rig rig(gpu);
  rig.load(GpuMatrix<bf16>::random(64, 1544, 5), GpuMatrix<bf16>::random(2000, 1544, 6));
  const GpuMatrix<float> all = rig.logits(64);
  for (const std::int64_t m : {1, 8, 9, 16, 17, 32, 33, 63}) {
    CAPTURE(m);
    CHECK(rig.logits(m).same_rows(all, 0, m, 0));
  }
}

TEST_CASE("linear_sample in a graph draws the same a hundred times", "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  Rig rig(gpu);
  std::mt19937 random(35);
  constexpr std::int64_t kVocab = 50000;
  rig.load(GpuMatrix<bf16>::random(64, 128, 7), GpuMatrix<bf16>::random(kVocab, 128, 8));
  for (const std::int64_t m : {3, 16, 31, 64}) {
    std::vector<SamplingRow> settings;
    for (std::int64_t r = 0; r < m; ++r) settings.push_back(plain_settings(random, kUsual));
    GpuArray<SamplingRow> rows(settings);
    GpuArray<TokenId> tokens(settings.size());
    CAPTURE(m);
    const std::vector<TokenId> expected = rig.draw(settings);
    cuda::LinearSampleLayer layer = rig.layer(m);
    layer.rows = {rows.data(), {m}};
    layer.tokens = {tokens.data(), {m}};
    const cuda::Graph graph = cuda::Graph::capture(gpu.context.stream, [&] {
      for (int i = 0; i < 3; ++i)  // one starts while the one before ends
        REQUIRE(cuda::linear_sample(layer, rig.workspace(), rig.maps(), gpu.context));
    });
    for (int repeat = 0; repeat < 100; ++repeat) {
      poison(tokens.data(), m, gpu.context);
      graph.launch(gpu.context.stream);
      gpu.sync();
      tokens.download();
      REQUIRE(tokens.host == expected);
    }
  }
}

TEST_CASE("linear_sample waits for what the kernel ahead of it writes", "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.can_overlap) return;
  Rig rig(gpu);
  std::mt19937 random(37);
  constexpr std::int64_t kVocab = 3000, kIn = 16;  // no logit stands out
  for (const std::int64_t m : {1, 30, 64}) {
    CAPTURE(m);
    rig.load(GpuMatrix<bf16>::random(m, kIn, 11), GpuMatrix<bf16>::random(kVocab, kIn, 12));
    std::vector<SamplingRow> settings;
    for (std::int64_t r = 0; r < m; ++r) settings.push_back(plain_settings(random, kUsual));
    const std::vector<TokenId> expected = rig.draw(settings);
    const GpuMatrix<float> logits = rig.logits(m);
    GpuArray<SamplingRow> rows(settings), late_rows(settings);
    GpuArray<TokenId> tokens(settings.size());
    GpuMatrix<float> y(m, kVocab);
    GpuArray<bf16> x(static_cast<std::size_t>(m * kIn));
    cuda::LinearSampleLayer layer = rig.layer(m);
    layer.x = {x.data(), {m, kIn}};
    const auto run_behind = [&](bool draws) {
      poison(x.data(), m * kIn, gpu.context);
      poison(reinterpret_cast<TokenId*>(late_rows.data()),
             m * static_cast<std::int64_t>(sizeof(SamplingRow) / sizeof(TokenId)), gpu.context);
      gpu.sync();
      cuda::launch(write_late_kernel, {.grid = 1, .block = 256}, gpu.context, x.data(),
                   rig.x().view().data, static_cast<int>(m * kIn), late_rows.data(), rows.data(),
                   static_cast<int>(m));
      if (draws) {
        layer.rows = {late_rows.data(), {m}};
        layer.tokens = {tokens.data(), {m}};
      } else {
        layer.logits = y.view();
      }
      REQUIRE(cuda::linear_sample(layer, rig.workspace(), rig.maps(), gpu.context));
      gpu.sync();
    };
    run_behind(true);
    tokens.download();
    CHECK(tokens.host == expected);
    run_behind(false);
    y.download();
    CHECK(y.same_rows(logits, 0, m, 0));
  }
}

TEST_CASE("linear_sample refuses what it does not do", "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  Rig rig(gpu);
  const auto takes = [&](std::int64_t m, std::int64_t k, std::int64_t pad) {
    rig.load(GpuMatrix<bf16>::random(m, k, 1, {pad, 0}), GpuMatrix<bf16>::random(40, k, 2));
    GpuMatrix<float> y(m, 40);
    cuda::LinearSampleLayer layer = rig.layer(m);
    layer.logits = y.view();
    const bool took = cuda::linear_sample(layer, rig.workspace(), rig.maps(), gpu.context);
    gpu.sync();
    return took;
  };
  CHECK(takes(3, 64, 0));
  CHECK_FALSE(takes(3, 60, 4));  // K
  CHECK_FALSE(takes(3, 64, 3));  // rows of x
  CHECK(takes(64, 64, 0));
  CHECK_FALSE(takes(65, 64, 0));
}

TEST_CASE("LinearSampleEngine draws and stores by what it has timed, and leaves the rest",
          "[linear_sample]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  constexpr std::int64_t kVocab = 3000, kIn = 128, kMost = 300;
  cuda::DeviceMatrix<bf16> weight(kVocab, kIn);
  auto values = GpuMatrix<bf16>::random(kVocab, kIn, 9);
  weight.set_rows(0, MatrixView<const bf16>(&values(0, 0), {kVocab, kIn}));
  auto x = GpuMatrix<bf16>::random(kMost, kIn, 10);
  cuda::LinearSampleEngine engine;
  GpuArray<std::int32_t> starts(std::vector<std::int32_t>(kMost + 1));
  GpuMatrix<float> logits(kMost, kVocab);
  GpuArray<float> logprobs(kMost);
  GpuArray<TokenId> tokens(kMost);
  std::mt19937 random(36);
  std::vector<SamplingRow> settings;
  for (std::int64_t r = 0; r < kMost; ++r) settings.push_back(plain_settings(random, kUsual));
  GpuArray<SamplingRow> rows(settings);
  using Matrix = cuda::DeviceMatrix<bf16>;
  const auto args = [&](std::int64_t m) {
    LinearSampleArgs<bf16, Matrix> out{.x = {x.view().data, {m, kIn}}, .weight = &weight};
    out.sample = {.logits = {logits.view().data, {m, kVocab}}, .plain = true};
    out.sample.batch.rows = {rows.data(), {m}};
    out.sample.batch.banned.starts = {starts.data(), {m + 1}};
    out.sample.tokens = {tokens.data(), {m}};
    out.sample.logprobs = {logprobs.data(), {m}};
    out.sample.top_tokens = {nullptr, {m, 0}};
    out.sample.top_logprobs = {nullptr, {m, 0}};
    return out;
  };
  const auto linear_args = [&](std::int64_t m) {
    return FloatLinearArgs<bf16, Matrix>{
        .x = args(m).x, .weight = &weight, .y = args(m).sample.logits};
  };
  REQUIRE_FALSE(engine.run(args(4), gpu.context));
  REQUIRE_FALSE(engine.run(linear_args(4), gpu.context));
  // Parts that take longer than any kernel of this op.
  cuda::DeviceBuffer<bf16> noise(std::size_t{1} << 27);
  engine.tune(weight, kMost, gpu.context, [&](const auto&) {
    cuda::detail::fill_noise(noise.data(), std::int64_t{1} << 27, gpu.context);
  });
  CHECK_FALSE(engine.run(args(kMost), gpu.context));
  for (const std::int64_t m : {1, 8, 24, 64}) {
    CAPTURE(m);
    CHECK(engine.plan_of(args(m).x, weight).draws);
    REQUIRE(engine.run(linear_args(m), gpu.context));
    gpu.sync();
    logits.download();
    Batch batch(kVocab);
    for (std::int64_t r = 0; r < m; ++r)
      batch.add(std::vector<float>(&logits(r, 0), &logits(r, 0) + kVocab),
                settings[static_cast<std::size_t>(r)]);
    poison(logits.view().data, kMost * kVocab, gpu.context);
    REQUIRE(engine.run(args(m), gpu.context));
    gpu.sync();
    tokens.download();
    Outputs expected = batch.expected(), out = expected;
    out.tokens.assign(tokens.host.begin(), tokens.host.begin() + m);
    compare(batch, out, expected);
    logits.download();
    CHECK(std::isnan(logits.value(0, 0)));  // nothing was written
  }
}

}  // namespace nanovllm::test
