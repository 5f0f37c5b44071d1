#include "engine_factory.hpp"

#include <nanovllm/full_policy.hpp>
#include <nanovllm/with/any/all_models.hpp>
#include <nanovllm/with/any/make_engine.hpp>

#include <utility>

#include "../processes.hpp"

namespace nanovllm::examples {

std::unique_ptr<AnyEngine> make_engine(const std::string& device, const NumberFormats& formats,
                                       EngineConfig config) {
  check<ConfigError>(device != "cuda", "--device cuda: this program was built without it");
  return with_formats<FullFloat32Policy, FullPolicy>(formats, [&]<class Policy>() {
    save_weights<Policy>(formats, config);
    return nanovllm::make_engine<AllModels, WithProcesses<Policy>>(std::move(config));
  });
}

}  // namespace nanovllm::examples
