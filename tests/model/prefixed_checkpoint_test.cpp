#include "nanovllm/model/prefixed_checkpoint.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/with/moe/qwen3_moe/weights.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::MemoryCheckpoint;

namespace {

/// `count` different bytes.
std::string bytes(std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += static_cast<char>(i);
  return out;
}

std::string text_of(const Checkpoint& checkpoint, const char* name) {
  const CheckpointTensor* const tensor = checkpoint.find(name);
  REQUIRE(tensor != nullptr);
  return {reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size()};
}

}  // namespace

TEST_CASE("fused experts become tensors of each expert", "[experts]") {
  MemoryCheckpoint files;
  files.texts["config.json"] = "{}";
  const std::string layer = "model.layers.7.mlp.";
  files.add(layer + "gate.weight", FileDType::u8, {2, 1}, "gg");
  files.add(layer + "experts.gate_up_proj", FileDType::f8_e4m3, {2, 4, 3}, bytes(24));
  files.add(layer + "experts.gate_up_proj_scale_inv", FileDType::u8, {2, 2, 1}, "abcd");
  files.add(layer + "experts.down_proj", FileDType::bf16, {2, 3, 2}, bytes(24));
  const Checkpoint fused(std::move(files));
  const Checkpoint separate = with_separate_experts(fused);
  CHECK(separate.tensors().size() == 1 + 4 + 4 + 2);
  const std::string all = bytes(24);
  CHECK(text_of(separate, "model.layers.7.mlp.experts.0.gate_proj.weight") == all.substr(0, 6));
  CHECK(text_of(separate, "model.layers.7.mlp.experts.0.up_proj.weight") == all.substr(6, 6));
  CHECK(text_of(separate, "model.layers.7.mlp.experts.1.gate_proj.weight") == all.substr(12, 6));
  CHECK(text_of(separate, "model.layers.7.mlp.experts.1.up_proj.weight") == all.substr(18, 6));
  CHECK(text_of(separate, "model.layers.7.mlp.experts.1.up_proj.weight_scale_inv") == "d");
  CHECK(text_of(separate, "model.layers.7.mlp.experts.1.down_proj.weight") == all.substr(12));
  CHECK(text_of(separate, "model.layers.7.mlp.gate.weight") == "gg");
  const CheckpointTensor* const up = separate.find("model.layers.7.mlp.experts.1.up_proj.weight");
  CHECK(up->shape == std::vector<std::uint64_t>{2, 3});
  CHECK(up->dtype == FileDType::f8_e4m3);
  CHECK(separate.text("config.json") == "{}");
  separate.warn("a");  // they have their warnings in common
  CHECK(fused.warnings() == std::vector<std::string>{"a"});
}

TEST_CASE("other checkpoints stay as they are", "[experts]") {
  MemoryCheckpoint files;
  for (const char* name :
       {"model.layers.0.mlp.experts.0.gate_proj.weight", "model.layers.0.mlp.gate_up_proj.weight",
        "model.layers.0.mlp.experts.gate_up_proj_bias", "model.layers.0.mlp.experts.other"})
    files.add(name, FileDType::u8, {2, 2, 2}, bytes(8));
  const Checkpoint separate = with_separate_experts(Checkpoint(std::move(files)));
  CHECK(separate.tensors().size() == 4);
  CHECK(separate.find("model.layers.0.mlp.experts.other") != nullptr);
}

TEST_CASE("fused experts of another shape are refused by name", "[experts]") {
  const std::vector<std::vector<std::uint64_t>> shapes = {{2, 3, 2}, {12}, {0, 2, 2}, {6, 2}};
  for (const auto& shape : shapes) {
    MemoryCheckpoint files;
    std::size_t size = 1;
    for (const std::uint64_t extent : shape) size *= extent;
    files.add("model.layers.0.mlp.experts.gate_up_proj", FileDType::u8, shape, bytes(size));
    const Checkpoint checkpoint(std::move(files));
    CHECK_THROWS_WITH(static_cast<void>(with_separate_experts(checkpoint).tensors()),
                      Contains("'memory': the tensor 'model.layers.0.mlp.experts.gate_up_proj' "
                               "must be [experts, rows, columns]"));
  }
}
