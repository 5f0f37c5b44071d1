#pragma once
/// GGUF files of tests/oracle/make_gguf_fixtures.py, and whether engines of them are those of other
/// checkpoints with the same values, on any backend.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/parity/greedy_traces.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/file_dtype.hpp"

namespace nanovllm::test {

using nanovllm_test::MemoryCheckpoint;

inline std::filesystem::path gguf_fixture(const std::string& name) {
  return "tests/fixtures/gguf/" + name + ".gguf";
}

/// Of a small engine, so that a GPU has room for two.
inline EngineConfig config_of(Checkpoint checkpoint) {
  return {.checkpoint = std::move(checkpoint),
          .num_threads = 1,
          .max_num_seqs = 8,
          .kv_size = KvSize::blocks(64)};
}

/// Engines of both give the same to the bit, and different prompts different tokens.
template <class Model, class Policy = Float32Policy>
void check_same(const std::filesystem::path& gguf, const Checkpoint& expected, std::int64_t vocab) {
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint64_t i = 0; i < 3; ++i) prompts.push_back(random_prompt(i, 2 + 9 * i, vocab));
  EngineConfig by_path = config_of(gguf);
  by_path.checkpoint.reset();
  by_path.model = gguf;
  Engine<Model, Policy> engine(std::move(by_path));
  Engine<Model, Policy> other(config_of(expected));
  const std::vector<Trace> got = traces(engine, prompts, 12);
  check_equal(got, traces(other, prompts, 12), 0);
  CHECK(got[0].tokens != got[1].tokens);
  CHECK(got[0].logprobs[0] < 0);
}

/// The tensors of a GGUF file as float32, each element by the dequantisers that
/// tests/with/gguf/gguf_blocks_test.cpp compares with llama.cpp's.
inline MemoryCheckpoint dequantised(const Checkpoint& gguf) {
  MemoryCheckpoint out;
  out.texts["config.json"] = gguf.text("config.json").value();
  for (const CheckpointTensor& tensor : gguf.tensors()) {
    std::string data(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    if (tensor.blocks != nullptr) {
      const std::size_t blocks = data.size() / tensor.blocks->bytes;
      std::vector<float> values(blocks * tensor.blocks->elements);
      tensor.blocks->dequantise(tensor.data.data(), blocks, values.data());
      data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    out.add(tensor.name, FileDType::f32, tensor.shape, std::move(data));
  }
  return out;
}

}  // namespace nanovllm::test
