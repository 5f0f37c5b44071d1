#pragma once
/// `--dtype`, `--kv-dtype`, `--quantization`, `--quantize-lm-head` and `--save-quantized`. What has 8
/// or 4 bits is in programs that are built with NANOVLLM_EIGHT_BITS, because each combination is an
/// engine more to compile, and lm_head in 8-bit floats where NANOVLLM_EIGHT_BIT_HEAD is defined, too.

#include <nanovllm/core/error.hpp>
#include <nanovllm/engine/engine_config.hpp>
#if defined(NANOVLLM_EIGHT_BITS)
#include <nanovllm/cpu/backend.hpp>
#include <nanovllm/with/eight_bits/checkpoint/save_quantized.hpp>
#include <nanovllm/with/eight_bits/cpu/fp8_matrix.hpp>
#include <nanovllm/with/eight_bits/cpu/linear.hpp>
#include <nanovllm/with/eight_bits/fp8_kv.hpp>
#include <nanovllm/with/eight_bits/int8_kv.hpp>
#include <nanovllm/with/eight_bits/weights.hpp>
#if defined(__CUDACC__)
#include <nanovllm/cuda/backend.cuh>
#include <nanovllm/with/eight_bits/cuda/int4_ops.cuh>
#include <nanovllm/with/eight_bits/cuda/ops.cuh>
#include <nanovllm/with/moe/cuda/fp8_ops.cuh>
#endif
#endif

#include <cstdint>
#include <string>
#include <type_traits>

namespace nanovllm::examples {

/// In what numbers an engine computes and keeps its weights and its KV cache.
struct NumberFormats {
  std::string dtype = "bfloat16";  ///< or "float32"
  std::string kv_dtype = "auto";   ///< that of `dtype`, or "int8" or "fp8"
  /// Or "fp8", which also keeps FP8 checkpoints as stored; "int4"; on the CPU "int8" too.
  std::string quantization = "none";
  /// lm_head in 8 bits as well: in "fp8" and, on GPUs, "int4" in 8-bit floats. In a tied model that is
  /// a copy, half the bytes of the embedding more. Integers on the CPU have it in 8 bits anyway.
  bool quantize_lm_head = false;
  std::string save_quantized{};  ///< a directory to keep weights in integers in; empty: none
};

#if defined(NANOVLLM_EIGHT_BITS)
template <class Policy, class Kv>
struct WithKv : Policy {
  using KvElement = Kv;
};
template <class Policy, class Format>
struct WithWeight : Policy {
  using Weight = Format;
};
#endif

/// Saves the checkpoint as `--save-quantized` says; the engine then opens what was saved. Throws
/// what `save_quantized` throws, and ConfigError in a process among others.
template <class Policy>
void save_weights(const NumberFormats& formats, EngineConfig& config) {
  if (formats.save_quantized.empty()) return;
  check<ConfigError>(config.processes == nullptr,
                     "--save-quantized is for one process: save the weights without ranks in "
                     "processes, then start these with --model ",
                     formats.save_quantized);
#if defined(NANOVLLM_EIGHT_BITS)
  if constexpr (SavesIntegers<Policy>) {
    save_quantized<Policy>(config.model, formats.save_quantized,
                           {.num_threads = config.num_threads,
                            .progress = [&](std::uint64_t done, std::uint64_t total) {
                              if (config.on_load) config.on_load({done, total});
                            }});
    config.model = formats.save_quantized;
  }
#endif
}

/// What `make.template operator()<Policy>()` gives for the formats, of a program with engines in
/// float32 and in bfloat16; those with something in 8 bits are of bfloat16. Throws ConfigError for
/// formats that do not go together, or that this program was built without.
template <class Float32Policy, class Bfloat16Policy, class Make>
auto with_formats(const NumberFormats& formats, const Make& make) {
  const auto& [dtype, kv_dtype, quantization, quantize_lm_head, save_quantized] = formats;
  const bool has_eight_bits = kv_dtype != "auto" || quantization != "none";
  const std::string wanted = concat("--quantization ", quantization, " --kv-dtype ", kv_dtype);
  check<ConfigError>(!has_eight_bits || dtype == "bfloat16", wanted,
                     " is for --dtype bfloat16, got --dtype ", dtype);
  check<ConfigError>(quantization == "none" || kv_dtype != "fp8", wanted, ": --quantization ",
                     quantization, " is for --kv-dtype auto or int8");
  check<ConfigError>(quantization != "none" || !quantize_lm_head,
                     "--quantize-lm-head is for --quantization fp8, int8 or int4, got none");
  const bool has_integers = quantization == "int8" || quantization == "int4";
  check<ConfigError>(has_integers || save_quantized.empty(),
                     "--save-quantized is for --quantization int8 or int4, got --quantization ",
                     quantization);
#if defined(NANOVLLM_EIGHT_BITS)
  const auto with_weight = [&]<class Format>() {
    using Policy = WithWeight<Bfloat16Policy, Format>;
    if (kv_dtype == "int8") return make.template operator()<WithKv<Policy, Int8Kv>>();
    return make.template operator()<Policy>();
  };
  const auto with_head = [&]<class Format>() {
#if defined(NANOVLLM_EIGHT_BIT_HEAD)
    if (quantize_lm_head) return with_weight.template operator()<WithFp8Head<Format>>();
#endif
    check<ConfigError>(!quantize_lm_head, "--quantize-lm-head with ", wanted,
                       ": build this program with -DNANOVLLM_EIGHT_BIT_HEAD=ON");
    return with_weight.template operator()<Format>();
  };
  if (quantization == "fp8") return with_head.template operator()<Fp8Block128>();
  if constexpr (std::is_same_v<typename Bfloat16Policy::Backend, CpuBackend>) {
    if (quantization == "int8") return with_weight.template operator()<Int8Group32>();
    if (quantization == "int4") return with_weight.template operator()<Int4Group32>();
  }
  check<ConfigError>(!has_integers || (quantization == "int4" && save_quantized.empty()), wanted,
                     save_quantized.empty() ? ": --quantization int8" : ": --save-quantized",
                     " is for --device cpu");
#if defined(__CUDACC__)
  if constexpr (std::is_same_v<typename Bfloat16Policy::Backend, CudaBackend>) {
    if (quantization == "int4") return with_head.template operator()<Int4Group128>();
  }
#endif
  check<ConfigError>(!has_integers, wanted, ": this program has no 4-bit weights for that device");
  if (kv_dtype == "int8") return make.template operator()<WithKv<Bfloat16Policy, Int8Kv>>();
  if (kv_dtype == "fp8") return make.template operator()<WithKv<Bfloat16Policy, Fp8Kv>>();
#endif
  check<ConfigError>(!has_eight_bits, wanted, ": build this program with -DNANOVLLM_EIGHT_BITS=ON");
  if (dtype == "float32") return make.template operator()<Float32Policy>();
  return make.template operator()<Bfloat16Policy>();
}

}  // namespace nanovllm::examples
