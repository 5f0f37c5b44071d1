// Checkpoints in 8-bit floats: what is read of them is stored · scale, whichever way the scales lie,
// and an engine of them is the engine of those products.

#include "nanovllm/with/eight_bits/checkpoint/tensor_scales.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/model/weights.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using nanovllm_test::SafetensorsWriter;
using nanovllm_test::TempDirectory;

namespace {

struct Fp8WeightsPolicy : FullFloat32Policy {
  using Weight = Fp8Weights<float>;
};

/// A matrix of e4m3 and its scales, one for each block of rows × columns.
struct Quantised {
  std::int64_t rows, columns, block_rows, block_columns;
  std::vector<std::uint8_t> stored{};
  std::vector<float> scales{};

  [[nodiscard]] std::int64_t down() const { return (rows + block_rows - 1) / block_rows; }
  [[nodiscard]] std::int64_t across() const {
    return (columns + block_columns - 1) / block_columns;
  }
  [[nodiscard]] float value(std::int64_t row, std::int64_t column) const {
    fp8_e4m3 x;
    x.bits = stored[static_cast<std::size_t>(row * columns + column)];
    const auto scale =
        static_cast<std::size_t>(row / block_rows * across() + column / block_columns);
    return static_cast<float>(x) * scales[scale];
  }
};

Quantised noise(std::int64_t rows, std::int64_t columns, std::int64_t block_rows,
                std::int64_t block_columns) {
  Quantised out{rows, columns, block_rows, block_columns};
  for (std::uint32_t i = 0; i < rows * columns; ++i) {
    const std::uint32_t bits = philox4x32(3, {i, 0, 0, 0})[0] & 0xff;
    out.stored.push_back(static_cast<std::uint8_t>((bits & 0x7f) == 0x7f ? 0 : bits));  // no NaN
  }
  for (std::uint32_t i = 0; i < out.down() * out.across(); ++i)
    out.scales.push_back(
        std::ldexp(1.f + static_cast<float>(i % 5) / 4, static_cast<int>(i % 3) - 9));
  return out;
}

std::string bytes_of(const std::vector<std::uint8_t>& stored) {
  return {stored.begin(), stored.end()};
}

/// Reads tensor "m.weight" of shape [rows, columns] of the directory's checkpoint.
template <class T>
std::vector<T> read(const TempDirectory& directory, std::int64_t rows, std::int64_t columns,
                    Shard shard = {}) {
  std::vector<T> out;
  const std::vector<Parameter<T>> parameters{{.name = "m.weight",
                                              .shape = {rows, columns},
                                              .sink =
                                                  [&](std::int64_t, MatrixView<const T> panel) {
                                                    out.insert(out.end(), panel.data,
                                                               panel.data + panel.size());
                                                  },
                                              .shard = shard}};
  load_parameters<T>(Checkpoint(directory.path()), parameters);
  return out;
}

void write(const TempDirectory& directory, const SafetensorsWriter& tensors,
           const std::string& quantization = R"({"quant_method": "fp8"})") {
  directory.write("model.safetensors", tensors.bytes());
  directory.write("config.json", "{\"quantization_config\": " + quantization + "}");
}

SafetensorsWriter with_weight(const Quantised& m) {
  return std::move(SafetensorsWriter().add("m.weight", "F8_E4M3", {m.rows, m.columns},
                                           std::string_view(bytes_of(m.stored))));
}

}  // namespace

