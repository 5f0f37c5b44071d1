#pragma once
/// The engine of `serve`, for any list of models. In a .cu file there are GPUs as well.

#include <nanovllm/full_policy.hpp>

#include <memory>
#include <string>
#include <utility>

#include "../number_formats.hpp"
#include "../open_engine.hpp"

namespace nanovllm::examples {

/// @param device  "auto", "cpu" or "cuda".
/// Throws ConfigError for a device, or formats, that this program was built without.
template <class Models>
[[nodiscard]] std::unique_ptr<AnyEngine> engine_of(const std::string& device,
                                                   const NumberFormats& formats,
                                                   EngineConfig config) {
  const auto make = [&]<class Policy>() {
    return open_engine<Models, Policy>(formats, std::move(config));
  };
#if defined(__CUDACC__)
  const auto has_gpu = [] {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count > 0;
    static_cast<void>(cudaGetLastError());
    return false;
  };
  if (device == "cuda" || (device == "auto" && has_gpu()))
    return with_formats<CudaFullFloat32Policy, CudaFullPolicy>(formats, make);
#endif
  check<ConfigError>(device != "cuda", "--device cuda: this program was built without it");
  return with_formats<FullFloat32Policy, FullPolicy>(formats, make);
}

}  // namespace nanovllm::examples
