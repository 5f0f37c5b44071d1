// `sample` on CUDA with the promise that all rows are plain: the CPU's tokens, and those without it.

#include "cuda/sampling/sampler_batch.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"

namespace nanovllm::test {

namespace {

constexpr float kTemperatures[] = {0.f,   1.f,   .6f,    1.7f,  1e-3f,  100.f,  1e-30f, 1e30f,
                                   1e-6f, 1e-9f, 1e-12f, 1e-4f, 1e-20f, 1e-38f, 1e38f};

SamplingRow plain_settings(std::mt19937& random, std::size_t num_temperatures) {
  SamplingRow out;
  out.temperature = kTemperatures[random() % num_temperatures];
  if (out.temperature == 0) out.top_k = 3, out.top_p = .5f, out.min_p = .1f;  // ignored
  out.seed = random() * std::uint64_t{0x100000001};
  out.position = random() % 8 == 0 ? random() * std::uint64_t{0x100000003} : random() % 40000;
  REQUIRE(is_plain(out));
  return out;
}

Batch plain_batch(std::int64_t vocab, std::int64_t rows, std::mt19937& random,
                  std::size_t num_temperatures = 5) {
  Batch batch(vocab);
  for (std::int64_t r = 0; r < rows; ++r) {
    batch.add(random_row(vocab, kShapes[random() % std::size(kShapes)], random,
                         random() % 3 == 0 ? .5f : 3.f),
              plain_settings(random, num_temperatures));
  }
  return batch;
}

Outputs sample_plain(const Batch& batch, Gpu& gpu, std::int64_t stride = 0,
                     std::int64_t offset = 0) {
  return sample_on_gpu(batch, gpu, stride, offset, true);
}

}  // namespace

TEST_CASE("Plain rows have the CPU's tokens, few rows and many", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(21);
  struct Size {
    std::int64_t vocab, rows;
  };
  for (const Size& size : std::vector<Size>{
           {1, 100},    {2, 200},     {3, 3},       {5, 300},     {33, 600},   {127, 300},
           {129, 2},    {1000, 1500}, {1023, 5},    {1025, 300},  {2047, 40},  {2049, 40},
           {4099, 600}, {8193, 200},  {32768, 3},   {40001, 150}, {151936, 1}, {151936, 2},
           {151936, 4}, {151936, 33}, {151935, 70}, {151936, 137}}) {
    const Batch batch = plain_batch(size.vocab, size.rows, random, std::size(kTemperatures));
    INFO(size.rows << " rows");
    compare(batch, sample_plain(batch, gpu), batch.expected());
  }
}

TEST_CASE("Tens of thousands of plain rows have the tokens of the general way", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(22);
  for (const std::int64_t vocab : {50001, 32000, 9999, 3000}) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Batch batch = plain_batch(vocab, vocab > 10000 ? 700 : 4000, random);
      compare(batch, sample_plain(batch, gpu), sample_on_gpu(batch, gpu));
    }
  }
}

TEST_CASE("Races of plain rows that float32 cannot tell apart are decided by scores", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(26);
  for (const std::int64_t vocab : {40, 3000, 30000}) {
    Batch batch(vocab);
    for (int r = 0; r < 300; ++r) {
      const SamplingRow settings{
          .temperature = kTemperatures[1 + random() % 3], .seed = random(), .position = random()};
      const auto one = static_cast<std::uint32_t>(random() % batch.vocab);
      const auto other = static_cast<std::uint32_t>((one + 1 + random() % (vocab - 1)) % vocab);
      // Only these two can win, and their scores differ by what a float32 logit is rounded by.
      const auto noise = [&](std::uint32_t token) {
        const auto bits = sampling_bits(settings.seed, settings.position, token);
        return std::log(-std::log1p(-to_unit_interval(bits)));
      };
      std::vector<float> x(static_cast<std::size_t>(vocab), -100.f);
      x[one] = static_cast<float>(double{settings.temperature} * noise(one));
      x[other] = static_cast<float>(double{settings.temperature} * noise(other));
      batch.add(x, settings);
    }
    compare(batch, sample_plain(batch, gpu), batch.expected());
  }
}

