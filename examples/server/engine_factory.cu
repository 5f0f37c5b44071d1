#include "engine_factory.hpp"

#include <nanovllm/full_policy.hpp>

#include <utility>

#include "../processes.hpp"

namespace nanovllm::examples {

namespace {

bool has_gpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count > 0;
  static_cast<void>(cudaGetLastError());
  return false;
}

}  // namespace

std::unique_ptr<AnyEngine> make_engine(const std::string& device, const std::string& dtype,
                                       EngineConfig config) {
  const bool is_float32 = dtype == "float32";
  if (device == "cuda" || (device == "auto" && has_gpu())) {
    return is_float32
               ? nanovllm::make_engine<AllModels, WithProcesses<CudaFullFloat32Policy>>(
                     std::move(config))
               : nanovllm::make_engine<AllModels, WithProcesses<CudaFullPolicy>>(std::move(config));
  }
  return is_float32
             ? nanovllm::make_engine<AllModels, WithProcesses<FullFloat32Policy>>(std::move(config))
             : nanovllm::make_engine<AllModels, WithProcesses<FullPolicy>>(std::move(config));
}

}  // namespace nanovllm::examples
