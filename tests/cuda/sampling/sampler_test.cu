// `sample` on CUDA against the CPU.

#include "cuda/sampling/sampler_batch.cuh"

namespace nanovllm::test {

TEST_CASE("Tokens and log-probabilities are the CPU's, whatever the rows ask for", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(3);
  struct Size {
    std::int64_t vocab, rows;
  };
  for (const Size& size : std::vector<Size>{{1, 100},
                                            {2, 200},
                                            {7, 400},
                                            {33, 600},
                                            {127, 300},
                                            {128, 300},
                                            {129, 300},
                                            {1000, 1500},
                                            {1023, 5},
                                            {1025, 300},
                                            {4099, 600},
                                            {8192, 200},
                                            {8193, 200},
                                            {32768, 300},
                                            {32768, 3},
                                            {40001, 150},
                                            {151936, 170},
                                            {151936, 2}}) {
    const Batch batch = random_batch(size.vocab, size.rows, random);
    INFO(size.rows << " rows");
    compare(batch, sample_on_gpu(batch, gpu), batch.expected());
  }
}

TEST_CASE("Few rows and many, strides and odd beginnings make no difference", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(4);
  for (const std::int64_t vocab : {33, 1001, 9999, 70003}) {
    const Batch batch = random_batch(vocab, 40, random);
    const Outputs expected = batch.expected();
    for (const std::int64_t stride :
         {vocab, vocab + 1, vocab + 2, align_up<std::int64_t>(vocab, 8) + 8}) {
      for (const std::int64_t offset : {0, 1, 2, 3}) {
        INFO("stride " << stride << ", offset " << offset);
        compare(batch, sample_on_gpu(batch, gpu, stride, offset), expected);
      }
    }
    for (std::size_t r = 0; r < 6; ++r) {  // alone, by the short slices
      Batch alone(vocab);
      alone.add({batch.logits.begin() + static_cast<std::int64_t>(r) * vocab,
                 batch.logits.begin() + static_cast<std::int64_t>(r + 1) * vocab},
                batch.rows[r],
                {batch.banned.begin() + batch.banned_starts[r],
                 batch.banned.begin() + batch.banned_starts[r + 1]});
      const Outputs out = sample_on_gpu(alone, gpu);
      CHECK(out.tokens[0] == expected.tokens[r]);
    }
  }
}

TEST_CASE("Every filter at the whole vocabulary, over all shapes", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(5);
  Batch batch(151936);
  for (Shape shape : kShapes) {
    const std::vector<float> x = random_row(batch.vocab, shape, random);
    for (SamplingRow s : std::vector<SamplingRow>{{.temperature = 0.f},
                                                  {},
                                                  {.temperature = .3f},
                                                  {.temperature = .6f, .top_k = 20, .top_p = .95f},
                                                  {.top_k = 1},
                                                  {.top_k = 1000},
                                                  {.top_k = 100000, .top_p = .9f},
                                                  {.top_p = .1f},
                                                  {.top_p = .5f},
                                                  {.top_p = .95f},
                                                  {.top_p = .999f},
                                                  {.min_p = .01f},
                                                  {.top_k = 50, .top_p = .9f, .min_p = .1f}}) {
      s.seed = random();
      s.position = random();
      s.num_logprobs = shape == Shape::flat ? 128 : 20;
      batch.add(x, s);
    }
  }
  compare(batch, sample_on_gpu(batch, gpu), batch.expected());
}

TEST_CASE("top_p cuts exactly at sums that float64 represents", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (const std::int64_t vocab : {8, 1024, 2048, 65536}) {
    Batch batch(vocab);
    const std::vector<float> equal(static_cast<std::size_t>(vocab), .5f);
    for (float top_p : {.5f, std::nextafter(.5f, 1.f), std::nextafter(.5f, 0.f), .25f, 0.f}) {
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        batch.add(equal, {.top_p = top_p, .seed = seed});
        batch.add(equal, {.top_k = 3, .top_p = top_p, .seed = seed});
      }
    }
    compare(batch, sample_on_gpu(batch, gpu), batch.expected());
  }
}

