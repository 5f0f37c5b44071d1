// The package's flags and libraries reach a translation unit of nvcc. Needs no GPU.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <nanovllm/core/error.hpp>

#include <cstdio>

static_assert(__cplusplus >= 202002L, "nanovllm::cuda asks for C++20");

int main() {
  int version = 0;
  nanovllm::check(cudaRuntimeGetVersion(&version) == cudaSuccess, "cudaRuntimeGetVersion");
  std::printf("CUDA %d, cuBLASLt %zu\n", version, cublasLtGetVersion());
  return 0;
}
