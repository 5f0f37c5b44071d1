#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"

#include <optional>
#include <string>

#include "catch.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_integers.hpp"

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

TEST_CASE("quantization_config of integers of 8 bits with scales", "[int8][config]") {
  // As llm-compressor writes W8A8.
  const auto with = [](const std::string& weights) {
    return read(R"({"quant_method": "compressed-tensors", "format": "int-quantized",
                    "ignore": ["lm_head"], "config_groups": {"group_0": {"weights": )" +
                weights +
                R"(, "input_activations": {"num_bits": 8, "type": "int", "dynamic": true}}}})");
  };
  const QuantizationConfig config =
      with(R"({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true})");
  CHECK(config.has_int8);
  CHECK_FALSE(config.packed.has_value());
  CHECK(config.is_unquantised("lm_head.weight"));
  CHECK_FALSE(read(R"({"quant_method": "fp8"})").has_int8);
  CHECK_THROWS_WITH(with(R"({"num_bits": 4, "type": "int"})"), Contains("weights.num_bits'"));
  CHECK_THROWS_WITH(with(R"({"num_bits": 8, "type": "float"})"),
                    Contains("weights.type' must be \"int\", got \"float\""));
  CHECK_THROWS_WITH(with(R"({"num_bits": 8, "type": "int", "symmetric": false})"),
                    Contains("weights.symmetric' must be true"));
}

TEST_CASE("a quantization_config that cannot be served is refused by name", "[fp8][config]") {
  const auto refused = [](const std::string& quantization, const std::string& message) {
    CAPTURE(quantization);
    CHECK_THROWS_WITH(read(quantization), Contains(message));
  };
  refused("3", "'quantization_config' must be an object, got 3");
  CHECK_FALSE(read("{}").packed.has_value());  // as if it were absent
  refused("{\"bits\": 4}",
          "'quantization_config.quant_method' must be \"fp8\", \"awq\", \"gptq\" or "
          "\"compressed-tensors\", got \"\"");
  refused(R"({"quant_method": "bitsandbytes"})", "got \"bitsandbytes\"");
  refused(R"({"quant_method": "fp8", "fmt": "e5m2"})",
          "'quantization_config.fmt' must be \"e4m3\"");
  for (const char* block : {"128", "[128]", "[128, 0]", "[128, 1.5]", "[128, \"a\"]", "[-1, 128]"})
    refused(concat(R"({"quant_method": "fp8", "weight_block_size": )", block, "}"),
            "'quantization_config.weight_block_size' must be two positive integers");
  refused(R"({"quant_method": "fp8", "ignored_layers": "lm_head"})",
          "'quantization_config.ignored_layers' must be a list of names, got \"lm_head\"");
  refused(R"({"quant_method": "fp8", "ignored_layers": ["lm_head", 5]})",
          "'quantization_config.ignored_layers' must be a list of names, got 5");
  refused(R"({"quant_method": "compressed-tensors", "format": "marlin-24"})",
          "'quantization_config.format' must be \"float-quantized\" or \"int-quantized\" or "
          "\"naive-quantized\" or \"pack-quantized\", got \"marlin-24\"");
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

TEST_CASE("quantization_config of packed integers", "[packed][config]") {
  // As Qwen3-8B-AWQ, Qwen3-30B-A3B-AWQ and AutoAWQ's own files have it.
  const QuantizationConfig awq = read(R"({"backend": "autoawq", "bits": 4, "do_fuse": false,
      "exllama_config": null, "group_size": 128, "modules_to_not_convert": ["gate"],
      "quant_method": "awq", "version": "gemm", "zero_point": true})");
  CHECK(awq.packed == PackedFormat{PackedLayout::awq, 4, 128, true, false});
  CHECK(awq.is_unquantised("gate.weight"));
  CHECK(read(R"({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"})")
            .packed == PackedFormat{PackedLayout::awq, 4, 64, true, false});
  // As AutoGPTQ and GPTQModel write it.
  CHECK(read(R"({"bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": false,
                 "static_groups": false, "sym": true, "true_sequential": true,
                 "quant_method": "gptq"})")
            .packed == PackedFormat{PackedLayout::gptq, 4, 128, false, true});
  CHECK(read(R"({"bits": 8, "group_size": -1, "desc_act": true, "sym": false,
                 "checkpoint_format": "gptq_v2", "format": "gptq", "quant_method": "gptq",
                 "pack_dtype": "int32", "lm_head": false, "meta": {"quantizer": ["gptqmodel:1"]},
                 "dynamic": {"-:.*gate.*": {}, "+:.*down.*": {"bits": 8, "group_size": -1}}})")
            .packed == PackedFormat{PackedLayout::gptq, 8, {}, true, false});
  CHECK(
      read(R"({"bits": 4, "group_size": 128, "desc_act": true, "quant_method": "gptq"})").packed ==
      PackedFormat{PackedLayout::gptq, 4, 128, false, true});
  // As llm-compressor writes W4A16, W4A16_ASYM and W8A16.
  const auto packed = [](const std::string& weights, const std::string& more = "") {
    return read(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
                    "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"],
                    "format": "pack-quantized", "weights": )" +
                weights + "}" + more + "}}");
  };
  const std::string four = R"({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128,
                               "symmetric": true, "actorder": "static", "dynamic": false})";
  CHECK(packed(four).packed == PackedFormat{PackedLayout::compressed_tensors, 4, 128, false});
  CHECK(packed(four).is_unquantised("lm_head.weight"));
  CHECK(packed(four, R"(, "group_1": {"weights": )" + four + "}").packed == packed(four).packed);
  CHECK(packed(R"({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
                   "symmetric": false, "actorder": "group"})")
            .packed == PackedFormat{PackedLayout::compressed_tensors, 4, 32, true});
  CHECK(packed(R"({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true})")
            .packed == PackedFormat{PackedLayout::compressed_tensors, 8, {}, false});
  CHECK(read(R"({"quant_method": "fp8"})").packed == std::nullopt);

  const auto refused = [&](const std::string& weights, const std::string& message,
                           const std::string& more = "") {
    CHECK_THROWS_WITH(packed(weights, more), Contains(message));
  };
  refused(R"({"num_bits": 3, "type": "int", "strategy": "channel"})",
          "config_groups.group_0.weights.num_bits' must be 4 or 8, got 3");
  refused(R"({"num_bits": 4, "type": "float", "strategy": "channel"})",
          "weights.type' must be \"int\", got \"float\"");
  refused(R"({"num_bits": 4, "type": "int", "strategy": "tensor"})",
          "weights.strategy' must be \"group\" or \"channel\", got \"tensor\"");
  refused(R"({"num_bits": 4, "type": "int", "strategy": "group"})",
          "weights.group_size' is missing");
  refused(R"({"num_bits": 4, "type": "int", "strategy": "channel", "actorder": "rows"})",
          "weights.actorder' must be \"static\" or \"weight\" or \"group\" or \"dynamic\", got "
          "\"rows\"");
  refused(four, "group_1.weights' must be those of the other groups",
          R"(, "group_1": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}})");
  refused(four, "group_1.format' must be \"pack-quantized\", got \"float-quantized\"",
          R"(, "group_1": {"format": "float-quantized", "weights": )" + four + "}");
}

