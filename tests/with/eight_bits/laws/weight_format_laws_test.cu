// Engines on CUDA whose weights are 8-bit floats: near to those in 16 bits, whatever the number of
// rows, and from a checkpoint as it is stored.

#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "engine/models.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
#include "with/eight_bits/laws/format_distance.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Base>
struct InFp8 : Base {
  using Weight = Fp8Block128;
};
using Fp8Engine = Engine<AnyModel, InFp8<CudaPolicy>>;

EngineConfig config() {
  return {
      .model = model_directory("fairytale"), .max_model_len = 512, .kv_size = KvSize::blocks(512)};
}

/// The checkpoint with the matrices of its layers in e4m3 and blocks of 128 x 128, as published.
nanovllm_test::MemoryCheckpoint in_fp8(const std::filesystem::path& directory) {
  const Checkpoint checkpoint(directory);
  nanovllm_test::MemoryCheckpoint out;
  for (const char* file : {"config.json", "tokenizer.json", "generation_config.json"})
    if (auto text = checkpoint.text(file)) out.texts[file] = *text;
  std::string& json = out.texts.find("config.json")->second;
  json.insert(
      json.find('{') + 1,
      R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},)");
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const auto* const bytes = reinterpret_cast<const char*>(tensor.data.data());
    if (tensor.shape.size() != 2 || !tensor.name.starts_with("model.layers.")) {
      out.add(tensor.name, tensor.dtype, tensor.shape, std::string(bytes, tensor.data.size()));
      continue;
    }
    const auto rows = static_cast<std::int64_t>(tensor.shape[0]);
    const auto cols = static_cast<std::int64_t>(tensor.shape[1]);
    std::vector<bf16> values(static_cast<std::size_t>(rows * cols));
    std::memcpy(values.data(), bytes, tensor.data.size());
    std::vector<float> scales;
    std::string stored;
    for (std::int64_t i = 0; i < rows; i += 128) {
      for (std::int64_t j = 0; j < cols; j += 128) {
        float largest = 0;
        for (std::int64_t r = i; r < std::min(i + 128, rows); ++r)
          for (std::int64_t c = j; c < std::min(j + 128, cols); ++c)
            largest =
                std::max(largest, std::fabs(float(values[static_cast<std::size_t>(r * cols + c)])));
        scales.push_back(largest > 0 ? largest / 448.f : 1.f);
      }
    }
    const std::int64_t across = ceil_div(cols, 128);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        stored.push_back(
            static_cast<char>(fp8_e4m3(float(values[static_cast<std::size_t>(i * cols + j)]) /
                                       scales[static_cast<std::size_t>(i / 128 * across + j / 128)])
                                  .bits));
    out.add(tensor.name, FileDType::f8_e4m3, tensor.shape, stored);
    out.add(tensor.name + "_scale_inv", FileDType::f32,
            {static_cast<std::uint64_t>(ceil_div(rows, 128)), static_cast<std::uint64_t>(across)},
            std::string(reinterpret_cast<const char*>(scales.data()), scales.size() * 4));
  }
  return out;
}

}  // namespace

TEST_CASE("an engine by 8-bit weights is near to one in 16 bits, whole, in chunks and in batches",
          "[gpu][weight_format]") {
  if (!has_gpu()) return;
  const std::vector<TokenId> prompt = random_prompt(5, 300, 4000);
  Fp8Engine rounded(config());
  Engine<AnyModel, CudaPolicy> exact(config());
  const std::vector<float> whole = of_prompt(rounded, prompt);
  const double far = distance(whole, of_prompt(exact, prompt));
  // The same weights with 16-bit activations, on the CPU.
  Engine<AnyModel, InFp8<FullPolicy>> cpu(config());
  const double from_cpu = distance(whole, of_prompt(cpu, prompt));

  EngineConfig c = config();
  c.max_num_batched_tokens = 48;
  c.max_num_seqs = 48;
  Fp8Engine chunked(c);
  const double of_chunks = distance(of_prompt(chunked, prompt), whole);
  c.max_num_batched_tokens = 16;  // as many rows as are not rounded
  c.max_num_seqs = 16;
  Fp8Engine unrounded(c);
  const std::vector<float> exact_rows = of_prompt(unrounded, prompt);
  const double of_rows = distance(exact_rows, whole);
  const double cpu_rows = distance(exact_rows, of_prompt(cpu, prompt));
  CAPTURE(far, from_cpu, of_chunks, of_rows, cpu_rows);
  CHECK(far > 0);
  CHECK(far < 0.3);
  CHECK(from_cpu < 0.3);
  CHECK(of_rows < 0.3);
  CHECK(of_rows > 0);
  CHECK(of_chunks < of_rows);
  CHECK(cpu_rows < 0.08);

  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < 40; ++i) prompts.push_back(random_prompt(60 + i, 3 + i, 4000));
  const std::vector<Output> together = rounded.generate(prompts, greedy(24));
  double of_batches = 0;
  std::size_t same = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    REQUIRE(together[i].error == "");
    REQUIRE(together[i].token_ids.size() == 24);
    const Output alone = rounded.generate(prompts[i], greedy(24));
    of_batches += std::fabs(trace_of(alone).logprobs[0] - trace_of(together[i]).logprobs[0]);
    same += alone.token_ids[0] == together[i].token_ids[0];
  }
  CAPTURE(of_batches / 40, same);
  CHECK(of_batches / 40 < 0.2);
  CHECK(same >= 34);
}

TEST_CASE("two ranks by 8-bit weights are near to one", "[gpu][ranks][weight_format]") {
  if (!has_gpus(2)) return;
  const std::vector<TokenId> prompt = random_prompt(5, 300, 4000);
  for (const int rows : {16, 512}) {  // with 16-bit activations, and with rounded ones
    EngineConfig c = config();
    c.max_num_batched_tokens = rows;
    c.max_num_seqs = 16;
    Fp8Engine one(c);
    c.tensor_parallel = 2;
    Fp8Engine two(c);
    const double between = distance(of_prompt(two, prompt), of_prompt(one, prompt));
    CAPTURE(rows, between);
    CHECK(between > 0);
    CHECK(between < (rows == 16 ? 0.08 : 0.3));
    const Output of_two = two.generate(random_prompt(7, 9, 4000), greedy(32));
    CHECK(of_two.error == "");
    CHECK(of_two.token_ids.size() == 32);
  }
}

TEST_CASE("a checkpoint in 8-bit floats is kept as it is stored on CUDA", "[gpu][weight_format]") {
  if (!has_gpu()) return;
  EngineConfig c = config();
  c.model.clear();
  c.checkpoint = Checkpoint(in_fp8(model_directory("fairytale")));
  Fp8Engine stored(c);
  Fp8Engine made(config());
  Engine<AnyModel, CudaPolicy> wide(c);
  double of_both = 0, of_wide = 0;
  for (const std::size_t length : {1, 9, 16}) {
    const std::vector<TokenId> prompt = random_prompt(length, length, 4000);
    const Trace a = trace_of(stored.generate(prompt, greedy(1))),
                b = trace_of(made.generate(prompt, greedy(1))),
                w = trace_of(wide.generate(prompt, greedy(1)));
    CHECK(a.tokens == b.tokens);
    of_both += std::fabs(a.logprobs[0] - b.logprobs[0]);
    of_wide += std::fabs(a.logprobs[0] - w.logprobs[0]);
  }
  CAPTURE(of_both, of_wide);
  CHECK(of_both < 0.03);  // the same weights; each engine chose its kernels by timing
  CHECK(of_wide < 0.15);
}
