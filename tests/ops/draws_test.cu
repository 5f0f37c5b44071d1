// Draws against formulas on the CUDA backend.

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/backend.cuh"
#include "ops/draw_cases.hpp"

static bool can_test() { return nanovllm::test::has_gpu(); }

#define TESTED_BACKEND nanovllm::CudaBackend
#include "ops/draws_suite.inc"
