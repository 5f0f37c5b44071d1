// Millions of kernels of decode steps after each other, in graphs of 1 to 16 rows in turn, and some
// of up to 200: they neither hang nor change what they give. Hidden; `soak_test "[soak]"` runs it, in
// the time that NANOVLLM_SOAK_LAUNCHES launches take (5 million, about 20 seconds). And the same for
// a moment on two streams at a time.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/sampling/sampler_batch.cuh"
#include "nanovllm/cuda/elementwise/step_boundary.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/hopper/linear/wide_m/wide_m_linear.cuh"
#include "nanovllm/cuda/linear/small_m/small_m_linear.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"

namespace nanovllm::test {
namespace {

using cuda::ProductKind;

constexpr std::int64_t kHidden = 1024, kQkv = 4096, kMiddle = 3072, kVocab = 20'011;
constexpr int kLayers = 28, kMaxRows = 16;
/// Of steps by the kernels for some tens of rows, and for some hundred.
constexpr std::int64_t kMoreRows[] = {17, 40, 64, 72, 200};

/// A decode step without its attention: what is left of each layer, the sampler (of plain rows where
/// the number of rows is odd), and its results in the host's memory.
class Step {
 public:
  Step(std::int64_t rows, const Gpu& gpu)
      : rows_(rows),
        plain_(rows % 2 == 1),
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
      if (plain_) settings.top_k = 0, settings.top_p = 1, settings.min_p = 0;
      batch.add(random_row(kVocab, Shape::normal, random), settings);
    }
    batch_ = std::make_unique<DeviceBatch>(batch);
    sampler_ = std::make_unique<cuda::SamplerWorkspace>(rows, kVocab, gpu.context);
    place_.host[0] = {.tokens = tokens_.data(), .num_rows = rows};
    place_.upload();
    norm_ = GpuArray<bf16>::random(kHidden, 2, .5, 1.5);
  }

  static constexpr int kLaunches = 5 * kLayers + 3;  ///< a step, at least

  /// Enqueues the step.
  void run(const GpuArray<bf16>& weights, const cuda::Context& context) {
    auto& w = const_cast<GpuArray<bf16>&>(weights);
    cuda::check_cuda(cudaMemcpyAsync(x_.data(), start_.data(), start_.size() * sizeof(bf16),
                                     cudaMemcpyDeviceToDevice, context.stream),
                     "cudaMemcpyAsync");
    for (int layer = 0; layer < kLayers; ++layer) {
      product(w, {x_, kHidden, kHidden}, {qkv_, kQkv}, ProductKind::normed, layer, context);
      // Twice, so that what is added to has just been written.
      for (int i = 0; i < 2; ++i)
        product(w, {qkv_, kHidden, kQkv}, {x_, kHidden}, ProductKind::plain, layer + i, context);
      product(w, {x_, kHidden, kHidden}, {middle_, kMiddle}, ProductKind::gated, layer, context);
      product(w, {middle_, kMiddle, kMiddle}, {x_, kHidden}, ProductKind::plain, layer, context);
    }
    const SampleArgs sample = batch_->args(plain_);
    cuda::sample(sample, *sampler_, context);
    cuda::publish_results(PublishResultsArgs{.place = place_.data(),
                                             .tokens = sample.tokens,
                                             .logprobs = sample.logprobs,
                                             .top_tokens = {nullptr, {rows_, 0}},
                                             .top_logprobs = {nullptr, {rows_, 0}}},
                          context);
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
  struct In {
    GpuArray<bf16>& rows;
    std::int64_t cols, stride;
  };
  struct To {
    GpuArray<bf16>& rows;
    std::int64_t cols;
  };

  /// A product by the family that the number of rows is for, each layer by another form of it. What
  /// has no norm is added to the old rows.
  void product(GpuArray<bf16>& w, In in, To to, ProductKind kind, int layer,
               const cuda::Context& context) {
    const bool gated = kind == ProductKind::gated, normed = kind != ProductKind::plain;
    const MatrixView<const bf16> x(in.rows.data(), {rows_, in.cols}, {in.stride, 1});
    const MatrixView<const bf16> weight(w.data(), {gated ? 2 * to.cols : to.cols, in.cols});
    const MatrixView<bf16> y(to.rows.data(), {rows_, to.cols});
    const cuda::DenseLayer<bf16> product{
        .x = x,
        .norm = {normed ? VectorView<const bf16>(norm_.data(), {kHidden})
                        : VectorView<const bf16>{},
                 1e-6f},
        .weight = weight,
        .y = y,
        .accumulate = !normed,
        .gated = gated};
    const auto start = layer % 2 == 0 ? cuda::NextStart::after_wait : cuda::NextStart::at_once;
    if (rows_ > cuda::kMaxMidMRows) {
      const int form = layer % cuda::kWideMForms.size(kind);
      REQUIRE(cuda::wide_m_linear(product, form, maps_, context));
    } else if (rows_ > cuda::kMaxSmallMRows) {
      const int form = layer % cuda::kMidMForms.size(kind);
      REQUIRE(cuda::mid_m_linear(product, form, maps_, context, start));
    } else {
      const int tiles = normed ? 4 + layer % 2 * 2 : 1 + layer % 2;
      REQUIRE(cuda::small_m_linear(product, tiles, context, start));
    }
  }

  std::int64_t rows_;
  bool plain_;
  cuda::TensorMaps maps_;
  GpuArray<bf16> start_, x_, qkv_, middle_, norm_{0};
  GpuArray<ResultsPlace> place_{1};
  cuda::PinnedBuffer<TokenId> tokens_;
  std::unique_ptr<DeviceBatch> batch_;
  std::unique_ptr<cuda::SamplerWorkspace> sampler_;
};

/// Steps of all sizes, captured, with what they give. Steps of one size of two sets may run at a time.
struct Steps {
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<cuda::Graph> graphs;
  std::vector<Step::Results> expected;

