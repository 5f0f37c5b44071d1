#pragma once
/// An engine for whatever checkpoint comes, of the models that a program was built for.

#include <memory>
#include <utility>

#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/setup.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/registry.hpp"

namespace nanovllm {

/// The engine of the first model of `List`, a `Models`, that the checkpoint of `config` is of.
/// Throws UnsupportedModelError when there is none, and what the engine's constructor throws.
///
/// ```cpp
/// const std::unique_ptr<AnyEngine> any = make_engine<AllModels>({.model = "Qwen3-0.6B"});
/// ```
template <class List, class Policy = DefaultPolicy>
[[nodiscard]] std::unique_ptr<AnyEngine> make_engine(EngineConfig config) {
  const Checkpoint checkpoint = checkpoint_of(config);
  config.checkpoint = checkpoint;
  std::unique_ptr<AnyEngine> out;
  with_model<List>(checkpoint, [&]<class Model>() {
    out = std::make_unique<EngineAdapter<Engine<Model, Policy>>>(std::move(config));
  });
  return out;
}

}  // namespace nanovllm