TEMPLATE_TEST_CASE("8-bit floats are read with their scales, whole and in shards", "[fp8][weights]",
                   float, bf16) {
  struct Case {
    std::int64_t rows, columns, block_rows, block_columns;
    std::vector<std::int64_t> shape;  // of the scales
    const char* suffix;
  };
  const std::vector<Case> cases{{256, 384, 128, 128, {2, 3}, "_scale_inv"},
                                {130, 200, 128, 128, {2, 2}, "_scale_inv"},
                                {7, 5, 128, 128, {1, 1}, "_scale_inv"},
                                {64, 96, 1, 96, {64, 1}, "_scale"},
                                {64, 96, 1, 96, {64}, "_scale"},
                                {64, 96, 64, 96, {1}, "_scale"},
                                {64, 96, 64, 96, {}, "_scale"},
                                {256, 256, 128, 128, {2, 2}, "_scale"}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    CAPTURE(i);
    const Quantised m = noise(c.rows, c.columns, c.block_rows, c.block_columns);
    const TempDirectory directory;
    write(directory,
          with_weight(m).add(std::string("m.weight") + c.suffix, "F32", c.shape, m.scales));
    const auto check_part = [&](Shard shard, std::int64_t row_begin, std::int64_t row_end,
                                std::int64_t column_begin, std::int64_t column_end) {
      const std::vector<TestType> got = read<TestType>(directory, c.rows, c.columns, shard);
      std::vector<float> values, expected;
      for (const TestType x : got) values.push_back(float(x));
      for (std::int64_t row = row_begin; row < row_end; ++row) {
        for (std::int64_t column = column_begin; column < column_end; ++column)
          expected.push_back(float(TestType(m.value(row, column))));
      }
      CHECK(values == expected);
    };
    check_part({}, 0, c.rows, 0, c.columns);
    const std::int64_t row = c.rows / 2 + 1, column = c.columns / 3 + 1;
    check_part({.dim = 0, .begin = row, .end = c.rows}, row, c.rows, 0, c.columns);
    check_part({.dim = 1, .begin = column, .end = c.columns - 1}, 0, c.rows, column, c.columns - 1);
  }
}

TEST_CASE("scales of 16 bits, of powers of two, and of blocks of another size", "[fp8][weights]") {
  const Quantised m = noise(64, 64, 16, 32);
  std::vector<float> values;
  for (std::int64_t row = 0; row < 64; ++row) {
    for (std::int64_t column = 0; column < 64; ++column) values.push_back(m.value(row, column));
  }
  const char* const blocks = R"({"quant_method": "fp8", "weight_block_size": [16, 32]})";
  std::vector<bf16> short_scales;
  for (const float scale : m.scales) short_scales.push_back(bf16(scale));  // exact
  const TempDirectory directory;
  write(directory, with_weight(m).add("m.weight_scale_inv", "BF16", {4, 2}, short_scales), blocks);
  CHECK(read<float>(directory, 64, 64) == values);

  Quantised powers = m;
  std::vector<std::uint8_t> exponents;
  for (std::size_t i = 0; i < powers.scales.size(); ++i) {
    powers.scales[i] = std::ldexp(1.f, static_cast<int>(i) - 4);
    exponents.push_back(static_cast<std::uint8_t>(123 + i));
  }
  values.clear();
  for (std::int64_t row = 0; row < 64; ++row) {
    for (std::int64_t column = 0; column < 64; ++column)
      values.push_back(powers.value(row, column));
  }
  for (const char* dtype : {"F8_E8M0", "U8"}) {
    const TempDirectory other;
    write(other, with_weight(powers).add("m.weight_scale_inv", dtype, {4, 2}, exponents), blocks);
    CHECK(read<float>(other, 64, 64) == values);
  }
}

