// top_p without top_k on CUDA: against the CPU, and how much of it takes the exact way.

#include "cuda/sampling/sampler_batch.cuh"

namespace nanovllm::test {

namespace {

/// The draw from the nucleus by clusters of any size, on what the sampler left in its workspace.
__global__ void __launch_bounds__(cuda::kSelectThreads)
    nucleus_kernel(const SampleArgs args, const cuda::SamplerScratch scratch, int num_parts,
                   TokenId* tokens) {
  extern __shared__ __align__(16) std::byte nucleus_shared[];
  auto& shared = *reinterpret_cast<cuda::NucleusShared*>(nucleus_shared);
  cuda::grid_dependency_wait();
  const cuda::BlockCluster cluster;
  const std::int64_t r = blockIdx.x / static_cast<unsigned>(cluster.size);
  const SamplingRow settings = args.batch.rows.data[r];
  const cuda::RowSummary summary =
      cuda::merge_parts(scratch.parts + r * scratch.part_pitch, num_parts, settings);
  const bool has_bans = args.batch.banned.starts.data[r] < args.batch.banned.starts.data[r + 1];
  const cuda::RowTiles row{args.logits.at(r),
                           args.logits.extent(1),
                           scratch.maxima + r * scratch.tile_pitch,
                           has_bans ? scratch.ban_bits + r * scratch.word_pitch : nullptr,
                           summary.largest,
                           cuda::mass_scale(settings),
                           1};
  const TokenId token = cuda::choose_in_nucleus(row, settings, summary, shared);
  if (threadIdx.x == 0) tokens[r * cluster.size + cluster.rank] = token;
}

/// Checks the draw by clusters of 1 to 8 blocks. Returns the share of the draws that need the exact
/// way.
double share_of_exact(const Batch& batch, Gpu& gpu) {
  cuda::SamplerWorkspace workspace(batch.size(), batch.vocab, gpu.context);
  DeviceBatch device(batch);
  const SampleArgs args = device.args();
  cuda::sample(args, workspace, gpu.context);
  gpu.sync();
  const Outputs expected = device.outputs();
  const int parts = cuda::sample_slices(batch.size(), batch.vocab, gpu.context.num_sms).num_parts;
  std::int64_t exact = 0, draws = 0, wrong = 0;
  for (int size = 1; size <= (gpu.context.can_overlap ? 8 : 1); size *= 2) {
    GpuArray<TokenId> tokens(batch.rows.size() * static_cast<std::size_t>(size));
    cuda::launch(nucleus_kernel,
                 {.grid = dim3(static_cast<unsigned>(batch.size() * size)),
                  .block = dim3(cuda::kSelectThreads),
                  .shared_bytes = sizeof(cuda::NucleusShared),
                  .cluster = size},
                 gpu.context, args, workspace.scratch(), parts, tokens.data());
    gpu.sync();
    tokens.download();
    CHECK(tokens.guards_intact());
    for (std::size_t i = 0; i < tokens.host.size(); ++i) {
      const TokenId token = tokens.host[i];
      if (token == cuda::kNoToken)
        ++exact;
      else if (token != expected.tokens[i / static_cast<std::size_t>(size)])
        ++wrong;
      ++draws;
    }
  }
  CHECK(wrong == 0);
  return static_cast<double>(exact) / static_cast<double>(draws);
}

SamplingRow settings_of(float top_p, std::mt19937& random) {
  SamplingRow out;
  out.top_p = top_p;
  out.seed = random() * std::uint64_t{0x100000001};
  out.position = random() % 40000;
  return out;
}

/// What a model's logits look like: noise, and a few likely tokens.
std::vector<float> likely_row(std::int64_t size, std::mt19937& random) {
  std::vector<float> out = random_row(size, Shape::normal, random, 1.2f);
  for (int i = 0; i < 12; ++i) {
    out[random() % out.size()] = 20.f - static_cast<float>(random() % 1000) * .01f;
  }
  return out;
}

constexpr float kTopPs[] = {.95f, .9f, .8f, .5f, .1f, .99f, .999f, .95f};

}  // namespace

TEST_CASE("A nucleus is the CPU's for 1 to 300 rows and all sizes of clusters", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(11);
  for (const std::int64_t rows : {1, 2, 15, 16, 17, 33, 34, 66, 67, 132, 133, 300}) {
    for (const std::int64_t vocab : {8193, 9001, 20011}) {
      Batch batch(vocab);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::vector<float> x =
            r % 3 == 0 ? likely_row(vocab, random)
                       : random_row(vocab, kShapes[r % 6], random, r % 2 == 0 ? 1.f : 3.f);
        SamplingRow s = settings_of(kTopPs[r % 8], random);
        if (r % 5 == 4) s.min_p = .02f;
        if (r % 7 == 6) s.temperature = .6f;
        batch.add(x, s, random_bans(x, random));
      }
      INFO(rows << " rows");
      compare(batch, sample_on_gpu(batch, gpu), batch.expected());
    }
  }
}

