#pragma once
/// Turns the status codes of the CUDA runtime into exceptions.

#include <cuda_runtime.h>

#include <source_location>

#include "nanovllm/core/error.hpp"

namespace nanovllm::cuda {

/// Throws CudaError, naming `call`, the error and the place, unless `status` is cudaSuccess. The
/// sticky last error is cleared, so that a failure is reported once.
inline void check_cuda(cudaError_t status, const char* call,
                       const std::source_location& where = std::source_location::current()) {
  if (status == cudaSuccess) [[likely]]
    return;
  static_cast<void>(cudaGetLastError());
  throw CudaError(concat(call, ": ", cudaGetErrorName(status), ", ", cudaGetErrorString(status),
                         " (", where.file_name(), ":", where.line(), ")"));
}

}  // namespace nanovllm::cuda
