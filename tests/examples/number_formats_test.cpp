// `--dtype`, `--kv-dtype`, `--quantization`, `--quantize-lm-head` and `--save-quantized`: which policy they are, what is
// refused, and that weights are saved once and opened then.

#define NANOVLLM_EIGHT_BITS
#define NANOVLLM_EIGHT_BIT_HEAD
#include "../../examples/number_formats.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <type_traits>

#include "catch.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using namespace nanovllm::examples;

namespace {

struct Wide {
  using Backend = CpuBackend;
  using Weight = float;
  using KvElement = float;
};
struct Short {
  using Backend = CpuBackend;
  using Weight = bf16;
  using KvElement = bf16;
};
struct Integers : Short {
  using Weight = Int4Group32;
};
struct OnAnother : Short {
  using Backend = int;
};

template <class T>
std::string name_of() {
  return std::is_same_v<T, float>                      ? "float32"
         : std::is_same_v<T, bf16>                     ? "bfloat16"
         : std::is_same_v<T, Int8Kv>                   ? "int8"
         : std::is_same_v<T, Fp8Kv>                    ? "fp8"
         : std::is_same_v<T, Fp8Block128>              ? "fp8 weights"
         : std::is_same_v<T, WithFp8Head<Fp8Block128>> ? "fp8 weights and head"
         : std::is_same_v<T, Int8Group32>              ? "int8 weights"
         : std::is_same_v<T, Int4Group32>              ? "int4 weights"
                                                       : "another";
}

/// "weights, cache".
template <class Bfloat16Policy = Short>
std::string chosen(const NumberFormats& formats) {
  return with_formats<Wide, Bfloat16Policy>(formats, []<class Policy>() {
    return name_of<typename Policy::Weight>() + ", " + name_of<typename Policy::KvElement>();
  });
}

}  // namespace

TEST_CASE("formats of numbers choose the policy", "[examples]") {
  CHECK(chosen({}) == "bfloat16, bfloat16");
  CHECK(chosen({.dtype = "float32"}) == "float32, float32");
  CHECK(chosen({.kv_dtype = "int8"}) == "bfloat16, int8");
  CHECK(chosen({.kv_dtype = "fp8"}) == "bfloat16, fp8");
  CHECK(chosen({.quantization = "fp8"}) == "fp8 weights, bfloat16");
  CHECK(chosen({.kv_dtype = "int8", .quantization = "fp8"}) == "fp8 weights, int8");
  CHECK(chosen({.quantization = "int8"}) == "int8 weights, bfloat16");
  CHECK(chosen({.quantization = "int4"}) == "int4 weights, bfloat16");
  CHECK(chosen({.kv_dtype = "int8", .quantization = "int8"}) == "int8 weights, int8");
  CHECK(chosen({.kv_dtype = "int8", .quantization = "int4"}) == "int4 weights, int8");
  CHECK(chosen({.quantization = "fp8", .quantize_lm_head = true}) ==
        "fp8 weights and head, bfloat16");
  CHECK(chosen({.kv_dtype = "int8", .quantization = "fp8", .quantize_lm_head = true}) ==
        "fp8 weights and head, int8");
  CHECK(chosen({.quantization = "int8", .quantize_lm_head = true}) == "int8 weights, bfloat16");
  CHECK(chosen({.quantization = "int4", .quantize_lm_head = true}) == "int4 weights, bfloat16");
}

TEST_CASE("formats of numbers that do not go together are refused by name", "[examples]") {
  CHECK_THROWS_WITH(chosen({.dtype = "float32", .kv_dtype = "int8"}),
                    "--quantization none --kv-dtype int8 is for --dtype bfloat16, got --dtype "
                    "float32");
  CHECK_THROWS_WITH(chosen({.dtype = "float32", .quantization = "fp8"}),
                    "--quantization fp8 --kv-dtype auto is for --dtype bfloat16, got --dtype "
                    "float32");
  CHECK_THROWS_WITH(chosen({.kv_dtype = "fp8", .quantization = "fp8"}),
                    "--quantization fp8 --kv-dtype fp8: --quantization fp8 is for --kv-dtype auto "
                    "or int8");
  CHECK_THROWS_WITH(chosen({.kv_dtype = "fp8", .quantization = "int4"}),
                    "--quantization int4 --kv-dtype fp8: --quantization int4 is for --kv-dtype "
                    "auto or int8");
  CHECK_THROWS_WITH(chosen({.quantize_lm_head = true}),
                    "--quantize-lm-head is for --quantization fp8, int8 or int4, got none");
  CHECK_THROWS_WITH(chosen({.quantization = "fp8", .save_quantized = "folder"}),
                    "--save-quantized is for --quantization int8 or int4, got --quantization fp8");
  CHECK_THROWS_WITH(chosen<OnAnother>({.quantization = "int8"}),
                    "--quantization int8 --kv-dtype auto: --quantization int8 is for --device cpu");
  CHECK_THROWS_WITH(chosen<OnAnother>({.quantization = "int4", .save_quantized = "folder"}),
                    "--quantization int4 --kv-dtype auto: --save-quantized is for --device cpu");
  CHECK_THROWS_WITH(chosen<OnAnother>({.quantization = "int4"}),
                    "--quantization int4 --kv-dtype auto: this program has no 4-bit weights for "
                    "that device");
}

TEST_CASE("weights are saved where it was asked for, and opened from there", "[examples]") {
  const nanovllm_test::TempDirectory folder;
  const std::filesystem::path model = "examples/models/fairytale", saved = folder.path() / "saved";
  std::uint64_t read = 0;
  EngineConfig config{.model = model, .num_threads = 1, .on_load = [&](const LoadProgress& p) {
                        read = p.bytes_done;
                      }};
  save_weights<Integers>({.quantization = "int4"}, config);
  CHECK(config.model == model);
  const NumberFormats formats{.quantization = "int4", .save_quantized = saved.string()};
  save_weights<Integers>(formats, config);
  CHECK(config.model == saved);
  CHECK(std::filesystem::exists(saved / "model.safetensors"));
  CHECK(read > 1'000'000);
  config.model = model;
  CHECK_THROWS_WITH(
      save_weights<Integers>(formats, config),
      "cannot save to '" + saved.string() + "': it is there already, and not an empty directory");
  int other = 0;  // stands for the other processes, of which no more is asked
  config.processes = std::shared_ptr<ProcessGroup>(std::shared_ptr<void>(),
                                                   reinterpret_cast<ProcessGroup*>(&other));
  CHECK_THROWS_WITH(save_weights<Integers>(formats, config),
                    "--save-quantized is for one process: save the weights without ranks in "
                    "processes, then start these with --model " +
                        saved.string());
}
