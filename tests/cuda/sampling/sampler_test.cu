#include "nanovllm/cuda/sampling/sampler.cuh"

#include <algorithm>
#include <random>
#include <string>
#include <thread>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cpu/kernels/sampler.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr TokenId kPoisonToken = -1;  // what GpuArray's poison reads as

cpu::ThreadPool& pool() {
  static cpu::ThreadPool threads(
      std::min(16, std::max(1, static_cast<int>(std::thread::hardware_concurrency()))));
  return threads;
}

/// The outputs of a call.
struct Outputs {
  std::vector<TokenId> tokens, top_tokens;
  std::vector<float> logprobs, top_logprobs;

  [[nodiscard]] bool same_bits(const Outputs& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
    };
    return same(tokens, other.tokens) && same(top_tokens, other.top_tokens) &&
           same(logprobs, other.logprobs) && same(top_logprobs, other.top_logprobs);
  }
};

/// Rows to sample, on the host.
struct Batch {
  std::int64_t vocab;
  std::vector<float> logits;
  std::vector<SamplingRow> rows;
  std::vector<std::int32_t> banned_starts{0};
  std::vector<TokenId> banned;
  std::int64_t width = 0;

  explicit Batch(std::int64_t size) : vocab(size) {}

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }

  void add(const std::vector<float>& row, const SamplingRow& settings,
           const std::vector<TokenId>& bans = {}) {
    REQUIRE(static_cast<std::int64_t>(row.size()) == vocab);
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(settings);
    banned.insert(banned.end(), bans.begin(), bans.end());
    banned_starts.push_back(static_cast<std::int32_t>(banned.size()));
    width = std::max<std::int64_t>(width, settings.num_logprobs);
  }

  /// What the CPU answers.
  [[nodiscard]] Outputs expected() const {
    std::vector<float> scratch = logits;
    Outputs out;
    out.tokens.assign(rows.size(), kPoisonToken);
    out.logprobs.assign(rows.size(), kNaN);
    out.top_tokens.assign(static_cast<std::size_t>(size() * width), kPoisonToken);
    out.top_logprobs.assign(static_cast<std::size_t>(size() * width), kNaN);
    SampleArgs args;
    args.logits = {scratch.data(), {size(), vocab}};
    args.batch.rows = {rows.data(), {size()}};
    args.batch.banned.starts = {banned_starts.data(), {size() + 1}};
    args.batch.banned.values = {banned.data(), {banned_starts.back()}};
    args.tokens = {out.tokens.data(), {size()}};
    args.logprobs = {out.logprobs.data(), {size()}};
    args.top_tokens = {out.top_tokens.data(), {size(), width}};
    args.top_logprobs = {out.top_logprobs.data(), {size(), width}};
    cpu::sample(args, {.pool = &pool(), .isa = cpu::best_isa()});
    return out;
  }
};

/// A batch on the device. The rows begin `offset` elements behind a 16-byte boundary and are
/// `stride` apart; what lies between them is +inf, which would win if it were read.
class DeviceBatch {
 public:
  explicit DeviceBatch(const Batch& batch, std::int64_t stride = 0, std::int64_t offset = 0)
      : rows_(batch.size()),
        vocab_(batch.vocab),
        width_(batch.width),
        stride_(stride == 0 ? batch.vocab : stride),
        offset_(offset),
        logits_(static_cast<std::size_t>(rows_ * stride_ + offset)),
        settings_(batch.rows),
        starts_(batch.banned_starts),
        banned_(batch.banned.size() + 5),
        tokens_(batch.rows.size()),
        top_tokens_(static_cast<std::size_t>(rows_ * width_)),
        logprobs_(batch.rows.size()),
        top_logprobs_(static_cast<std::size_t>(rows_ * width_)) {
    load(batch);
  }

