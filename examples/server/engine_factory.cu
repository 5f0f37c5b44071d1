#include "engine_factory.hpp"

#include <nanovllm/full_policy.hpp>

#include <utility>

#include "../kv_dtype.hpp"
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
                                       const std::string& kv_dtype, EngineConfig config) {
  const auto make = [&]<class Policy>() {
    return nanovllm::make_engine<AllModels, WithProcesses<Policy>>(std::move(config));
  };
  if (device == "cuda" || (device == "auto" && has_gpu()))
    return with_dtypes<CudaFullFloat32Policy, CudaFullPolicy>(dtype, kv_dtype, make);
  return with_dtypes<FullFloat32Policy, FullPolicy>(dtype, kv_dtype, make);
}

}  // namespace nanovllm::examples
