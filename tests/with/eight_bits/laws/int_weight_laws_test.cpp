// The laws with weights in integers of 8 and 4 bits (with/eight_bits/weights.hpp): engines of
// them round activations, so a row's result must not depend on its batch, nor on threads, chunks
// and preemptions; and they are near to engines of the same weights in floats.

#include <cstring>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "engine/laws/law_matrix.hpp"
#include "engine/models.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/full_policy.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/sessions.hpp"
#include "safetensors_writer.hpp"
#include "with/eight_bits/laws/format_distance.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
namespace fs = std::filesystem;

namespace {

struct Int8Policy : FullFloat32Policy {
  using Weight = Int8Weights<float>;
};
struct Int4Policy : FullFloat32Policy {
  using Weight = Int4Weights<float>;
};
struct Int4AndCachePolicy : Int4Policy {
  using KvElement = Int8Kv;
};

template <class Policy>
constexpr bool kIsInt4 = std::is_same_v<Policy, Int4Policy>;

EngineConfig config(const std::string& model = "fairytale") {
  return {.model = model_directory(model),
          .num_threads = 2,
          .max_model_len = model == "fairytale" ? 256 : 128,
          .kv_size = KvSize::blocks(64)};
}

/// Log-probabilities of a prompt of 100 tokens.
template <class Policy>
std::vector<float> logprobs_of(Engine<AnyModel, Policy>& engine) {
  return of_prompt(engine, random_prompt(5, 100, 97));
}

/// `values` [rows, cols] as `Matrix` has them.
template <class Matrix>
void round_to(std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  Matrix matrix(rows, cols);
  matrix.set_rows(0, MatrixView<const float>(values.data(), {rows, cols}));
  for (std::int64_t i = 0; i < rows; ++i) matrix.copy_row(i, values.data() + i * cols);
}

/// The checkpoint with its matrices as an engine of `Policy` has them, in floats.
template <class Policy>
nanovllm_test::MemoryCheckpoint rounded(const fs::path& directory) {
  const Checkpoint checkpoint(directory);
  nanovllm_test::MemoryCheckpoint out;
  for (const char* file : {"config.json", "tokenizer.json", "generation_config.json"})
    if (auto text = checkpoint.text(file)) out.texts[file] = *text;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    REQUIRE(tensor.dtype == FileDType::bf16);
    std::vector<float> values(tensor.data.size() / 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      bf16 x;
      std::memcpy(&x, tensor.data.data() + 2 * i, 2);
      values[i] = x;
    }
    if (tensor.shape.size() == 2) {
      const auto rows = static_cast<std::int64_t>(tensor.shape[0]);
      const auto cols = static_cast<std::int64_t>(tensor.shape[1]);
      if (kIsInt4<Policy> && tensor.name.starts_with("model.layers.")) {
        round_to<cpu::Int4Matrix>(values, rows, cols);
      } else {
        round_to<cpu::Int8Matrix>(values, rows, cols);
      }
    }
    out.add(tensor.name, FileDType::f32, tensor.shape,
            std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4));
  }
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("laws: recomputed and swapped = undisturbed, with weights in integers", "[laws]",
                   Int8Policy, Int4Policy) {
  const EngineConfig matrix{
      .model = model_directory(kRandomModels[0]), .num_threads = 1, .max_model_len = 128};
  const std::int64_t vocab = Qwen3Config::load(model_directory(kRandomModels[0])).vocab_size;
  check_combination<TestType, HashPrefixCache, SwapPreemption, ContinuousBatching>(matrix, vocab,
                                                                                   true);
}

TEMPLATE_TEST_CASE("laws: batched = alone, chunked = whole, for any threads, in integers", "[laws]",
                   Int8Policy, Int4Policy, Int4AndCachePolicy) {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<Trace> alone;
  Engine<AnyModel, TestType> one(config());
  for (std::size_t i = 0; i < 6; ++i) {
    prompts.push_back(random_prompt(20 + i, 1 + 31 * i, 4000));
    alone.push_back(trace_of(one.generate(prompts.back(), greedy(12))));
  }
  for (const int threads : {1, 3}) {
    EngineConfig c = config();
    c.num_threads = threads;
    c.max_num_batched_tokens = 24;
    c.prefix_caching = false;
    Engine<AnyModel, TestType> engine(c);
    const std::vector<Output> outputs = engine.generate(prompts, greedy(12));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      CHECK(trace_of(outputs[i]).tokens == alone[i].tokens);
      CHECK(trace_of(outputs[i]).logprobs == alone[i].logprobs);
    }
  }
}

TEMPLATE_TEST_CASE("weights in integers are used, and near to their values in floats", "[laws]",
                   Int8Policy, Int4Policy) {
  for (const std::string model : {"fairytale", kRandomModels[1]}) {  // both tied
    CAPTURE(model);
    EngineConfig c = config(model);
    c.checkpoint = Checkpoint(rounded<TestType>(model_directory(model)));
    c.model.clear();
    Engine<AnyModel, FullFloat32Policy> of_values(c);
    Engine<AnyModel, FullFloat32Policy> exact(config(model));
    Engine<AnyModel, TestType> engine(config(model));
    const std::vector<float> got = logprobs_of(engine);
    const double of_activations = distance(got, logprobs_of(of_values));
    const double of_all = distance(got, logprobs_of(exact));
    CAPTURE(of_activations, of_all);
    CHECK(of_activations > 0);
    CHECK(of_activations < 0.12);
    CHECK(of_all < (kIsInt4<TestType> ? 1. : 0.12));
    if (kIsInt4<TestType>) CHECK(of_activations < of_all / 2);
  }
}

TEST_CASE("an FP8 checkpoint is quantised while it is loaded", "[laws]") {
  EngineConfig c = config("block");
  c.model = "tests/fixtures/fp8/block";
  Engine<AnyModel, Int8Policy> engine(c);
  Engine<AnyModel, FullFloat32Policy> exact(c);
  const double got = distance(logprobs_of(engine), logprobs_of(exact));
  CHECK(got > 0);
  CHECK(got < 0.05);
}

TEST_CASE("ranks with weights in integers are near to one rank", "[laws]") {
  EngineConfig c = config();
  Engine<AnyModel, Int4Policy> one(c);
  c.tensor_parallel = 2;
  Engine<AnyModel, Int4Policy> two(c);
  CHECK(distance(logprobs_of(one), logprobs_of(two)) < 0.12);
}

TEST_CASE("formats of integers have their names in descriptions and files", "[laws]") {
  CHECK(
      describe<Int8Policy>().starts_with("Weight         int8 in groups of 32\n"
                                         "Activation     float32\n"));
  CHECK(describe<Int4Policy>().starts_with(
      "Weight         int4 in groups of 32, vocabulary int8\nActivation     float32\n"));
  const nanovllm_test::TempDirectory folder;
  const fs::path path = folder.path() / "session";
  Engine<AnyModel, Int8Policy> engine(config());
  Session session(engine);
  session.generate(random_prompt(1, 20, 4000), greedy(12));
  session.save(path);
  Engine<AnyModel, Int4Policy> other(config());
  CHECK_THROWS_WITH(
      Session::load(other, path),
      concat("'", path.string(),
             "' is of another model: type of weights: expected int4 in groups of 32, vocabulary "
             "int8, got int8 in groups of 32"));
}
