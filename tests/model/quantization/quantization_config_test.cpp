#include "nanovllm/model/quantization/quantization_config.hpp"

#include <string>

#include "catch.hpp"
#include "nanovllm/io/json.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;

namespace {

QuantizationConfig read(const std::string& quantization) {
  const Json config =
      parse_json<ConfigError>("{\"quantization_config\": " + quantization + "}", "a test");
  Problems problems;
  QuantizationConfig out = read_quantization(JsonFields(config, "", problems), problems);
  problems.raise<ConfigError>("config.json");
  return out;
}

std::string group(const std::string& weights) {
  return R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
             "config_groups": {"group_0": {"targets": ["Linear"], "weights": )" +
         weights + R"(, "input_activations": {"num_bits": 8, "type": "float", "dynamic": true}}}})";
}

}  // namespace

TEST_CASE("quantization_config of the published checkpoints in 8-bit floats", "[fp8][config]") {
  // As Qwen3-32B-FP8 and Qwen3-30B-A3B-FP8 have it.
  const QuantizationConfig qwen = read(R"({"activation_scheme": "dynamic", "fmt": "e4m3",
      "quant_method": "fp8", "weight_block_size": [128, 128]})");
  CHECK(qwen.block_rows == 128);
  CHECK(qwen.block_columns == 128);
  CHECK(qwen.unquantised.empty());
  const QuantizationConfig listed = read(R"({"quant_method": "fp8", "weight_block_size": [64, 32],
      "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]})");
  CHECK(listed.block_rows == 64);
  CHECK(listed.block_columns == 32);
  CHECK(listed.is_unquantised("lm_head.weight"));
  CHECK(listed.is_unquantised("model.layers.0.mlp.gate.weight"));
  CHECK_FALSE(listed.is_unquantised("model.layers.0.mlp.gate_proj.weight"));
  CHECK(read(R"({"quant_method": "fp8", "ignored_layers": ["a"], "activation_scheme": "static",
                 "weight_block_size": null})")
            .is_unquantised("a.weight"));
  // As llm-compressor writes FP8_DYNAMIC, FP8 and FP8_BLOCK.
  for (const char* strategy : {"channel", "tensor"}) {
    const QuantizationConfig config =
        read(group(concat(R"({"num_bits": 8, "type": "float", "strategy": ")", strategy,
                          R"(", "symmetric": true})")));
    CHECK(config.is_unquantised("lm_head.weight"));
  }
  CHECK(read(group(R"({"num_bits": 8, "type": "float", "strategy": "block",
                       "block_structure": [16, 128], "symmetric": true})"))
            .block_rows == 16);
}

TEST_CASE("a quantization_config that cannot be served is refused by name", "[fp8][config]") {
  const auto refused = [](const std::string& quantization, const std::string& message) {
    CAPTURE(quantization);
    CHECK_THROWS_WITH(read(quantization), Contains(message));
  };
  refused("3", "'quantization_config' must be an object, got 3");
  refused("{}",
          "'quantization_config.quant_method' must be \"fp8\" or \"compressed-tensors\", got \"\"");
  refused(R"({"quant_method": "awq"})", "got \"awq\"");
  refused(R"({"quant_method": "fp8", "fmt": "e5m2"})",
          "'quantization_config.fmt' must be \"e4m3\"");
  for (const char* block : {"128", "[128]", "[128, 0]", "[128, 1.5]", "[128, \"a\"]", "[-1, 128]"})
    refused(concat(R"({"quant_method": "fp8", "weight_block_size": )", block, "}"),
            "'quantization_config.weight_block_size' must be two positive integers");
  refused(R"({"quant_method": "fp8", "ignored_layers": "lm_head"})",
          "'quantization_config.ignored_layers' must be a list of names");
  refused(R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
          "got \"pack-quantized\"");
  refused(R"({"quant_method": "compressed-tensors", "config_groups": {}})",
          "'quantization_config.config_groups' is missing");
  refused(R"({"quant_method": "compressed-tensors", "config_groups": {"g": {}}})",
          "'quantization_config.config_groups.g.weights' is missing");
  refused(group(R"({"num_bits": 4, "type": "float"})"), "weights.num_bits'");
  refused(group(R"({"num_bits": 8, "type": "int"})"),
          "weights.type' must be \"float\", got \"int\"");
  refused(group(R"({"num_bits": 8, "type": "float", "symmetric": false})"),
          "weights.symmetric' must be true");
  refused(group(R"({"num_bits": 8, "type": "float", "strategy": "group"})"), "got \"group\"");
}
