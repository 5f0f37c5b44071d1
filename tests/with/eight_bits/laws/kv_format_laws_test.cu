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
#include "with/eight_bits/laws/format_distance.hpp"

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
  const std::vector<float> whole = of_prompt(rounded, prompt, greedy(1));
  const std::vector<float> expected = of_prompt(exact, prompt, greedy(1));
  // What the order of sums alone is worth in bfloat16. A key that it moves over the middle between
  // two of its format's values is off by one of those.
  const double noise = distance(of_prompt(exact_chunked, prompt, greedy(1)), expected);
  const double far = distance(whole, expected);
  const double of_chunks = distance(of_prompt(chunked, prompt, greedy(1)), whole);

  // From the prefix cache, and one token at a time.
  const Output first = rounded.generate(prompt, greedy(40));
  const Output again = rounded.generate(prompt, greedy(40));
  CHECK(again.num_cached_tokens >= 256);
  std::vector<TokenId> longer = prompt;
  longer.insert(longer.end(), first.token_ids.begin(), first.token_ids.end());
  const std::vector<float> in_one = of_prompt(rounded, longer, greedy(1));
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