TEST_CASE("Frequencies of draws are the probabilities", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  constexpr int kTokens = 64, kChunk = 50'000, kChunks = 8;
  std::mt19937 random(6);
  std::vector<float> x = random_row(kTokens, Shape::normal, random, 1.2f);
  double total = 0;
  for (float logit : x) total += std::exp(double{logit});
  std::vector<double> seen(x.size());
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    Batch batch(kTokens);
    for (int i = 0; i < kChunk; ++i) {
      const auto draw = static_cast<std::uint64_t>(chunk * kChunk + i);
      batch.logits.insert(batch.logits.end(), x.begin(), x.end());
      batch.rows.push_back({.seed = draw / 1000, .position = draw % 1000});
      batch.banned_starts.push_back(0);
    }
    for (TokenId token : sample_on_gpu(batch, gpu).tokens) {
      REQUIRE((token >= 0 && token < kTokens));
      ++seen[static_cast<std::size_t>(token)];
    }
  }
  double chi_square = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(double{x[i]}) / total * kChunk * kChunks;
    chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  CHECK(chi_square < 103.4);  // 63 degrees of freedom: p > 0.001
  CHECK(chi_square > 32.5);   // and not too good to be true: p < 0.999
}

TEST_CASE("Infinities, NaN and rows without a choice", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const std::vector<SamplingRow> all{{.temperature = 0.f, .num_logprobs = 3},
                                     {.seed = 1, .num_logprobs = 3},
                                     {.top_k = 2, .seed = 2, .num_logprobs = 3},
                                     {.top_p = .5f, .seed = 3, .num_logprobs = 3},
                                     {.top_k = 3, .top_p = .9f, .min_p = .1f, .num_logprobs = 3},
                                     {.min_p = .1f, .seed = 5, .num_logprobs = 3}};
  const std::vector<std::vector<float>> rows{{kNaN, 1.f, kNaN, 0.f},
                                             {kNaN, -kInfinity, -3e38f, kNaN},
                                             {1.f, kInfinity, kInfinity, 2.f},
                                             {kNaN, kNaN, kNaN, kNaN},
                                             {-kInfinity, kNaN, -kInfinity, kNaN},
                                             {-3e38f, 3e38f, kNaN, 3e38f},
                                             {-0.f, 0.f, -0.f, 0.f}};
  for (const std::vector<TokenId>& bans :
       std::vector<std::vector<TokenId>>{{}, {0}, {1}, {0, 0, 1}, {0, 1, 2, 3}}) {
    for (const std::int64_t vocab : {4, 3000}) {
      Batch batch(vocab);
      for (std::vector<float> x : rows) {
        x.resize(static_cast<std::size_t>(vocab), kNaN);
        for (const SamplingRow& s : all) batch.add(x, s, bans);
      }
      compare(batch, sample_on_gpu(batch, gpu), batch.expected());
    }
  }
  std::vector<float> late(2000, kNaN);
  late[1999] = -5;
  for (const SamplingRow& s : all) {
    CHECK(sample_one(late, s, gpu) == 1999);
    CHECK(sample_one(late, s, gpu, {1999}) == 0);
  }
  std::vector<TokenId> everything(2000);
  for (std::size_t i = 0; i < everything.size(); ++i) everything[i] = static_cast<TokenId>(i);
  CHECK(sample_one(late, {}, gpu, everything) == 0);
  // Ids that do not exist ban nothing.
  CHECK(sample_one({1.f, 2.f}, {.temperature = 0.f}, gpu, {-1, 2, 1 << 30}) == 1);
}

TEST_CASE("Temperatures so low that the noise is lost", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(7);
  for (Shape shape : {Shape::normal, Shape::ties, Shape::flat}) {
    Batch batch(5000);
    const std::vector<float> x = random_row(5000, shape, random);
    for (float temperature :
         {1e-4f, 1e-6f, 1e-9f, 1e-12f, 1e-20f, 1e-38f, std::numeric_limits<float>::denorm_min()}) {
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        batch.add(x, {.temperature = temperature, .seed = seed});
        batch.add(x, {.temperature = temperature, .top_k = 10, .seed = seed});
        batch.add(x, {.temperature = temperature, .top_p = .9f, .seed = seed});
        batch.add(x, {.temperature = temperature, .min_p = .1f, .seed = seed});
      }
    }
    compare(batch, sample_on_gpu(batch, gpu), batch.expected());
  }
}

