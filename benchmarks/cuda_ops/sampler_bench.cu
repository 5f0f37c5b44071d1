/// Times `sample` at Qwen3's vocabulary against one read of the logits.
/// Usage: sampler_bench [JSON path]

#include <cmath>
#include <cstdint>
#include <vector>

#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/sampling/sampler.cuh"
#include "timing.cuh"

namespace nanovllm::bench {
namespace {

constexpr std::int64_t kVocab = 151936;
constexpr double kCopyRate = 4.26e12;  // bytes per second

/// What the logits look like: normal numbers of this deviation. 3 is flatter than what a model gives
/// (top_p = 0.95 keeps 13,000 tokens); 0 stands for 1.2 with a few likely tokens on top, and is
/// close to it.
constexpr float kLikely = 0.f;

__global__ void fill(float* logits, std::int64_t size, float deviation) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < size;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const auto words =
        philox4x32(1, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0});
    const float u = (static_cast<float>(words[0]) + 1.f) * 0x1p-32f;
    const float angle = static_cast<float>(words[1]) * 0x1p-32f;
    const float normal = sqrtf(-2.f * logf(u)) * cospif(2.f * angle);
    const bool is_likely = words[2] % 20000 == 0;
    logits[i] =
        deviation == kLikely ? 1.2f * normal + (is_likely ? 14.f : 0.f) : deviation * normal;
  }
}

struct Case {
  const char* name;
  SamplingRow row;
  float deviation = 3;
  bool only_one = false;  ///< the other rows are drawn from the whole vocabulary
  bool plain = false;     ///< with the promise that all rows are plain
};

void measure(const Case& which, std::int64_t rows, const cuda::Context& context,
             cuda::DeviceBuffer<float>& logits, Report& report) {
  std::vector<SamplingRow> settings(static_cast<std::size_t>(rows), which.row);
  for (std::size_t i = 0; i < settings.size(); ++i) {
    if (which.only_one && i != settings.size() / 2) settings[i] = {};
    settings[i].seed = i;
  }
  cuda::DeviceBuffer<SamplingRow> device_rows(settings.size());
  cuda::DeviceBuffer<std::int32_t> starts(settings.size() + 1);
  cuda::DeviceBuffer<TokenId> tokens(settings.size()), top_tokens(settings.size() * 20);
  cuda::DeviceBuffer<float> logprobs(settings.size()), top_logprobs(settings.size() * 20);
  cuda::check_cuda(cudaMemcpy(device_rows.data(), settings.data(), device_rows.size_bytes(),
                              cudaMemcpyHostToDevice),
                   "cudaMemcpy");
  cuda::check_cuda(cudaMemset(starts.data(), 0, starts.size_bytes()), "cudaMemset");
  cuda::SamplerWorkspace workspace(rows, kVocab, context);
  const auto sets = static_cast<int>(static_cast<std::int64_t>(logits.size()) / (rows * kVocab));
  const std::int64_t width = which.row.num_logprobs >= 0 ? 20 : 0;
  const auto run = [&](int i) {
    SampleArgs args;
    args.plain = which.plain;
    args.logits = {logits.data() + i % sets * rows * kVocab, {rows, kVocab}};
    args.batch.rows = {device_rows.data(), {rows}};
    args.batch.banned.starts = {starts.data(), {rows + 1}};
    args.tokens = {tokens.data(), {rows}};
    args.logprobs = {logprobs.data(), {rows}};
    args.top_tokens = {top_tokens.data(), {rows, width}};
    args.top_logprobs = {top_logprobs.data(), {rows, width}};
    cuda::sample(args, workspace, context);
  };
  const double bytes = 4. * static_cast<double>(rows * kVocab);
  const bench::Timing timing = bench::time_in_graph(context, run, 20, 10);
  char name[96];
  std::snprintf(name, sizeof name, "sample %3d %-22s floor %5.1f us: %3.0f %%",
                static_cast<int>(rows), which.name, bytes / kCopyRate * 1e6,
                100 * bytes / kCopyRate * 1e6 / timing.median_us);
  report.add(name, timing, bytes, 0);
}

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  using namespace nanovllm::bench;
  nanovllm::cuda::Stream stream;
  const nanovllm::cuda::Context context = nanovllm::cuda::Context::on(stream.get());
  Report report;
  const std::vector<Case> cases{
      {"greedy", {.temperature = 0.f}},
      {"greedy, plain", {.temperature = 0.f}, 3, false, true},
      {"temperature", {}},
      {"temperature, plain", {}, 3, false, true},
      {"Qwen3", {.temperature = .6f, .top_k = 20, .top_p = .95f}},
      {"top_p", {.top_p = .95f}},
      {"top_p .5", {.top_p = .5f}},
      {"top_p of one row", {.top_p = .95f}, 3, true},
      {"min_p", {.min_p = .05f}},
      {"greedy, logprobs 5", {.temperature = 0.f, .num_logprobs = 5}},
      {"temperature, logprobs 5", {.num_logprobs = 5}},
      {"top_p, deviation 1", {.top_p = .95f}, 1},
      {"top_p, deviation 6", {.top_p = .95f}, 6},
      {"Qwen3, likely", {.temperature = .6f, .top_k = 20, .top_p = .95f}, kLikely},
      {"top_p, likely", {.top_p = .95f}, kLikely},
      {"min_p, likely", {.min_p = .05f}, kLikely},
  };
  nanovllm::cuda::DeviceBuffer<float> logits(static_cast<std::size_t>(512 * 2 * kVocab));
  for (float deviation : {3.f, 1.f, 6.f, kLikely}) {
    fill<<<1024, 256, 0, stream.get()>>>(logits.data(), static_cast<std::int64_t>(logits.size()),
                                         deviation);
    stream.synchronize();
    for (const Case& which : cases) {
      if (which.deviation != deviation) continue;
      for (std::int64_t rows : {1, 8, 64, 256, 512}) {
        measure(which, rows, context, logits, report);
      }
    }
  }
  if (argc > 1) report.write(argv[1]);
}
