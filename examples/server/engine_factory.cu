#include "engine_factory.hpp"

#include <nanovllm/full_policy.hpp>

#include <utility>

namespace nanovllm::examples {

namespace {

bool has_gpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count > 0;
  static_cast<void>(cudaGetLastError());
  return false;
}

template <class Policy>
std::unique_ptr<AnyEngine> make(EngineConfig config) {
  using Model = Qwen3<shapes::qwen3_any>;
  return std::make_unique<EngineAdapter<Engine<Model, Policy>>>(std::move(config));
}

}  // namespace

std::unique_ptr<AnyEngine> make_engine(const std::string& device, const std::string& dtype,
                                       EngineConfig config) {
  const bool is_float32 = dtype == "float32";
  if (device == "cuda" || (device == "auto" && has_gpu())) {
    return is_float32 ? make<CudaFullFloat32Policy>(std::move(config))
                      : make<CudaFullPolicy>(std::move(config));
  }
  return is_float32 ? make<FullFloat32Policy>(std::move(config))
                    : make<FullPolicy>(std::move(config));
}

}  // namespace nanovllm::examples