TEST_CASE("Strides and odd beginnings make no difference to plain rows", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(23);
  for (const std::int64_t vocab : {33, 1001, 9999, 70003}) {
    for (const std::int64_t rows : {2, 40}) {
      const Batch batch = plain_batch(vocab, rows, random);
      const Outputs expected = batch.expected();
      for (const std::int64_t stride :
           {vocab, vocab + 1, vocab + 2, align_up<std::int64_t>(vocab, 8) + 8}) {
        for (const std::int64_t offset : {0, 1, 2, 3}) {
          INFO("stride " << stride << ", offset " << offset);
          compare(batch, sample_plain(batch, gpu, stride, offset), expected);
        }
      }
    }
  }
}

TEST_CASE("What a plain row draws depends on no other row, nor on their number", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(24);
  const Batch batch = plain_batch(50001, 300, random);
  const Outputs expected = sample_plain(batch, gpu);
  for (const std::size_t count : {1, 2, 3, 4, 9, 40, 132, 133, 265}) {
    Batch some(batch.vocab);
    const std::size_t first = random() % (batch.rows.size() - count);
    for (std::size_t r = first; r < first + count; ++r) {
      some.add({batch.logits.begin() + static_cast<std::int64_t>(r) * batch.vocab,
                batch.logits.begin() + static_cast<std::int64_t>(r + 1) * batch.vocab},
               batch.rows[r]);
    }
    const Outputs out = sample_plain(some, gpu);
    for (std::size_t i = 0; i < count; ++i) CHECK(out.tokens[i] == expected.tokens[first + i]);
  }
}

TEST_CASE("Infinities, NaN and plain rows without a choice", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const std::vector<std::vector<float>> rows{{kNaN, 1.f, kNaN, 0.f},
                                             {kNaN, -kInfinity, -3e38f, kNaN},
                                             {1.f, kInfinity, kInfinity, 2.f},
                                             {kNaN, kNaN, kNaN, kNaN},
                                             {-kInfinity, kNaN, -kInfinity, kNaN},
                                             {-3e38f, 3e38f, kNaN, 3e38f},
                                             {-0.f, 0.f, -0.f, 0.f}};
  for (const bool late : {false, true}) {
    for (const std::int64_t vocab : {4, 3000, 30000}) {
      Batch batch(vocab), few(vocab);
      for (const std::vector<float>& four : rows) {
        std::vector<float> x(static_cast<std::size_t>(vocab), kNaN);
        std::copy(four.begin(), four.end(), late ? x.end() - 4 : x.begin());
        for (const float temperature : kTemperatures) {
          batch.add(x, {.temperature = temperature, .seed = 5});
        }
        few = Batch(vocab);
        for (const float temperature : {0.f, 1.f}) few.add(x, {.temperature = temperature});
        compare(few, sample_plain(few, gpu), few.expected());
      }
      compare(batch, sample_plain(batch, gpu), batch.expected());
    }
  }
}

TEST_CASE("A graph for plain rows decides anew in every replay, and repeats bit by bit",
          "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(25);
  for (const std::int64_t rows : {2, 24}) {
    std::vector<Batch> batches;
    for (int i = 0; i < 4; ++i) {
      batches.push_back(plain_batch(50001, rows, random));
      batches.back().width = 20;  // of lists that are not written
    }
    cuda::SamplerWorkspace workspace(rows + 3, 51001, gpu.context);
    DeviceBatch device(batches[0]);
    const cuda::Graph graph = cuda::Graph::capture(gpu.stream.get(), [&] {
      for (int i = 0; i < 3; ++i) cuda::sample(device.args(true), workspace, gpu.context);
    });
    for (const Batch& batch : batches) {
      const Outputs expected = batch.expected();
      for (int repeat = 0; repeat < 12; ++repeat) {
        device.load(batch);
        graph.launch(gpu.stream.get());
        gpu.sync();
        CHECK(device.outputs().same_bits(expected));
      }
    }
  }
}

}  // namespace nanovllm::test