TEST_CASE("transforms of weights are ignored, others are refused", "[packed][config]") {
  const auto with = [](const std::string& transforms) {
    return read(R"({"quant_method": "compressed-tensors", "format": "float-quantized",
                    "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
                    "transform_config": )" +
                transforms + "}");
  };
  const auto located = [&](const std::string& locations) {
    return R"({"config_groups": {"R1": {"type": "hadamard", "apply": [)" + locations + "]}}}";
  };
  for (const char* none : {"null", "{}", R"({"config_groups": {}})"}) CHECK_NOTHROW(with(none));
  CHECK_NOTHROW(with(located(R"({"targets": ["Linear"], "location": "weight_input"},
                                {"targets": ["Linear"], "location": "weight_output"})")));
  for (const char* location : {"input", "output", "k_cache", "q_attn"})
    CHECK_THROWS_WITH(
        with(located(concat(R"({"location": "weight_input"}, {"location": ")", location, "\"}"))),
        Contains(
            concat("'quantization_config.transform_config.config_groups.R1.apply.location' must "
                   "be \"weight_input\" or \"weight_output\", got \"",
                   location, "\": transforms of activations are not supported")));
  CHECK_THROWS_WITH(with(located("{}")), Contains("got nothing: transforms of activations"));
  CHECK_THROWS_WITH(with(R"({"config_groups": {"R1": {"type": "hadamard"}}})"),
                    Contains("config_groups.R1.apply' must be an array"));
}

