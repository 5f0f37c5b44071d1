#pragma once
/// Makes the engine of `serve`. engine_factory.cpp is the one for the CPU, engine_factory.cu that
/// for GPUs: the only file of `serve_cuda` that nvcc compiles.

#include <nanovllm/engine/any_engine.hpp>

#include <memory>
#include <string>

#include "../number_formats.hpp"

namespace nanovllm::examples {

/// @param device  "auto", "cpu" or "cuda".
/// Throws ConfigError for a device, or formats, that this program was built without.
[[nodiscard]] std::unique_ptr<AnyEngine> make_engine(const std::string& device,
                                                     const NumberFormats& formats,
                                                     EngineConfig config);

}  // namespace nanovllm::examples
