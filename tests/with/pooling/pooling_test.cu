// Requests whose outcome is a vector, on the CUDA backend.

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"

using BackendFloat32 = nanovllm::CudaFloat32Policy;
static bool backend_present() { return nanovllm::test::has_gpu(); }

#include "with/pooling/pooling_cases.hpp"
