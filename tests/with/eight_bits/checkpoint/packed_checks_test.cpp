// Packed integers that do not fit together, or that config.json describes otherwise, are refused by
// name, before anything is read.

#include "nanovllm/with/eight_bits/checkpoint/packed_integers.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/weights.hpp"
#include "with/eight_bits/checkpoint/packed_matrix.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;

namespace {

using enum PackedLayout;
using Tensors = std::vector<ExampleTensor>;

const PackedFormat kAwq{awq, 4, 32};
const PackedFormat kGptq{gptq, 4, 32, true, true};
const PackedFormat kOurs{compressed_tensors, 4, 32, true};

ExampleTensor& named(Tensors& tensors, const std::string& name) {
  for (ExampleTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw Error("no tensor " + name);
}

void drop(Tensors& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const ExampleTensor& tensor) { return tensor.name == name; });
}

/// A tensor of zeros of another shape or type in the place of one.
void replace(Tensors& tensors, const std::string& name, FileDType dtype,
             std::vector<std::uint64_t> shape) {
  std::size_t bytes = size_bits(dtype) / 8;
  for (const std::uint64_t extent : shape) bytes *= extent;
  named(tensors, name) = {name, dtype, std::move(shape), std::string(bytes, '\0')};
}

void load(const Tensors& tensors, const std::string& config,
          std::vector<std::int64_t> shape = {64, 96}, bool transposed = false) {
  const std::vector<Parameter<float>> parameters{{.name = "m.weight",
                                                  .shape = std::move(shape),
                                                  .sink = [](auto&&...) {},
                                                  .transposed = transposed}};
  load_parameters<float>(Checkpoint(packed_checkpoint(tensors, config)), parameters);
}

