// The laws with a KV cache of eight bits and a scale a row (with/eight_bits/int8_kv.hpp,
// with/eight_bits/fp8_kv.hpp, with/eight_bits/static_fp8_kv.hpp): tiers, files and ranks know a
// format by its sizes and its name alone.

#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "engine/laws/law_matrix.hpp"
#include "engine/models.hpp"
#include "kv_stats.hpp"
#include "nanovllm/full_policy.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"
#include "nanovllm/with/sessions.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
namespace fs = std::filesystem;

namespace {

struct Int8Policy : FullFloat32Policy {
  using KvElement = Int8Kv;
};
struct Fp8Policy : FullFloat32Policy {
  using KvElement = Fp8Kv;
};
struct StaticFp8Policy : FullFloat32Policy {
  using KvElement = StaticFp8Kv;
};

EngineConfig config() {
  return {.model = model_directory("fairytale"),
          .num_threads = 2,
          .max_model_len = 256,
          .kv_size = KvSize::blocks(64)};
}

SamplingParams sampled() {
  return {.temperature = 1.f, .seed = 7, .max_tokens = 9, .ignore_eos = true, .logprobs = 0};
}

template <class Policy>
std::vector<float> logprobs_of(Engine<AnyModel, Policy>& engine, SamplingParams params) {
  params.prompt_logprobs = 0;
  const Output output = engine.generate(random_prompt(5, 90, 4000), params);
  REQUIRE(output.error == "");
  std::vector<float> out = trace_of(output).logprobs;
  for (const auto& entry : output.prompt_logprobs)
    if (entry) out.push_back(entry->logprob);
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("laws: recomputed and swapped = undisturbed, in eight bits", "[laws]",
                   Int8Policy, Fp8Policy, StaticFp8Policy) {
  const EngineConfig matrix{
      .model = model_directory(kRandomModels[0]), .num_threads = 1, .max_model_len = 128};
  const std::int64_t vocab = Qwen3Config::load(model_directory(kRandomModels[0])).vocab_size;
  check_combination<TestType, HashPrefixCache, SwapPreemption, ContinuousBatching>(matrix, vocab,
                                                                                   true);
}

TEMPLATE_TEST_CASE("a KV format is used, and near to what is not rounded", "[laws]", Int8Policy,
                   Fp8Policy, StaticFp8Policy) {
  Engine<AnyModel, TestType> rounded(config());
  Engine<AnyModel, FullFloat32Policy> exact(config());
  const std::vector<float> got = logprobs_of(rounded, {.max_tokens = 1, .ignore_eos = true});
  const std::vector<float> expected = logprobs_of(exact, {.max_tokens = 1, .ignore_eos = true});
  REQUIRE(got.size() == expected.size());
  CHECK(got != expected);
  const float bound = std::is_same_v<TestType, Int8Policy> ? 0.1f : 0.5f;
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < bound);
  const std::string line =
      concat("KvElement      ", kv_format_name<typename TestType::KvElement>(), "\n");
  CHECK(describe<TestType>().find(line) != std::string::npos);
}

TEST_CASE("blocks of a KV format take its bytes", "[laws]") {
  EngineConfig c = config();
  c.kv_size = KvSize::bytes(4 << 20);
  Engine<AnyModel, Int8Policy> int8(c);
  Engine<AnyModel, FullFloat32Policy> exact(c);
  const Qwen3Config model = Qwen3Config::load(c.model);
  const std::int64_t rows = 2 * model.num_hidden_layers * model.num_key_value_heads * 16;
  CHECK(int8.stats().num_kv_blocks == (4 << 20) / (rows * (model.head_dim + 4)));
  CHECK(exact.stats().num_kv_blocks == (4 << 20) / (rows * model.head_dim * 4));
}

TEST_CASE(
    "a session of a KV format goes on from its file with other ranks, and another format's "
    "is refused",
    "[laws][session_file]") {
  const nanovllm_test::TempDirectory folder;
  const fs::path path = folder.path() / "session";
  const std::vector<TokenId> question = random_prompt(1, 37, 4000),
                             next = random_prompt(2, 9, 4000);
  Engine<AnyModel, Int8Policy> engine(config());
  Session session(engine);
  session.generate(question, sampled());
  session.save(path);
  const Trace expected = trace_of(session.generate(next, sampled()));

  Engine<AnyModel, Int8Policy> other(config());
  Session loaded = Session::load(other, path);
  const Output output = loaded.generate(next, sampled());
  CHECK(output.num_cached_tokens > 37);
  CHECK(trace_of(output).tokens == expected.tokens);
  CHECK(trace_of(output).logprobs == expected.logprobs);

  EngineConfig c = config();
  c.tensor_parallel = 2;
  Engine<AnyModel, Int8Policy> two_ranks(c);
  CHECK(trace_of(Session::load(two_ranks, path).generate(next, sampled())).tokens ==
        expected.tokens);

  Engine<AnyModel, FullFloat32Policy> exact(config());
  CHECK_THROWS_WITH(
      Session::load(exact, path),
      concat("'", path.string(), "' is of another model: type of K/V: expected float32, got ",
             Int8Kv::kName));
}

TEST_CASE("blocks of a KV format are found on disk, and not those of another", "[laws]") {
  const nanovllm_test::TempDirectory folder;
  EngineConfig c = config();
  c.kv_size = KvSize::blocks(16);
  c.extras.set(HostKv{KvSize::blocks(32)});
  c.extras.edit<DiskKv>().path = folder.path();
  c.extras.edit<DiskKv>().min_tokens = 1;
  const std::vector<TokenId> prompt = random_prompt(3, 100, 4000);
  Trace expected;
  {
    Engine<AnyModel, Int8Policy> engine(c);
    expected = trace_of(engine.generate(prompt, sampled()));
    for (std::uint64_t i = 0; i < 4; ++i)  // takes the pool, so that the prompt's blocks leave it
      static_cast<void>(engine.generate(random_prompt(50 + i, 200, 4000), sampled()));
  }
  {
    Engine<AnyModel, FullFloat32Policy> exact(c);
    static_cast<void>(exact.generate(prompt, sampled()));
    CHECK(disk_kv(exact.stats()).num_hit_tokens == 0);
  }
  Engine<AnyModel, Int8Policy> engine(c);
  const Output output = engine.generate(prompt, sampled());
  CHECK(disk_kv(engine.stats()).num_hit_tokens > 0);
  CHECK(trace_of(output).tokens == expected.tokens);
  CHECK(trace_of(output).logprobs == expected.logprobs);
  engine.check_invariants();
}
