// The shared library of nanovllm/c/nanovllm.h. c_library.cmake says by definitions which engines it
// has: NANOVLLM_C_SHAPES, and with NANOVLLM_C_CUDA those for GPUs.
#include "nanovllm/full_policy.hpp"
#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/any/make_engine.hpp"
#include "nanovllm/with/speculation/config.hpp"

#include "nanovllm/api/c/library.inc"

#if defined(NANOVLLM_C_CUDA)
#include <cuda_runtime_api.h>

#include "nanovllm/cuda_policy.hpp"
#endif

namespace nanovllm::c_api {
namespace {

bool has_gpu() {
#if defined(NANOVLLM_C_CUDA)
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count > 0;
  static_cast<void>(cudaGetLastError());
#endif
  return false;
}

// A draft model gets an engine of the same class, so that there is none more to compile.
template <class Models, class Policy>
std::unique_ptr<AnyEngine> open_engine(EngineConfig config) {
  if (config.extras.find<SpeculativeConfig>() != nullptr)
    config.extras.edit<SpeculativeConfig>().make_engine = nanovllm::make_engine<Models, Policy>;
  return nanovllm::make_engine<Models, Policy>(std::move(config));
}

}  // namespace

std::unique_ptr<AnyEngine> make_engine(EngineChoice choice) {
  using namespace shapes;
  using All [[maybe_unused]] = ModelsOf<NANOVLLM_C_SHAPES>;
  const std::string device = choice.device.value_or(has_gpu() ? "cuda" : "cpu");
  [[maybe_unused]] const auto is = [&](const char* on, const char* dtype) {
    return device == on && choice.dtype == dtype;
  };
#if defined(NANOVLLM_C_CUDA)
  if (is("cuda", "bfloat16")) return open_engine<All, CudaFullPolicy>(choice.config);
#endif
  if (is("cpu", "bfloat16")) return open_engine<All, FullPolicy>(choice.config);
  if (is("cpu", "float32")) return open_engine<All, FullFloat32Policy>(choice.config);
  throw UnsupportedError(
      concat("this library was not compiled for ", choice.dtype, " on the device '", device, "'"));
}

}  // namespace nanovllm::c_api