TEST_CASE("Nuclei of the whole vocabulary rarely need the exact way", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(12);
  constexpr std::int64_t kVocab = 151'937;
  for (float deviation : {.5f, 1.f, 2.f, 3.f, 6.f, 0.f}) {
    for (const float top_p : {.95f, .9f, .8f, .5f, .1f, .99f, .999f}) {
      Batch batch(kVocab);
      for (int r = 0; r < 24; ++r) {
        batch.add(deviation > 0 ? random_row(kVocab, Shape::normal, random, deviation)
                                : likely_row(kVocab, random),
                  settings_of(top_p, random));
      }
      INFO("deviation " << deviation << ", top_p " << top_p);
      const double share = share_of_exact(batch, gpu);
      if (share > 0) WARN("deviation " << deviation << ", top_p " << top_p << ": " << share);
      if (deviation != .5f) CHECK(share < .05);
      if (top_p == .95f || top_p == .5f || top_p == .999f) {
        compare(batch, sample_on_gpu(batch, gpu), batch.expected());
      }
    }
  }
}

TEST_CASE("Nuclei at the edges: equal logits, a huge one, infinities, ties at the cut",
          "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(13);
  constexpr std::int64_t kVocab = 33'333;
  Batch batch(kVocab);
  const auto add = [&](const std::vector<float>& x, const std::vector<TokenId>& bans = {}) {
    for (const float top_p : {1e-9f, .05f, .5f, .95f, .9998f, .9999f, .99995f, .999999f, 0.f}) {
      for (float temperature : {1.f, .3f, 4.f}) {
        SamplingRow s = settings_of(top_p, random);
        s.temperature = temperature;
        batch.add(x, s, bans);
        s.min_p = .3f;
        batch.add(x, s, bans);
      }
    }
  };
  const std::vector<float> normal = random_row(kVocab, Shape::normal, random);
  std::vector<float> x(normal.size(), -1.25f);
  add(x);  // all equal
  x[7000] = 3e4f;
  add(x);
  add(x, {7000});
  x = normal;
  std::fill(x.begin() + 1000, x.end(), -kInfinity);
  add(x);
  x = normal;
  for (std::size_t i = 0; i < x.size(); i += 2) x[i] = kNaN;
  add(x);
  x = normal;
  for (float& y : x) y = std::round(y);  // thousands of ties wherever the cut is
  add(x);
  for (float& y : x) y = std::round(y * .25f) * 4;
  add(x);
  x = normal;
  std::sort(x.begin(), x.end());  // likely tokens side by side: in few tiles of one block
  add(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i / 128 % 8 == 3) x[i] = 8.f;  // just those that are sampled
  }
  add(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = i / 128 % 8 == 3 ? -8.f : normal[i];  // just those that are not
  }
  add(x);
  for (float& y : x) y = y * 1e-3f + 1e6f;  // as coarse as float32 can be
  add(x);
  compare(batch, sample_on_gpu(batch, gpu), batch.expected());
}

TEST_CASE("One row with top_p among others is drawn as it is alone", "[sampler]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(14);
  constexpr std::int64_t kVocab = 50'001;
  Batch batch(kVocab);
  for (int r = 0; r < 150; ++r) {
    SamplingRow s = settings_of(r == 97 ? .95f : 1.f, random);
    if (r % 3 == 1) s.temperature = 0;
    batch.add(random_row(kVocab, Shape::normal, random), s);
  }
  const Outputs all = sample_on_gpu(batch, gpu);
  compare(batch, all, batch.expected());
  CHECK(sample_one({batch.logits.begin() + 97 * kVocab, batch.logits.begin() + 98 * kVocab},
                   batch.rows[97], gpu) == all.tokens[97]);
}

}  // namespace nanovllm::test
