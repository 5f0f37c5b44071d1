// The shared library of nanovllm/c/nanovllm.h. c_library.cmake says by definitions which engines of
// nanovllm::prebuilt it has: NANOVLLM_C_SHAPES, and NANOVLLM_C_BFLOAT16, _FLOAT32 and _CUDA.
#include "nanovllm/full_policy.hpp"

#include "nanovllm/c/library.inc"

#if defined(NANOVLLM_C_CUDA)
#include <cuda_runtime_api.h>
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

}  // namespace

std::unique_ptr<AnyEngine> make_engine(EngineChoice choice) {
  using namespace shapes;
  using All [[maybe_unused]] = ModelsOf<NANOVLLM_C_SHAPES>;
  const std::string device = choice.device.value_or(has_gpu() ? "cuda" : "cpu");
  [[maybe_unused]] const auto is = [&](const char* on, const char* dtype) {
    return device == on && choice.dtype == dtype;
  };
#if defined(NANOVLLM_C_CUDA)
  if (is("cuda", "bfloat16")) return nanovllm::make_engine<All, CudaFullPolicy>(choice.config);
#endif
#if defined(NANOVLLM_C_BFLOAT16)
  if (is("cpu", "bfloat16")) return nanovllm::make_engine<All, FullPolicy>(choice.config);
#endif
#if defined(NANOVLLM_C_FLOAT32)
  if (is("cpu", "float32")) return nanovllm::make_engine<All, FullFloat32Policy>(choice.config);
#endif
  throw UnsupportedError(
      concat("this library was not compiled for ", choice.dtype, " on the device '", device, "'"));
}

}  // namespace nanovllm::c_api
