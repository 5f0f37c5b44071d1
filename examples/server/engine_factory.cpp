#include "engine_factory.hpp"

#include <nanovllm/full_policy.hpp>

#include <utility>

#include "../processes.hpp"

namespace nanovllm::examples {

std::unique_ptr<AnyEngine> make_engine(const std::string& device, const std::string& dtype,
                                       EngineConfig config) {
  check<ConfigError>(device != "cuda", "--device cuda: this program was built without it");
  return dtype == "float32"
             ? nanovllm::make_engine<AllModels, WithProcesses<FullFloat32Policy>>(std::move(config))
             : nanovllm::make_engine<AllModels, WithProcesses<FullPolicy>>(std::move(config));
}

}  // namespace nanovllm::examples
