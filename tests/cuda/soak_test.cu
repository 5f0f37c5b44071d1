// Millions of kernels of few rows behind each other, in graphs of 1 to 16 rows in turn: they neither
// hang nor change what they give. Hidden; `soak_test "[soak]"` runs it, in the time that
// NANOVLLM_SOAK_LAUNCHES launches take (5 million, about 20 seconds).

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/sampling/sampler_batch.cuh"
#include "nanovllm/cuda/elementwise/publish_results.cuh"
#include "nanovllm/cuda/linear/small_m/fused.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"

namespace nanovllm::test {
namespace {

constexpr std::int64_t kHidden = 1024, kQkv = 4096, kMiddle = 3072, kVocab = 20'011;
constexpr int kLayers = 28, kMaxRows = 16;

/// A decode step without its attention: what is left of each layer, the sampler, and its results in
/// the host's memory.
class Step {
 public:
  Step(std::int64_t rows, const Gpu& gpu)
      : rows_(rows),
        start_(GpuArray<bf16>::random(static_cast<std::size_t>(rows * kHidden), 1)),
        x_(start_.size()),
        qkv_(static_cast<std::size_t>(rows * kQkv)),
        middle_(static_cast<std::size_t>(rows * kMiddle)),
        tokens_(static_cast<std::size_t>(rows)) {
    std::mt19937 random(static_cast<unsigned>(rows));
    Batch batch(kVocab);
    for (std::int64_t r = 0; r < rows; ++r) {
      SamplingRow settings = random_settings(kVocab, random);
      settings.num_logprobs = -1;
      if (r % 2 == 0) settings.top_k = 0, settings.top_p = .9f, settings.temperature = 1;
      batch.add(random_row(kVocab, Shape::normal, random), settings);
    }
    batch_ = std::make_unique<DeviceBatch>(batch);
    sampler_ = std::make_unique<cuda::SamplerWorkspace>(rows, kVocab, gpu.context);
    place_.host[0] = {.tokens = tokens_.data(), .num_rows = rows};
    place_.upload();
    norm_ = GpuArray<bf16>::random(kHidden, 2, .5, 1.5);
  }

  /// Enqueues the step. How many kernels and copies that is.
  int run(const GpuArray<bf16>& weights, const Gpu& gpu) {
    auto& w = const_cast<GpuArray<bf16>&>(weights);
    const cuda::Context& context = gpu.context;
    const auto matrix = [&](std::int64_t n, std::int64_t k) {
      return MatrixView<const bf16>(w.data(), {n, k});
    };
    const auto view = [&](GpuArray<bf16>& of, std::int64_t cols) {
      return MatrixView<bf16>(of.data(), {rows_, cols});
    };
    const auto read = [&](GpuArray<bf16>& of, std::int64_t cols, std::int64_t stride) {
      return MatrixView<const bf16>(of.data(), {rows_, cols}, {stride, 1});
    };
    const cuda::SmallMNorm norm{{norm_.data(), {kHidden}}, 1e-6f};
    cuda::check(cudaMemcpyAsync(x_.data(), start_.data(), start_.size() * sizeof(bf16),
                                cudaMemcpyDeviceToDevice, context.stream),
                "cudaMemcpyAsync");
    for (int layer = 0; layer < kLayers; ++layer) {
      const int tiles = 2 + layer % 3 * 2;
      cuda::small_m_linear(read(x_, kHidden, kHidden), norm, matrix(kQkv, kHidden),
                           view(qkv_, kQkv), false, tiles, context, layer == 0);
      cuda::small_m_linear(read(qkv_, kHidden, kQkv), {}, matrix(kHidden, kHidden),
                           view(x_, kHidden), true, 1, context);
      cuda::small_m_gated_linear(read(x_, kHidden, kHidden), norm, matrix(2 * kMiddle, kHidden),
                                 view(middle_, kMiddle), tiles, context, layer % 2 == 0);
      cuda::small_m_linear(read(middle_, kMiddle, kMiddle), {}, matrix(kHidden, kMiddle),
                           view(x_, kHidden), true, 2, context);
    }
    const SampleArgs sample = batch_->args();
    cuda::sample(sample, *sampler_, context);
    cuda::publish_results(PublishResultsArgs{.place = place_.data(),
                                             .tokens = sample.tokens,
                                             .logprobs = sample.logprobs,
                                             .top_tokens = {nullptr, {rows_, 0}},
                                             .top_logprobs = {nullptr, {rows_, 0}}},
                          context);
    return 4 * kLayers + 4;
  }

  /// What the step has left: the last layer's rows, and the tokens that were published.
  struct Results {
    std::vector<bf16> x;
    std::vector<TokenId> tokens;
    bool operator==(const Results& other) const {
      return tokens == other.tokens && x.size() == other.x.size() &&
             std::memcmp(x.data(), other.x.data(), x.size() * sizeof(bf16)) == 0;
    }
  };
  Results results() {
    x_.download();
    return {x_.host, std::vector<TokenId>(tokens_.data(), tokens_.data() + rows_)};
  }

 private:
  std::int64_t rows_;
  GpuArray<bf16> start_, x_, qkv_, middle_, norm_{0};
  GpuArray<ResultsPlace> place_{1};
  cuda::PinnedBuffer<TokenId> tokens_;
  std::unique_ptr<DeviceBatch> batch_;
  std::unique_ptr<cuda::SamplerWorkspace> sampler_;
};

/// Waits for what is enqueued. A kernel that hangs cannot be ended from here: the program says so
/// and ends itself.
void wait_or_end(const Gpu& gpu, std::int64_t launches) {
  cuda::Event done;
  done.record(gpu.stream.get());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (cudaEventQuery(done.get()) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::fprintf(stderr, "soak: a kernel hangs, some 30 s behind launch %lld\n",
                   static_cast<long long>(launches));
      std::_Exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST_CASE("kernels of few rows go on for millions of launches", "[.soak]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const char* const asked = std::getenv("NANOVLLM_SOAK_LAUNCHES");
  const std::int64_t total = asked != nullptr ? std::atoll(asked) : 5'000'000;
  const GpuArray<bf16> weights = GpuArray<bf16>::random(2 * kMiddle * kHidden, 3, -.02, .02);
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<cuda::Graph> graphs;
  std::vector<Step::Results> expected;
  int launches_a_step = 0;
  for (int rows = 1; rows <= kMaxRows; ++rows) {
    steps.push_back(std::make_unique<Step>(rows, gpu));
    Step& step = *steps.back();
    launches_a_step = step.run(weights, gpu);
    wait_or_end(gpu, 0);
    expected.push_back(step.results());
    graphs.push_back(cuda::Graph::capture(gpu.stream.get(), [&] { step.run(weights, gpu); }));
  }
  std::mt19937 random(5);
  std::int64_t launches = 0, compared = 0;
  while (launches < total) {
    std::size_t last = 0;
    for (int i = 0; i < 200; ++i) {
      last = random() % graphs.size();
      graphs[last].launch(gpu.stream.get());
      launches += launches_a_step;
    }
    wait_or_end(gpu, launches);
    CAPTURE(launches, last + 1);
    REQUIRE(steps[last]->results() == expected[last]);
    ++compared;
  }
  std::cout << launches << " launches, results compared " << compared << " times\n";
}

}  // namespace nanovllm::test