  Steps(const GpuArray<bf16>& weights, const Gpu& gpu);

  /// Launches `count` of them, by chance: in one of eight cases one of more than kMaxRows rows, for
  /// those take longer. Returns which was last.
  std::size_t launch(int count, std::mt19937& random, const Gpu& gpu) const {
    std::size_t last = 0;
    for (int i = 0; i < count; ++i) {
      last = random() % 8 == 0 ? kMaxRows + random() % std::size(kMoreRows) : random() % kMaxRows;
      graphs[last].launch(gpu.stream.get());
    }
    return last;
  }
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

Steps::Steps(const GpuArray<bf16>& weights, const Gpu& gpu) {
  std::vector<std::int64_t> sizes(kMaxRows);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), std::begin(kMoreRows), std::end(kMoreRows));
  cuda::Context one_by_one = gpu.context;  // each kernel after the end of the one ahead
  one_by_one.can_overlap = false;
  for (const std::int64_t rows : sizes) {
    steps.push_back(std::make_unique<Step>(rows, gpu));
    Step& step = *steps.back();
    step.run(weights, one_by_one);
    wait_or_end(gpu, 0);
    expected.push_back(step.results());
    graphs.push_back(
        cuda::Graph::capture(gpu.stream.get(), [&] { step.run(weights, gpu.context); }));
  }
}

}  // namespace

TEST_CASE("kernels of decode steps go on for millions of launches", "[.soak]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  const char* const asked = std::getenv("NANOVLLM_SOAK_LAUNCHES");
  const std::int64_t total = asked != nullptr ? std::atoll(asked) : 5'000'000;
  const GpuArray<bf16> weights = GpuArray<bf16>::random(2 * kMiddle * kHidden, 3, -.02, .02);
  const Steps all(weights, gpu);
  std::mt19937 random(5);
  std::int64_t launches = 0, compared = 0;
  while (launches < total) {
    constexpr int kSteps = 200;
    const std::size_t last = all.launch(kSteps, random, gpu);
    launches += kSteps * Step::kLaunches;
    wait_or_end(gpu, launches);
    CAPTURE(launches, last);
    REQUIRE(all.steps[last]->results() == all.expected[last]);
    ++compared;
  }
  std::cout << launches << " launches, results compared " << compared << " times\n";
}

TEST_CASE("decode steps of two streams at a time give what they give alone", "[soak]") {
  if (!has_gpu()) return;
  Gpu gpus[2];
  if (!gpus[0].is_hopper()) return;
  const GpuArray<bf16> weights = GpuArray<bf16>::random(2 * kMiddle * kHidden, 3, -.02, .02);
  const Steps sets[] = {Steps(weights, gpus[0]), Steps(weights, gpus[1])};
  int wrong[2] = {};  // CHECK is for one thread
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 40; ++i) {
        const std::size_t last = sets[t].launch(20, random, gpus[t]);
        wait_or_end(gpus[t], i);
        wrong[t] += !(sets[t].steps[last]->results() == sets[t].expected[last]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong[0] == 0);
  CHECK(wrong[1] == 0);
  for (std::size_t i = 0; i < sets[0].expected.size(); ++i)
    CHECK(sets[0].expected[i] == sets[1].expected[i]);
}

}  // namespace nanovllm::test
