#pragma once
/// Makes the engine of a program, of one of the policies that its formats of numbers choose.

#include <nanovllm/with/any/make_engine.hpp>
#include <nanovllm/with/speculation/config.hpp>

#include <memory>
#include <utility>

#include "number_formats.hpp"
#include "processes.hpp"

namespace nanovllm::examples {

/// A draft model gets an engine of the same class, so that there is none more to compile. Throws
/// what `save_weights` and `make_engine` throw.
template <class Models, class Policy>
[[nodiscard]] std::unique_ptr<AnyEngine> open_engine(const NumberFormats& formats,
                                                     EngineConfig config) {
  save_weights<Policy>(formats, config);
  if (config.extras.find<SpeculativeConfig>() != nullptr)
    config.extras.edit<SpeculativeConfig>().make_engine = [](const EngineConfig& draft) {
      return nanovllm::make_engine<Models, WithProcesses<Policy>>(draft);
    };
  return nanovllm::make_engine<Models, WithProcesses<Policy>>(std::move(config));
}

}  // namespace nanovllm::examples
