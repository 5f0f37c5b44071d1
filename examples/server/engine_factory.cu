#include "engine_factory.hpp"

#include <nanovllm/full_policy.hpp>
#include <nanovllm/with/any/all_models.hpp>
#include <nanovllm/with/any/make_engine.hpp>
#include <nanovllm/with/moe/cuda/ops.cuh>

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

std::unique_ptr<AnyEngine> make_engine(const std::string& device, const NumberFormats& formats,
                                       EngineConfig config) {
  const auto make = [&]<class Policy>() {
    save_weights<Policy>(formats, config);
    return nanovllm::make_engine<AllModels, WithProcesses<Policy>>(std::move(config));
  };
  if (device == "cuda" || (device == "auto" && has_gpu()))
    return with_formats<CudaFullFloat32Policy, CudaFullPolicy>(formats, make);
  return with_formats<FullFloat32Policy, FullPolicy>(formats, make);
}

}  // namespace nanovllm::examples