TEST_CASE("Many log-probabilities, more than tokens, and more ties than fit", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(8);
  for (const std::int64_t vocab : {5, 100, 1000, 5000, 151936}) {
    Batch batch(vocab);
    for (Shape shape : kShapes) {
      const std::vector<float> x = random_row(vocab, shape, random);
      for (std::int32_t count : {0, 1, 7, 128, 1024}) {
        batch.add(x, {.temperature = .5f, .top_k = 3, .seed = 1, .num_logprobs = count},
                  random_bans(x, random));
      }
    }
    compare(batch, sample_on_gpu(batch, gpu), batch.expected());
  }
}

TEST_CASE("A captured graph decides anew in every replay, and repeats bit by bit", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(9);
  for (const std::int64_t rows : {2, 24}) {
    constexpr std::int64_t kVocab = 50001;
    std::vector<Batch> batches;
    for (int i = 0; i < 4; ++i) {
      batches.push_back(random_batch(kVocab, rows, random));
      Batch& batch = batches.back();
      batch.width = 20;
      batch.banned_starts.assign(static_cast<std::size_t>(rows) + 1, 3);
      batch.banned_starts[0] = 0;
      batch.banned.resize(3, 17);  // one number of bans, so that they fit into the same memory
      for (TokenId& id : batch.banned) id = std::abs(id) % kVocab;
    }
    cuda::SamplerWorkspace workspace(rows + 3, kVocab + 1000, gpu.context);
    DeviceBatch device(batches[0]);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cuda::check_cuda(cudaStreamBeginCapture(gpu.stream.get(), cudaStreamCaptureModeThreadLocal),
                     "");
    cuda::sample(device.args(), workspace, gpu.context);
    cuda::check_cuda(cudaStreamEndCapture(gpu.stream.get(), &graph), "cudaStreamEndCapture");
    cuda::check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    for (const Batch& batch : batches) {
      Outputs first;
      for (int repeat = 0; repeat < 12; ++repeat) {
        device.load(batch);
        cuda::check_cuda(cudaGraphLaunch(exec, gpu.stream.get()), "cudaGraphLaunch");
        gpu.sync();
        const Outputs out = device.outputs();
        if (repeat == 0) compare(batch, out, batch.expected());
        if (repeat == 0) first = out;
        CHECK(out.same_bits(first));
      }
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
}

TEST_CASE("No rows are no work, and what does not fit is named", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  cuda::SamplerWorkspace workspace(4, 100, gpu.context);
  const auto error_of = [&](const Batch& batch) {
    DeviceBatch device(batch);
    try {
      cuda::sample(device.args(), workspace, gpu.context);
      gpu.sync();
    } catch (const ShapeError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto batch_of = [](std::int64_t rows, std::int64_t vocab, std::int32_t width) {
    Batch batch(vocab);
    for (std::int64_t r = 0; r < rows; ++r) {
      batch.add(std::vector<float>(static_cast<std::size_t>(vocab), 1.f), {.num_logprobs = width});
    }
    return batch;
  };
  CHECK(error_of(batch_of(0, 100, -1)).empty());
  CHECK(error_of(batch_of(4, 100, 2)).empty());
  CHECK(error_of(batch_of(5, 100, 2)).find("at most 4 rows") != std::string::npos);
  CHECK(error_of(batch_of(4, 101, 2)).find("100 columns, the workspace's, got [4, 101]") !=
        std::string::npos);
  CHECK(error_of(batch_of(1, 100, 1025)) ==
        "sample: 'top_tokens' must have at most 1024 columns, got 1025");
  CHECK_THROWS_AS(cuda::SamplerWorkspace(1, 0, gpu.context), ConfigError);
}

}  // namespace nanovllm::test