  /// Other rows of the same shape, in the same memory.
  void load(const Batch& batch) {
    REQUIRE(batch.size() == rows_);
    std::fill(logits_.host.begin(), logits_.host.end(), kInfinity);
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::copy_n(batch.logits.begin() + r * vocab_, vocab_,
                  logits_.host.begin() + offset_ + r * stride_);
    }
    settings_.host = batch.rows;
    starts_.host = batch.banned_starts;
    // As in a captured graph, there is room for more bans than there are.
    REQUIRE(batch.banned.size() <= banned_.size());
    std::copy(batch.banned.begin(), batch.banned.end(), banned_.host.begin());
    logits_.upload();
    settings_.upload();
    starts_.upload();
    banned_.upload();
    poison();
  }

  void poison() {
    for (auto* ids : {&tokens_, &top_tokens_}) {
      std::fill(ids->host.begin(), ids->host.end(), kPoisonToken);
      ids->upload();
    }
    for (auto* values : {&logprobs_, &top_logprobs_}) {
      std::fill(values->host.begin(), values->host.end(), kNaN);
      values->upload();
    }
  }

  [[nodiscard]] SampleArgs args() {
    SampleArgs out;
    out.logits = {logits_.data() + offset_, {rows_, vocab_}, {stride_, 1}};
    out.batch.rows = {settings_.data(), {rows_}};
    out.batch.banned.starts = {starts_.data(), {rows_ + 1}};
    out.batch.banned.values = {banned_.data(), {static_cast<std::int64_t>(banned_.size())}};
    out.tokens = {tokens_.data(), {rows_}};
    out.logprobs = {logprobs_.data(), {rows_}};
    out.top_tokens = {top_tokens_.data(), {rows_, width_}};
    out.top_logprobs = {top_logprobs_.data(), {rows_, width_}};
    return out;
  }

  [[nodiscard]] Outputs outputs() {
    Outputs out;
    for (auto* array : {&tokens_, &top_tokens_}) {
      array->download();
      CHECK(array->guards_intact());
    }
    for (auto* array : {&logprobs_, &top_logprobs_}) {
      array->download();
      CHECK(array->guards_intact());
    }
    CHECK(logits_.guards_intact());
    return {tokens_.host, top_tokens_.host, logprobs_.host, top_logprobs_.host};
  }

 private:
  std::int64_t rows_, vocab_, width_, stride_, offset_;
  GpuArray<float> logits_;
  GpuArray<SamplingRow> settings_;
  GpuArray<std::int32_t> starts_;
  GpuArray<TokenId> banned_, tokens_, top_tokens_;
  GpuArray<float> logprobs_, top_logprobs_;
};

Outputs sample_on_gpu(const Batch& batch, Gpu& gpu, std::int64_t stride = 0,
                      std::int64_t offset = 0) {
  cuda::SamplerWorkspace workspace(batch.size(), batch.vocab, gpu.context);
  DeviceBatch device(batch, stride, offset);
  cuda::sample(device.args(), workspace, gpu.context);
  gpu.sync();
  return device.outputs();
}

TokenId sample_one(const std::vector<float>& row, const SamplingRow& settings, Gpu& gpu,
                   const std::vector<TokenId>& bans = {}) {
  Batch batch(static_cast<std::int64_t>(row.size()));
  batch.add(row, settings, bans);
  return sample_on_gpu(batch, gpu).tokens[0];
}

std::string describe(const Batch& batch, std::int64_t r) {
  const SamplingRow& s = batch.rows[static_cast<std::size_t>(r)];
  return concat("row ", r, " of vocabulary ", batch.vocab, ": temperature ", s.temperature,
                ", top_k ", s.top_k, ", top_p ", s.top_p, ", min_p ", s.min_p, ", logprobs ",
                s.num_logprobs, ", bans ",
                batch.banned_starts[static_cast<std::size_t>(r + 1)] -
                    batch.banned_starts[static_cast<std::size_t>(r)]);
}

/// Tokens are the CPU's, without exception: both decide in float64. Log-probabilities are within
/// 1e-5 of the truth on both.
void compare(const Batch& batch, const Outputs& out, const Outputs& expected) {
  std::int64_t wrong = 0;
  const auto close = [](float a, float b) {
    return (std::isnan(a) && std::isnan(b)) || a == b || std::abs(a - b) < 2e-5f;
  };
  for (std::int64_t r = 0; r < batch.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    bool good = out.tokens[i] == expected.tokens[i] && close(out.logprobs[i], expected.logprobs[i]);
    for (std::int64_t j = 0; j < batch.width; ++j) {
      const auto k = static_cast<std::size_t>(r * batch.width + j);
      good = good && out.top_tokens[k] == expected.top_tokens[k] &&
             close(out.top_logprobs[k], expected.top_logprobs[k]);
    }
    if (good || ++wrong > 3) continue;  // a few say enough
    std::string top;
    for (std::int64_t j = 0; j < std::min<std::int64_t>(batch.width, 6); ++j) {
      const auto k = static_cast<std::size_t>(r * batch.width + j);
      top += concat(" ", out.top_tokens[k], "/", expected.top_tokens[k], ":", out.top_logprobs[k],
                    "/", expected.top_logprobs[k]);
    }
    FAIL_CHECK(describe(batch, r) << " gave token " << out.tokens[i] << " with " << out.logprobs[i]
                                  << " and not " << expected.tokens[i] << " with "
                                  << expected.logprobs[i] << top);
  }
  CHECK(wrong == 0);
}

