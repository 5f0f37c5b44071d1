#pragma once
/// `--kv-dtype`: the KV cache in 8 bits, in programs that are built with NANOVLLM_KV_DTYPES, because
/// each format is an engine more to compile.

#include <nanovllm/core/error.hpp>
#if defined(NANOVLLM_KV_DTYPES)
#include <nanovllm/ops/fp8_kv.hpp>
#include <nanovllm/ops/int8_kv.hpp>
#endif

#include <string>

namespace nanovllm::examples {

#if defined(NANOVLLM_KV_DTYPES)
template <class Policy, class Kv>
struct WithKv : Policy {
  using KvElement = Kv;
};
#endif

/// What `make.template operator()<P>()` gives for `Policy` with the cache that `name` says: "auto",
/// that of the policy, "int8" or "fp8". Throws ConfigError for one that this program was built
/// without.
template <class Policy, class Make>
auto with_kv_dtype(const std::string& name, const Make& make) {
#if defined(NANOVLLM_KV_DTYPES)
  if (name == "int8") return make.template operator()<WithKv<Policy, Int8Kv>>();
  if (name == "fp8") return make.template operator()<WithKv<Policy, Fp8Kv>>();
#endif
  check<ConfigError>(name == "auto", "--kv-dtype ", name,
                     ": build this program with -DNANOVLLM_KV_DTYPES=ON");
  return make.template operator()<Policy>();
}

/// The same of a program with engines in float32 and in bfloat16; those in 8 bits are of bfloat16.
/// Throws ConfigError for another cache with float32.
template <class Float32Policy, class Bfloat16Policy, class Make>
auto with_dtypes(const std::string& dtype, const std::string& kv_dtype, const Make& make) {
  if (dtype != "float32") return with_kv_dtype<Bfloat16Policy>(kv_dtype, make);
  check<ConfigError>(kv_dtype == "auto", "--kv-dtype ", kv_dtype,
                     " is for --dtype bfloat16, got --dtype float32");
  return make.template operator()<Float32Policy>();
}

}  // namespace nanovllm::examples