TEST_CASE("integers of 8 bits are read with their scales, as floats and as integers",
          "[int8][weights]") {
  constexpr std::int64_t kRows = 24, kColumns = 96;
  std::vector<std::int8_t> stored;
  for (int i = 0; i < kRows * kColumns; ++i) stored.push_back(static_cast<std::int8_t>(37 * i));
  std::vector<float> scales;
  for (int n = 0; n < kRows; ++n) scales.push_back(std::ldexp(1.f + 0.25f * (n % 4), n % 3 - 9));
  const std::string_view bytes(reinterpret_cast<const char*>(stored.data()), stored.size());
  const auto config = [](const char* strategy) {
    return concat(R"({"quant_method": "compressed-tensors", "format": "int-quantized",
                      "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int",
                      "strategy": ")",
                  strategy, "\"}}}}");
  };
  const auto matrix = [&] {
    return std::move(SafetensorsWriter().add("m.weight", "I8", {kRows, kColumns}, bytes));
  };
  for (const bool has_rows : {true, false}) {
    CAPTURE(has_rows);
    const TempDirectory directory;
    write(directory,
          has_rows ? matrix()
                         .add("m.weight_scale", "F32", {kRows, 1}, scales)
                         .add("m.input_scale", "F32", {1}, std::vector<float>(1, 1.f))
                         .add("m.input_zero_point", "I8", {1}, std::string_view("\3"))
                   : matrix().add("m.weight_scale", "F32", {1}, std::vector<float>(1, scales[1])),
          config(has_rows ? "channel" : "tensor"));
    for (const Shard& shard : {Shard{}, Shard{.dim = 0, .begin = 5, .end = 20},
                               Shard{.dim = 1, .begin = 7, .end = 90}}) {
      const detail::Region part = detail::region_of({kRows, kColumns}, shard);
      std::vector<float> expected;
      for (std::int64_t n = part.row_begin; n < part.row_end; ++n) {
        for (std::int64_t k = part.column_begin; k < part.column_end; ++k)
          expected.push_back(
              static_cast<float>(stored[static_cast<std::size_t>(n * kColumns + k)]) *
              scales[has_rows ? static_cast<std::size_t>(n) : 1]);
      }
      CHECK(read<float>(directory, kRows, kColumns, shard) == expected);
      std::vector<float> of_integers;
      const auto take = [&](std::int64_t, const AnyStoredRows& rows) {
        const IntRows& integers = *rows.get<IntRows>();
        std::vector<std::int8_t> codes(static_cast<std::size_t>(integers.columns));
        for (std::int64_t n = 0; n < integers.rows; ++n) {
          integers.read(n, codes.data());
          for (std::int64_t k = 0; k < integers.columns; ++k)
            of_integers.push_back(integers.group(n, k).scale *
                                  static_cast<float>(codes[static_cast<std::size_t>(k)]));
        }
        return true;
      };
      const std::vector<Parameter<float>> parameters{{.name = "m.weight",
                                                      .shape = {kRows, kColumns},
                                                      .sink = [](auto&&...) {},
                                                      .shard = shard,
                                                      .stored_sink = take}};
      load_parameters<float>(Checkpoint(directory.path()), parameters);
      CHECK(of_integers == expected);
    }
  }
  const TempDirectory floats;
  write(floats, matrix().add("m.weight_scale", "F32", {kRows, 1}, scales));
  CHECK_THROWS_WITH(read<float>(floats, kRows, kColumns),
                    Contains("'m.weight' must be F32, F16, BF16 or F8_E4M3, got I8"));
  const TempDirectory integers;
  write(integers,
        with_weight(noise(64, 64, 64, 64))
            .add("m.weight_scale", "F32", {1}, std::vector<float>(1, 1.f)),
        config("tensor"));
  CHECK_THROWS_WITH(read<float>(integers, 64, 64),
                    Contains("'m.weight' must be F32, F16, BF16 or I8, got F8_E4M3"));
}

TEST_CASE("a checkpoint in 8-bit floats that does not fit together is refused by name",
          "[fp8][weights]") {
  const Quantised m = noise(256, 256, 128, 128);
  const auto refused = [&](const SafetensorsWriter& tensors, const std::string& message,
                           const std::string& quantization = R"({"quant_method": "fp8"})") {
    const TempDirectory directory;
    write(directory, tensors, quantization);
    CHECK_THROWS_WITH(read<float>(directory, 256, 256), Contains(message));
  };
  refused(with_weight(m),
          "'m.weight' is F8_E4M3, but there are no scales: neither "
          "'m.weight_scale_inv' nor 'm.weight_scale'");
  refused(with_weight(m).add("m.weight_scale_inv", "F32", {2, 3}, std::vector<float>(6, 1.f)),
          "of shape [256, 256] has scales of shape [2, 3]; expected [1], [256, 1], or one for each "
          "block of [128, 128]");
  refused(with_weight(m).add("m.weight_scale_inv", "I32", {2, 2}, std::vector<std::int32_t>(4)),
          "has scales of I32");
  std::vector<float> infinite = m.scales;
  infinite[2] = std::numeric_limits<float>::infinity();
  refused(with_weight(m).add("m.weight_scale_inv", "F32", {2, 2}, infinite),
          "has inf as scale 2; it must be finite");
  refused(with_weight(m).add("m.weight_scale_inv", "F32", {2, 2}, m.scales),
          "is F8_E4M3, but config.json lists it among the modules that are not quantised",
          R"({"quant_method": "fp8", "modules_to_not_convert": ["m"]})");
  refused(with_weight(m).add("m.weight_scale_inv", "F32", {2, 2}, m.scales), "got \"mxfp4\"",
          R"({"quant_method": "mxfp4"})");
  refused(with_weight(m)
              .add("m.weight_scale_inv", "F32", {2, 2}, m.scales)
              .add("n.weight_scale_inv", "F32", {1}, std::vector<float>(1)),
          "'n.weight_scale_inv' [1] is in the checkpoint, but not in the model");
}

