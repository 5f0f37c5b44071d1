#include "engine_factory.hpp"

#include <nanovllm/full_policy.hpp>

#include <utility>

namespace nanovllm::examples {

namespace {

template <class Policy>
std::unique_ptr<AnyEngine> make(EngineConfig config) {
  using Model = Qwen3<shapes::qwen3_any>;
  return std::make_unique<EngineAdapter<Engine<Model, Policy>>>(std::move(config));
}

}  // namespace

std::unique_ptr<AnyEngine> make_engine(const std::string& device, const std::string& dtype,
                                       EngineConfig config) {
  check<ConfigError>(device != "cuda", "--device cuda: this program was built without it");
  return dtype == "float32" ? make<FullFloat32Policy>(std::move(config))
                            : make<FullPolicy>(std::move(config));
}

}  // namespace nanovllm::examples