enum class Shape { normal, ties, flat, peaked, sparse, lonely };
constexpr Shape kShapes[] = {Shape::normal, Shape::ties,   Shape::flat,
                             Shape::peaked, Shape::sparse, Shape::lonely};

/// Random rows, fast: stretches of one array of normal numbers.
std::vector<float> random_row(std::int64_t size, Shape shape, std::mt19937& random,
                              float deviation = 3.f) {
  static const std::vector<float> normal = [] {
    std::mt19937 source(99);
    std::normal_distribution<float> distribution;
    std::vector<float> out(1 << 20);
    for (float& x : out) x = distribution(source);
    return out;
  }();
  std::vector<float> out(static_cast<std::size_t>(size));
  const auto start = random() % normal.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    float& x = out[i];
    x = deviation * normal[(start + i) % normal.size()];
    if (shape == Shape::ties) x = std::round(x);
    if (shape == Shape::flat) x = -1.25f;
    if (shape == Shape::sparse && i % 11 != 3) x = -kInfinity;
    if (shape == Shape::lonely) x = -kInfinity;
  }
  const auto one = random() % out.size();
  if (shape == Shape::peaked) out[one] = 6.5f * deviation;
  if (shape == Shape::lonely) out[one] = 3.f;
  return out;
}

/// Settings of every kind, different with each call.
SamplingRow random_settings(std::int64_t vocab, std::mt19937& random) {
  const auto pick = [&](const auto& from) { return from[random() % std::size(from)]; };
  const float temperatures[] = {0.f, .6f, 1.f, 1.f, .6f, 1.7f, 1e-3f};
  const std::int32_t top_ks[] = {0,
                                 0,
                                 0,
                                 1,
                                 5,
                                 20,
                                 20,
                                 50,
                                 1000,
                                 3000,
                                 static_cast<std::int32_t>(vocab) - 1,
                                 static_cast<std::int32_t>(vocab)};
  const float top_ps[] = {1.f, 1.f, 1.f, .95f, .1f, .5f, .8f, .999f, 1e-9f, .999999f};
  const float min_ps[] = {0.f, 0.f, 0.f, .05f, .5f, 1e-6f, 1.f};
  const std::int32_t logprobs[] = {-1, -1, 0, 1, 5, 20};
  SamplingRow out;
  out.temperature = pick(temperatures);
  out.top_k = pick(top_ks);
  out.top_p = pick(top_ps);
  out.min_p = pick(min_ps);
  out.seed = random() * std::uint64_t{0x100000001};
  out.position = random() % 8 == 0 ? random() * std::uint64_t{0x100000003} : random() % 40000;
  out.num_logprobs = pick(logprobs);
  return out;
}

std::vector<TokenId> random_bans(const std::vector<float>& row, std::mt19937& random) {
  std::vector<TokenId> out;
  const auto vocab = row.size();
  const auto kind = random() % 6;
  if (kind < 3) return out;
  const std::size_t count = kind == 3 ? 1 : kind == 4 ? 6 : std::min<std::size_t>(vocab, 700);
  for (std::size_t i = 0; i < count; ++i) out.push_back(static_cast<TokenId>(random() % vocab));
  // The most likely token, or the outcome is the same with and without bans.
  out.push_back(static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
  return out;
}

Batch random_batch(std::int64_t vocab, std::int64_t rows, std::mt19937& random) {
  Batch batch(vocab);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto x = random_row(vocab, kShapes[random() % std::size(kShapes)], random,
                              random() % 3 == 0 ? .5f : 3.f);
    batch.add(x, random_settings(vocab, random), random_bans(x, random));
  }
  return batch;
}

}  // namespace

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
    cuda::check(cudaStreamBeginCapture(gpu.stream.get(), cudaStreamCaptureModeThreadLocal), "");
    cuda::sample(device.args(), workspace, gpu.context);
    cuda::check(cudaStreamEndCapture(gpu.stream.get(), &graph), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    for (const Batch& batch : batches) {
      Outputs first;
      for (int repeat = 0; repeat < 12; ++repeat) {
        device.load(batch);
        cuda::check(cudaGraphLaunch(exec, gpu.stream.get()), "cudaGraphLaunch");
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
