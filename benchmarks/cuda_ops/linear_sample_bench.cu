/// Times lm_head and the draw of plain rows: `linear` as start-up tunes it and `sample`, against
/// `linear_sample` in one kernel, and against the same kernel that stores its logits.
/// Usage: linear_sample_bench [JSON path [K [rows ...]]]

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/cuda/linear/linear.cuh"
#include "nanovllm/cuda/linear_sample/linear_sample.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/sampling/sampler.cuh"
#include "timing.cuh"

namespace nanovllm::bench {
namespace {

constexpr std::int64_t kVocab = 151936, kMostRows = cuda::kMaxLinearSampleRows;

/// Normal numbers of this deviation.
__global__ void fill(bf16* p, std::int64_t size, float deviation, unsigned key) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < size;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const auto words =
        philox4x32(key, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0});
    const float u = (static_cast<float>(words[0]) + 1.f) * 0x1p-32f;
    const float angle = static_cast<float>(words[1]) * 0x1p-32f;
    p[i] = bf16(deviation * sqrtf(-2.f * logf(u)) * cospif(2.f * angle));
  }
}

/// All operands; weights are beyond L2, so that they come from memory in every call.
struct Operands {
  std::int64_t k;
  cuda::DeviceMatrix<bf16> weight{kVocab, k};
  cuda::DeviceBuffer<bf16> x{static_cast<std::size_t>(kMostRows * k)};
  cuda::DeviceBuffer<float> logits{static_cast<std::size_t>(kMostRows * kVocab)};
  cuda::DeviceBuffer<SamplingRow> rows{kMostRows};
  cuda::DeviceBuffer<std::int32_t> starts{kMostRows + 1};
  cuda::DeviceBuffer<TokenId> tokens{kMostRows};
  cuda::DeviceBuffer<float> logprobs{kMostRows};

  void set_temperature(float temperature) {
    std::vector<SamplingRow> settings(kMostRows);
    for (std::size_t i = 0; i < settings.size(); ++i)
      settings[i].temperature = temperature, settings[i].seed = i;
    cuda::check_cuda(
        cudaMemcpy(rows.data(), settings.data(), rows.size_bytes(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    cuda::check_cuda(cudaMemset(starts.data(), 0, starts.size_bytes()), "cudaMemset");
  }
  [[nodiscard]] FloatLinearArgs<bf16, cuda::DeviceMatrix<bf16>> linear(std::int64_t m) {
    return {.x = MatrixView<const bf16>(x.data(), {m, k}),
            .weight = &weight,
            .y = MatrixView<float>(logits.data(), {m, kVocab})};
  }
  [[nodiscard]] SampleArgs sample(std::int64_t m) {
    SampleArgs args{};
    args.logits = {logits.data(), {m, kVocab}};
    args.plain = true;
    args.batch.rows = {rows.data(), {m}};
    args.batch.banned.starts = {starts.data(), {m + 1}};
    args.tokens = {tokens.data(), {m}};
    args.logprobs = {logprobs.data(), {m}};
    args.top_tokens = {nullptr, {m, 0}};
    args.top_logprobs = {nullptr, {m, 0}};
    return args;
  }
};

int run(int argc, char** argv) {
  cuda::Stream stream;
  const cuda::Context context = cuda::Context::on(stream.get());
  Operands operands{argc > 2 ? std::atoll(argv[2]) : 1024};
  std::vector<std::int64_t> row_counts;
  for (int i = 3; i < argc; ++i) row_counts.push_back(std::atoll(argv[i]));
  if (row_counts.empty()) row_counts = {1, 4, 8, 16, 24, 32, 48, 64};
  fill<<<1024, 256, 0, stream.get()>>>(operands.weight.data(), kVocab * operands.k,
                                       3.f / std::sqrt(static_cast<float>(operands.k)), 1);
  fill<<<64, 256, 0, stream.get()>>>(operands.x.data(), kMostRows * operands.k, 1.f, 2);
  stream.synchronize();
  cuda::LinearEngine engine;
  cuda::SamplerWorkspace sampler(kMostRows, kVocab, context);
  cuda::LinearSampleWorkspace workspace(context);
  cuda::TensorMaps maps;
  const cuda::DeviceMatrix<bf16>* const weights[] = {&operands.weight};
  Report report;
  for (const std::int64_t m : row_counts) {
    engine.tune<bf16, float>(std::span(weights), false, std::span(&m, 1), context);
    const double bytes = 2. * static_cast<double>(kVocab * operands.k);
    const double flop = bytes * static_cast<double>(m);
    const auto add = [&](const std::string& name, const auto& run) {
      report.add(std::to_string(m) + " rows, " + name, time_in_graph(context, run, 8, 12), bytes,
                 flop);
    };
    const auto linear = [&](int) { engine.run(operands.linear(m), context); };
    add("linear", linear);
    for (const float temperature : {1.f, 0.f}) {
      operands.set_temperature(temperature);
      const std::string kind = temperature > 0 ? "drawn" : "greedy";
      add("linear + sample, " + kind, [&](int i) {
        linear(i);
        cuda::sample(operands.sample(m), sampler, context);
      });
      cuda::LinearSampleLayer layer{.x = operands.linear(m).x,
                                    .weight = operands.weight.view(),
                                    .rows = operands.sample(m).batch.rows,
                                    .tokens = operands.sample(m).tokens};
      const auto run = [&](int) {
        static_cast<void>(cuda::linear_sample(layer, workspace, maps, context));
      };
      add("linear_sample, " + kind, run);
      if (temperature > 0) continue;
      layer.logits = operands.linear(m).y;
      add("linear_sample's logits", run);
    }
  }
  if (argc > 1) report.write(argv[1]);
  return 0;
}

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) { return nanovllm::bench::run(argc, argv); }