TEST_CASE("an engine of an FP8 checkpoint is that of its dequantised weights", "[fp8][engine]") {
  // One of the small models of odd shapes, its matrices in e4m3 with a scale for each 128 · 128, as
  // transformers quantises them; and the same values in float32.
  const std::filesystem::path source = model_directory(kRandomModels[0]);
  const Checkpoint original(source);
  SafetensorsWriter eight_bits, floats;
  for (const CheckpointTensor& tensor : original.tensors()) {
    const std::vector<std::int64_t> shape(tensor.shape.begin(), tensor.shape.end());
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    std::vector<float> values(count);
    detail::convert<float>(tensor.dtype, tensor.data.data(), values.data(), count);
    const bool is_linear = shape.size() == 2 && tensor.name.find("_proj") != std::string::npos;
    if (!is_linear) {
      eight_bits.add(tensor.name, "F32", shape, values);
      floats.add(tensor.name, "F32", shape, values);
      continue;
    }
    Quantised m{shape[0], shape[1], 128, 128};
    m.stored.resize(count);
    for (std::int64_t i = 0; i < m.down(); ++i) {
      for (std::int64_t j = 0; j < m.across(); ++j) {
        const auto each = [&](const auto& visit) {
          for (std::int64_t row = 128 * i; row < std::min(m.rows, 128 * (i + 1)); ++row) {
            for (std::int64_t column = 128 * j; column < std::min(m.columns, 128 * (j + 1));
                 ++column)
              visit(static_cast<std::size_t>(row * m.columns + column));
          }
        };
        float largest = 0;
        each([&](std::size_t at) { largest = std::max(largest, std::abs(values[at])); });
        m.scales.push_back(largest > 0 ? largest / 448 : 1);
        each([&](std::size_t at) { m.stored[at] = fp8_e4m3(values[at] / m.scales.back()).bits; });
      }
    }
    for (std::int64_t row = 0; row < m.rows; ++row) {
      for (std::int64_t column = 0; column < m.columns; ++column)
        values[static_cast<std::size_t>(row * m.columns + column)] = m.value(row, column);
    }
    floats.add(tensor.name, "F32", shape, values);
    eight_bits.add(tensor.name, "F8_E4M3", shape, std::string_view(bytes_of(m.stored)));
    eight_bits.add(tensor.name + "_scale_inv", "F32", {m.down(), m.across()}, m.scales);
  }
  const std::string text = original.required_text("config.json");
  nlohmann::json config = nlohmann::json::parse(text);
  const TempDirectory exact, small;
  exact.write("config.json", config.dump());
  exact.write("model.safetensors", floats.bytes());
  config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                   {"fmt", "e4m3"},
                                   {"quant_method", "fp8"},
                                   {"weight_block_size", {128, 128}}};
  small.write("config.json", config.dump());
  small.write("model.safetensors", eight_bits.bytes());
  const std::vector<TokenId> prompt =
      random_prompt(4, 60, Qwen3Config::load(Checkpoint(source)).vocab_size);
  std::vector<Output> outputs;
  for (const TempDirectory* directory : {&exact, &small}) {
    for (const int ranks : {1, 2}) {
      Engine<AnyModel, FullFloat32Policy> engine(
          {.model = directory->path(), .tensor_parallel = ranks, .num_threads = 1});
      SamplingParams params{
          .temperature = 0.f, .max_tokens = 20, .ignore_eos = true, .logprobs = 4};
      params.prompt_logprobs = 0;
      outputs.push_back(engine.generate(prompt, params));
      REQUIRE(outputs.back().error == "");
    }
  }
  // The same kept in e4m3, as it is stored.
  Engine<AnyModel, Fp8WeightsPolicy> kept({.model = small.path(), .num_threads = 2});
  SamplingParams params{.temperature = 0.f, .max_tokens = 20, .ignore_eos = true, .logprobs = 4};
  params.prompt_logprobs = 0;
  const Output of_kept = kept.generate(prompt, params);
  CHECK(of_kept.token_ids == outputs[2].token_ids);
  CHECK(trace_of(of_kept).logprobs == trace_of(outputs[2]).logprobs);
  CHECK(describe<Fp8WeightsPolicy>().find(concat("Weight         ", Fp8Block128::kName)) !=
        std::string::npos);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    CHECK(outputs[i].token_ids == outputs[i + 2].token_ids);
    CHECK(trace_of(outputs[i]).logprobs == trace_of(outputs[i + 2]).logprobs);  // the same bits
  }
}
