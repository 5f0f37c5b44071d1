// An engine whose weights are in a format that the library does not have
// (with/eight_bits/int8_rows.hpp).

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/with/sessions.hpp"
#include "safetensors_writer.hpp"
#include "with/eight_bits/int8_rows.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
namespace fs = std::filesystem;

namespace {

struct Int8Policy : Float32Policy {
  using Weight = Int8Rows;
};

/// The checkpoint with the matrices of its layers as an engine of Int8Policy has them, in floats.
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
    if (tensor.shape.size() == 2 && tensor.name.starts_with("model.layers.")) {
      const auto rows = static_cast<std::int64_t>(tensor.shape[0]);
      const auto cols = static_cast<std::int64_t>(tensor.shape[1]);
      Int8Matrix matrix(rows, cols);
      matrix.set_rows(0, MatrixView<const float>(values.data(), {rows, cols}));
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < cols; ++j)
          values[static_cast<std::size_t>(i * cols + j)] =
              static_cast<float>(matrix.row(i)[j]) * matrix.scale(i);
    }
    out.add(tensor.name, FileDType::f32, tensor.shape,
            std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4));
  }
  return out;
}

EngineConfig config() {
  return {.model = model_directory("fairytale"),
          .num_threads = 2,
          .max_model_len = 256,
          .kv_size = KvSize::blocks(64)};
}

SamplingParams greedy() {
  return {.temperature = 0.f, .max_tokens = 12, .ignore_eos = true, .logprobs = 0};
}

}  // namespace

TEST_CASE("weights in a format = weights that it loads, in floats", "[laws][weight_format]") {
  EngineConfig c = config();
  c.model.clear();
  c.checkpoint = Checkpoint(rounded(model_directory("fairytale")));
  Engine<AnyModel, Float32Policy> expected(c);
  Engine<AnyModel, Float32Policy> unrounded(config());
  Engine<AnyModel, Int8Policy> engine(config());
  bool differs = false;
  for (const std::size_t length : {1, 40, 150}) {
    const std::vector<TokenId> prompt = random_prompt(length, length, 4000);
    const Trace got = trace_of(engine.generate(prompt, greedy()));
    const Trace wanted = trace_of(expected.generate(prompt, greedy()));
    CHECK(got.tokens == wanted.tokens);
    REQUIRE(got.logprobs.size() == wanted.logprobs.size());
    for (std::size_t i = 0; i < got.logprobs.size(); ++i)
      CHECK(std::abs(got.logprobs[i] - wanted.logprobs[i]) < 1e-4f);
    const Trace exact = trace_of(unrounded.generate(prompt, greedy()));
    differs = differs || std::abs(exact.logprobs[0] - got.logprobs[0]) > 1e-3f;
  }
  CHECK(differs);
}

TEST_CASE("batched = alone, chunked = whole, with weights in a format", "[laws][weight_format]") {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<Trace> alone;
  Engine<AnyModel, Int8Policy> one(config());
  for (std::size_t i = 0; i < 6; ++i) {
    prompts.push_back(random_prompt(20 + i, 1 + 31 * i, 4000));
    alone.push_back(trace_of(one.generate(prompts.back(), greedy())));
  }
  EngineConfig c = config();
  c.max_num_batched_tokens = 24;
  c.prefix_caching = false;
  Engine<AnyModel, Int8Policy> engine(c);
  const std::vector<Output> outputs = engine.generate(prompts, greedy());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    CHECK(trace_of(outputs[i]).tokens == alone[i].tokens);
    CHECK(trace_of(outputs[i]).logprobs == alone[i].logprobs);
  }
}

TEST_CASE("a format of weights has its name in descriptions and files", "[weight_format]") {
  CHECK(
      describe<Int8Policy>().starts_with("Weight         int8 with a scale a row\n"
                                         "Activation     float32\nKvElement      float32\n"));
  const nanovllm_test::TempDirectory folder;
  const fs::path path = folder.path() / "session";
  Engine<AnyModel, Int8Policy> engine(config());
  Session session(engine);
  session.generate(random_prompt(1, 20, 4000), greedy());
  session.save(path);
  Engine<AnyModel, Float32Policy> other(config());
  CHECK_THROWS_WITH(
      Session::load(other, path),
      concat("'", path.string(),
             "' is of another model: type of weights: expected float32, got int8 with a scale a "
             "row"));
}

TEST_CASE("an engine of noise has it in the format", "[weight_format]") {
  const Qwen3Config shape = Qwen3Config::load(model_directory("fairytale"));
  Engine<AnyModel, Int8Policy> engine(shape, RandomWeights{3}, config());
  CHECK(engine.generate(random_prompt(1, 20, 4000), greedy()).token_ids.size() == 12);
}