/// The message for a matrix [64, 96] that `change` has broken.
std::string error_of(const PackedFormat& format, const std::function<void(Tensors&)>& change,
                     std::string config = "", std::vector<std::int64_t> shape = {64, 96}) {
  Tensors tensors = tensors_of(packed_noise(format, 64, 96));
  change(tensors);
  if (config.empty()) config = config_of(format);
  try {
    load(tensors, config, std::move(shape));
  } catch (const LoadError& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("tensors that are missing or of another shape are named", "[packed][weights]") {
  for (const PackedFormat& format : {kAwq, kGptq, kOurs})
    CHECK(error_of(format, [](Tensors&) {}) == "nothing");
  const auto without = [](const PackedFormat& format, const std::string& name) {
    return error_of(format, [&](Tensors& tensors) { drop(tensors, name); });
  };
  CHECK_THAT(without(kAwq, "m.qweight"), Contains("'m.weight' is missing"));
  CHECK_THAT(without(kAwq, "m.qzeros"),
             Contains("'m.weight' must have 'm.qzeros', I32 [3, 8], which is missing"));
  CHECK_THAT(without(kAwq, "m.scales"),
             Contains("must have 'm.scales', F16, BF16 or F32 [3, 64], which is missing"));
  CHECK_THAT(without(kGptq, "m.qzeros"), Contains("'m.qzeros', I32 [3, 8], which is missing"));
  CHECK(without({gptq, 4, 32, false, true}, "m.qzeros") == "nothing");  // symmetric
  CHECK(without(kGptq, "m.g_idx") == "nothing");
  CHECK_THAT(without(kOurs, "m.weight_scale"), Contains("[64, 3], which is missing"));
  CHECK_THAT(without(kOurs, "m.weight_zero_point"), Contains("I32 [8, 3], which is missing"));
  CHECK(without(kOurs, "m.weight_shape") == "nothing");

  const auto with = [](const PackedFormat& format, const std::string& name, FileDType dtype,
                       std::vector<std::uint64_t> shape) {
    return error_of(format, [&](Tensors& tensors) { replace(tensors, name, dtype, shape); });
  };
  using enum FileDType;
  CHECK_THAT(with(kAwq, "m.qweight", i32, {96, 9}),
             Contains("must have 'm.qweight', I32 [96, 8], got I32 [96, 9]"));
  CHECK_THAT(with(kAwq, "m.qweight", i32, {12, 64}),  // GPTQ's
             Contains("must have 'm.qweight', I32 [96, 8], got I32 [12, 64]"));
  CHECK_THAT(with(kAwq, "m.qweight", f32, {96, 8}), Contains("got F32 [96, 8]"));
  CHECK_THAT(with(kAwq, "m.qzeros", i32, {1, 8}), Contains("I32 [3, 8], got I32 [1, 8]"));
  CHECK_THAT(with(kAwq, "m.scales", f16, {3, 8}), Contains("F32 [3, 64], got F16 [3, 8]"));
  CHECK_THAT(with(kAwq, "m.scales", u8, {3, 64}), Contains("[3, 64], got U8 [3, 64]"));
  CHECK_THAT(with(kGptq, "m.qweight", i32, {12, 64, 1}), Contains("got I32 [12, 64, 1]"));
  CHECK_THAT(with(kGptq, "m.g_idx", i32, {3}), Contains("'m.g_idx', I32 [96], got I32 [3]"));
  CHECK_THAT(with(kOurs, "m.weight_packed", i32, {64, 0}),
             Contains("I32 [64, 12], got I32 [64, 0]"));
  CHECK_THAT(with(kOurs, "m.weight_zero_point", i32, {64, 3}), Contains("[8, 3], got I32 [64, 3]"));
  CHECK_THAT(with(kOurs, "m.weight_shape", i64, {2}),
             Contains("must have shape [64, 96], got [0, 0] in 'm.weight_shape'"));
  CHECK_THAT(with(kOurs, "m.weight_shape", f32, {2}),
             Contains("'m.weight_shape', I64 or I32 [2], got F32 [2]"));
}

TEST_CASE("groups of columns that there are not are refused", "[packed][weights]") {
  for (const auto& [format, name] :
       {std::pair(kGptq, "m.g_idx"), std::pair(kOurs, "m.weight_g_idx")}) {
    const auto with = [format = format, name = name](char group) {
      return error_of(format, [&](Tensors& tensors) {
        drop(tensors, name);
        tensors.push_back({name, FileDType::i32, {96}, std::string(4 * 96, '\0')});
        tensors.back().data.replace(4 * 33, 4, 4, group);
      });
    };
    CHECK(with('\0') == "nothing");
    CHECK_THAT(with('\xff'), Contains(concat("'m.weight' has group -1 for column 33 in '", name,
                                             "'; there are 3")));
    CHECK_THAT(with('\1'), Contains("has group 16843009 for column 33"));
  }
  CHECK_THAT(
      error_of(kOurs,
               [](Tensors& tensors) {
                 tensors.push_back({"m.weight_g_idx", FileDType::i32, {3}, std::string(12, '\0')});
               }),
      Contains("must have 'm.weight_g_idx', I32 [96], got I32 [3]"));
}

TEST_CASE("what config.json says must be what is stored", "[packed][weights]") {
  const auto same = [](Tensors&) {};
  CHECK_THAT(error_of(kAwq, same, config_of(kOurs)),
             Contains("must be packed as 'm.weight_packed', got 'm.qweight'"));
  CHECK_THAT(error_of(kOurs, same, config_of(kAwq)),
             Contains("must be packed as 'm.qweight', got 'm.weight_packed'"));
  CHECK_THAT(error_of(kAwq, same, R"({"quant_method": "fp8"})"),
             Contains("'m.qweight', but config.json has no 'quantization_config' of packed"));
  CHECK_THAT(error_of(kGptq, same, config_of({gptq, 8, 32, true, true})),
             Contains("must have 'm.qweight', I32 [24, 64], got I32 [12, 64]"));
  CHECK_THAT(
      error_of(kOurs, same, config_of({compressed_tensors, 4, 32, false})),
      Contains("has zeros, 'm.weight_zero_point', but config.json says that it is symmetric"));
  CHECK_THAT(error_of(kAwq, same,
                      R"({"quant_method": "awq", "bits": 4, "group_size": 32,
                          "modules_to_not_convert": ["m"]})"),
             Contains("config.json lists it among the modules that are not quantised"));
  // A name that the list has a part of, such as "gate" of "gate_proj", is another module.
  CHECK(error_of(kAwq, same,
                 R"({"quant_method": "awq", "bits": 4, "group_size": 32,
                     "modules_to_not_convert": ["m.weight", "mm"]})") == "nothing");
}

TEST_CASE("stored zeros of a symmetric GPTQ matrix must be in the middle", "[packed][weights]") {
  for (const int bits : {4, 8}) {
    const std::string config = config_of({gptq, bits, 32, false, true});
    const auto stored = [&](int zero, std::int64_t rows = 64) {
      const PackedFormat asymmetric{gptq, bits, 32, true, true};
      PackedExample m = packed_noise(asymmetric, rows, 96);
      m.zeros.assign(m.zeros.size(), zero);
      return m;
    };
    const int middle = 1 << (bits - 1);
    for (const std::int64_t rows : {64, 61}) {
      CAPTURE(bits, rows);
      CHECK_NOTHROW(load(tensors_of(stored(middle, rows)), config, {rows, 96}));
      // As gptq_v2 has them, under the name of the first format.
      CHECK_NOTHROW(load(tensors_of(stored(middle + 1, rows)), config, {rows, 96}));
      PackedExample other = stored(middle, rows);
      other.zeros.back() = middle - 2;
      const std::string message = concat("'m.weight' has zeros in 'm.qzeros' that are not all ",
                                         middle, ", but config.json has no 'sym' that is false");
      CHECK_THROWS_WITH(load(tensors_of(other), config, {rows, 96}), Contains(message));
      other.zeros.assign(other.zeros.size(), middle - 2);
      CHECK_THROWS_WITH(load(tensors_of(other), config, {rows, 96}), Contains(message));
    }
  }
}

TEST_CASE("matrices that have no place in whole words are refused", "[packed][weights]") {
  const auto same = [](Tensors&) {};
  CHECK_THAT(error_of(kAwq, same, "", {68, 96}),
             Contains("of shape [68, 96] cannot be packed: 68 must be a multiple of 8"));
  CHECK_THAT(error_of(kGptq, same, "", {64, 90}),
             Contains("of shape [64, 90] cannot be packed: 90 must be a multiple of 8"));
  CHECK_THAT(error_of(kAwq, same, "", {64}),
             Contains("must have shape [64], but 'm.qweight' is a packed matrix"));
  CHECK_THROWS_WITH(load(tensors_of(packed_noise(kAwq, 96, 96)), config_of(kAwq), {96, 96}, true),
                    Contains("models whose files have this matrix transposed do not read those"));
}

TEST_CASE("tensors that nothing needs are refused, but for biases of zeros", "[packed][weights]") {
  const auto add = [](const char* name, char value) {
    return [name, value](Tensors& tensors) {
      tensors.push_back({name, FileDType::f16, {64}, std::string(128, value)});
    };
  };
  CHECK(error_of(kGptq, add("m.bias", 0)) == "nothing");
  CHECK_THAT(error_of(kGptq, add("m.bias", 1)),
             Contains("'m.bias' [64] is in the checkpoint, but not in the model"));
  CHECK_THAT(error_of(kGptq, add("n.bias", 0)), Contains("'n.bias' [64] is in the checkpoint"));
  CHECK_THAT(error_of(kGptq, add("n.qweight", 0)), Contains("'n.qweight' [64] is in the"));
  CHECK_THAT(error_of(kGptq,
                      [](Tensors& tensors) {  // the same matrix twice
                        tensors.push_back(
                            {"m.weight", FileDType::f16, {64, 96}, std::string(2 * 64 * 96, '\0')});
                      }),
             Contains("'m.qweight' [12, 64] is in the checkpoint, but not in the model"));
}
