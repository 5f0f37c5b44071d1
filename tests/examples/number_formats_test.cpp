// `--dtype`, `--kv-dtype` and `--quantization`: which policy they are, and what is refused.

#define NANOVLLM_EIGHT_BITS
#include "../../examples/number_formats.hpp"

#include <string>
#include <type_traits>

#include "catch.hpp"

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
struct OnAnother : Short {
  using Backend = int;
};

template <class T>
std::string name_of() {
  return std::is_same_v<T, float>         ? "float32"
         : std::is_same_v<T, bf16>        ? "bfloat16"
         : std::is_same_v<T, Int8Kv>      ? "int8"
         : std::is_same_v<T, Fp8Kv>       ? "fp8"
         : std::is_same_v<T, Fp8Block128> ? "fp8 weights"
         : std::is_same_v<T, Int8Group32> ? "int8 weights"
         : std::is_same_v<T, Int4Group32> ? "int4 weights"
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
  CHECK_THROWS_WITH(chosen({.kv_dtype = "int8", .quantization = "int4"}),
                    "--quantization int4 --kv-dtype int8: --quantization int4 is for --kv-dtype "
                    "auto");
  CHECK_THROWS_WITH(chosen<OnAnother>({.quantization = "int8"}),
                    "--quantization int8 --kv-dtype auto: --quantization int8 is for --device cpu");
}
