// Engines of a GGUF file with blocks of all types on a GPU: in float32 the bits of those of its
// values, and in every type near the CPU's log-probabilities. In 16 and 8 bits two engines may choose
// different kernels (docs/numerics.md).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
#include "with/gguf/gguf_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct Fp8OnGpu : CudaPolicy {
  using Weight = Fp8Block128;
};
struct Fp8OnCpu : DefaultPolicy {
  using Weight = Fp8Block128;
};

using Prompts = std::vector<std::vector<TokenId>>;

Prompts prompts_of(std::int64_t vocab) {
  Prompts out;
  for (std::uint64_t i = 0; i < 4; ++i) out.push_back(random_prompt(i, 2 + 31 * i, vocab));
  return out;
}

/// The log-probability of each token of the prompts but the first ones.
template <class Policy>
std::vector<float> prompt_logprobs(const std::filesystem::path& gguf, const Prompts& prompts) {
  Engine<AnyModel, Policy> engine(config_of(gguf));
  const SamplingParams params{
      .temperature = 0, .max_tokens = 1, .ignore_eos = true, .prompt_logprobs = 0};
  std::vector<float> out;
  for (const Output& output : engine.generate(prompts, params)) {
    REQUIRE(output.error.empty());
    for (const auto& entry : output.prompt_logprobs)
      if (entry) out.push_back(entry->logprob);
  }
  return out;
}

struct LogprobDistance {
  double mean = 0, largest = 0;
};

/// That of two policies' log-probabilities of the same file.
template <class PolicyA, class PolicyB>
LogprobDistance logprob_distance(const std::filesystem::path& gguf, const Prompts& prompts) {
  const std::vector<float> a = prompt_logprobs<PolicyA>(gguf, prompts);
  const std::vector<float> b = prompt_logprobs<PolicyB>(gguf, prompts);
  std::size_t num_tokens = 0;
  for (const auto& prompt : prompts) num_tokens += prompt.size() - 1;
  REQUIRE(a.size() == num_tokens);
  REQUIRE(b.size() == num_tokens);
  LogprobDistance out;
  for (std::size_t i = 0; i < num_tokens; ++i) {
    const double difference = std::abs(a[i] - b[i]);
    out.mean += difference / static_cast<double>(num_tokens);
    out.largest = std::max(out.largest, difference);
  }
  return out;
}

}  // namespace

TEST_CASE("a GGUF file of quantised blocks on CUDA is one of their values", "[gpu][gguf]") {
  if (!has_gpu()) return;
  const Checkpoint expected(dequantised(gguf_fixture("mixed")));
  check_same<AnyModel, CudaFloat32Policy>(gguf_fixture("mixed"), expected, 64);
}

TEST_CASE("a GGUF file on CUDA has the CPU's tokens and is near its log-probabilities",
          "[gpu][gguf]") {
  if (!has_gpu()) return;
  const std::filesystem::path gguf = gguf_fixture("mixed");
  const Prompts prompts = prompts_of(64);
  Engine<AnyModel, CudaFloat32Policy> engine(config_of(gguf));
  Engine<AnyModel, Float32Policy> expected(config_of(gguf));
  check_equal(traces(engine, prompts), traces(expected, prompts), 2e-4);

  const auto exact = logprob_distance<CudaFloat32Policy, Float32Policy>(gguf, prompts);
  CAPTURE(exact.mean, exact.largest);
  CHECK(exact.largest < 2e-4);
  const auto sixteen_bits = logprob_distance<CudaPolicy, DefaultPolicy>(gguf, prompts);
  CAPTURE(sixteen_bits.mean, sixteen_bits.largest);
  CHECK(sixteen_bits.mean < 2e-2);
  // Activations in 16 bits on the CPU, in 8 on the GPU.
  const auto eight_bits = logprob_distance<Fp8OnGpu, Fp8OnCpu>(gguf, prompts);
  CAPTURE(eight_bits.mean, eight_bits.largest);
  CHECK(eight_bits.mean < 0.15);
}