TEST_CASE("options of AWQ and GPTQ that are not supported are refused by name",
          "[packed][config]") {
  const auto refused = [](const std::string& method, const std::string& options,
                          const std::string& message) {
    CAPTURE(options);
    CHECK_THROWS_WITH(read("{\"quant_method\": \"" + method + "\", " + options + "}"),
                      Contains("'quantization_config." + message));
  };
  refused("awq", R"("group_size": 128)", "bits' is missing");
  refused("awq", R"("bits": 4)", "group_size' is missing");
  refused("awq", R"("bits": 8, "group_size": 128)", "bits' must be 4, got 8");
  refused("awq", R"("bits": 4, "group_size": 0)", "group_size' must be a positive integer or -1");
  refused("awq", R"("bits": 4, "group_size": 9223372036854775807)",
          "group_size' must be an integer in [-1, 2147483647]");
  refused("awq", R"("bits": 4, "group_size": -2)", "group_size' must be an integer in [-1,");
  refused("awq", R"("bits": 4, "group_size": 128, "version": "gemv")",
          "version' must be \"gemm\", got \"gemv\"");
  refused("awq", R"("bits": 4, "group_size": 128, "version": 3)", "version' must be a string");
  refused("awq", R"("bits": 4, "group_size": 128, "backend": "llm-awq")",
          "backend' must not be \"llm-awq\"");
  refused("awq", R"("bits": 4, "group_size": 128, "zero_point": false)",
          "zero_point' must be true, got false");
  refused("awq", R"("bits": 4, "group_size": 128, "modules_to_not_convert": "gate")",
          "modules_to_not_convert' must be a list of names");
  refused("gptq", R"("bits": 3, "group_size": 128)", "bits' must be 4 or 8, got 3");
  refused("gptq", R"("bits": "4", "group_size": 128)", "bits' must be an integer");
  refused("gptq", R"("bits": 4, "group_size": 128, "checkpoint_format": "marlin")",
          "checkpoint_format' must be \"gptq\" or \"gptq_v2\", got \"marlin\"");
  refused("gptq", R"("bits": 4, "group_size": 128, "format": "bitblas")",
          "format' must be \"gptq\" or \"gptq_v2\", got \"bitblas\"");
  refused("gptq", R"("bits": 4, "group_size": 128, "is_marlin_format": true)",
          "is_marlin_format' must be false");
  refused("gptq", R"("bits": 4, "group_size": 128, "pack_dtype": "int64")",
          "pack_dtype' must be \"int32\"");
  refused("gptq", R"("bits": 4, "group_size": 128, "dynamic": {"+:.*down.*": {"bits": 8}})",
          "dynamic' of '+:.*down.*' must not change 'bits'");
  refused("gptq", R"("bits": 4, "group_size": 128, "dynamic": {".*": {"sym": false}})",
          "dynamic' of '.*' must not change 'sym'");
  refused("gptq", R"("bits": 4, "group_size": 128, "dynamic": {".*": 4})",
          "dynamic' of '.*' must be an object");
  refused("gptq", R"("bits": 4, "group_size": 128, "dynamic": [])", "dynamic' must be an object");
}
