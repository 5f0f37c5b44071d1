#include "engine_factory.hpp"

#include <nanovllm/with/any/all_models.hpp>

#include <utility>

#include "engine_of.hpp"

namespace nanovllm::examples {

std::unique_ptr<AnyEngine> make_engine(const std::string& device, const NumberFormats& formats,
                                       EngineConfig config) {
  return engine_of<AllModels>(device, formats, std::move(config));
}

}  // namespace nanovllm::examples
