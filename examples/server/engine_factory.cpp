#include "engine_factory.hpp"

#include <nanovllm/full_policy.hpp>

#include <utility>

#include "../kv_dtype.hpp"
#include "../processes.hpp"

namespace nanovllm::examples {

std::unique_ptr<AnyEngine> make_engine(const std::string& device, const std::string& dtype,
                                       const std::string& kv_dtype, EngineConfig config) {
  check<ConfigError>(device != "cuda", "--device cuda: this program was built without it");
  return with_dtypes<FullFloat32Policy, FullPolicy>(dtype, kv_dtype, [&]<class Policy>() {
    return nanovllm::make_engine<AllModels, WithProcesses<Policy>>(std::move(config));
  });
}

}  // namespace nanovllm::examples
