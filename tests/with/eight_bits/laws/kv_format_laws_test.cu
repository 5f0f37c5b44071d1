// The laws on CUDA with a KV cache of eight bits and a scale a row, and what it is near to.

#include <cmath>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "engine/laws/law_matrix.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"
#include "nanovllm/with/sessions.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Base, class Kv>
struct WithKv : Base {
  using KvElement = Kv;
};

EngineConfig config() {
  return {
      .model = model_directory("fairytale"), .max_model_len = 512, .kv_size = KvSize::blocks(64)};
}

SamplingParams greedy(int max_tokens) {
  return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true, .logprobs = 0};
}

template <class Policy>
std::vector<float> logprobs_of(Engine<AnyModel, Policy>& engine, const std::vector<TokenId>& prompt,
                               SamplingParams params) {
  params.prompt_logprobs = 0;
  const Output output = engine.generate(prompt, params);
  REQUIRE(output.error == "");
  std::vector<float> out;
  for (const auto& entry : output.prompt_logprobs)
    if (entry) out.push_back(entry->logprob);
  return out;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::fabs(double{a[i]} - b[i]);
  return sum / static_cast<double>(a.size());
}

}  // namespace

TEMPLATE_TEST_CASE("laws on CUDA in eight bits", "[laws][gpu]", Int8Kv, Fp8Kv) {
  if (!has_gpu()) return;
  const EngineConfig matrix{.model = model_directory(kRandomModels[0]), .max_model_len = 128};
  const std::int64_t vocab = Qwen3Config::load(model_directory(kRandomModels[0])).vocab_size;
  check_combination<WithKv<CudaFloat32Policy, TestType>, HashPrefixCache, SwapPreemption,
                    ContinuousBatching>(matrix, vocab, true);
}

TEMPLATE_TEST_CASE(
    "an engine in eight bits is near to one in 16, whole, in chunks and from the cache", "[gpu]",
    Int8Kv, Fp8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  const std::vector<TokenId> prompt = random_prompt(5, 300, 4000);
  Engine<AnyModel, WithKv<CudaPolicy, TestType>> rounded(config());
  Engine<AnyModel, CudaPolicy> exact(config());
  EngineConfig c = config();
  c.max_num_batched_tokens = 48;
  c.max_num_seqs = 4;
  Engine<AnyModel, WithKv<CudaPolicy, TestType>> chunked(c);
  Engine<AnyModel, CudaPolicy> exact_chunked(c);
  const std::vector<float> whole = logprobs_of(rounded, prompt, greedy(1));
  const std::vector<float> expected = logprobs_of(exact, prompt, greedy(1));
  // What the order of sums alone is worth in bfloat16. A key that it moves over the middle between
  // two of its format's values is off by one of those.
  const double noise = distance(logprobs_of(exact_chunked, prompt, greedy(1)), expected);
  const double far = distance(whole, expected);
  const double of_chunks = distance(logprobs_of(chunked, prompt, greedy(1)), whole);

  // From the prefix cache, and one token at a time.
  const Output first = rounded.generate(prompt, greedy(40));
  const Output again = rounded.generate(prompt, greedy(40));
  CHECK(again.num_cached_tokens >= 256);
  std::vector<TokenId> longer = prompt;
  longer.insert(longer.end(), first.token_ids.begin(), first.token_ids.end());
  const std::vector<float> in_one = logprobs_of(rounded, longer, greedy(1));
  double of_decodes = 0;
  for (std::size_t i = 0; i < first.token_ids.size(); ++i)
    of_decodes += std::fabs(trace_of(first).logprobs[i] - in_one[prompt.size() - 1 + i]);
  of_decodes /= static_cast<double>(first.token_ids.size());
  CAPTURE(noise, far, of_chunks, of_decodes);
  CHECK(noise > 0);
  CHECK(far > noise);
  CHECK(far < (std::is_same_v<TestType, Int8Kv> ? 0.06 : 0.15));
  CHECK(of_chunks < noise + far);
  CHECK(of_decodes < noise + far);
}

TEST_CASE("a session in eight bits goes from the CPU to CUDA", "[gpu][session_file]") {
  if (!has_gpu()) return;
  using Cpu = WithKv<FullFloat32Policy, Int8Kv>;
  using Cuda = WithKv<CudaFullFloat32Policy, Int8Kv>;
  const nanovllm_test::TempDirectory folder;
  const auto path = folder.path() / "session";
  const std::vector<TokenId> question = random_prompt(1, 37, 4000),
                             next = random_prompt(2, 9, 4000);
  Engine<AnyModel, Cpu> cpu(config());
  Session session(cpu);
  session.generate(question, greedy(9));
  session.save(path);
  const Output expected = session.generate(next, greedy(9));
  Engine<AnyModel, Cuda> gpu(config());
  Session loaded = Session::load(gpu, path);
  const Output output = loaded.generate(next, greedy(9));
  CHECK(output.num_cached_tokens > 37);
  CHECK(output.token_ids == expected.token_ids);
}
