#pragma once
/// Makes the engine of `serve`. engine_factory.cpp is the one for the CPU, engine_factory.cu that
/// for GPUs: the only file of `serve_cuda` that nvcc compiles.

#include <nanovllm/engine/any_engine.hpp>

#include <memory>
#include <string>

namespace nanovllm::examples {

/// @param device    "auto", "cpu" or "cuda".
/// @param dtype     "bfloat16" or "float32".
/// @param kv_dtype  "auto", "int8" or "fp8": see kv_dtype.hpp.
/// Throws ConfigError for a device, or a type of the cache, that this program was built without.
[[nodiscard]] std::unique_ptr<AnyEngine> make_engine(const std::string& device,
                                                     const std::string& dtype,
                                                     const std::string& kv_dtype,
                                                     EngineConfig config);

}  // namespace nanovllm::examples
