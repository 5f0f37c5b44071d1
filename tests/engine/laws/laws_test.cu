// The engine's laws on the CUDA backend.

#include "cuda/gpu_test.cuh"
#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::CudaFullFloat32Policy;
using BackendBfloat16 = nanovllm::CudaFullPolicy;
static constexpr float kShardedBound = 2e-5f;  // each engine chooses its products by their speed
static constexpr bool kBitEqual = false;
static int num_devices() { return nanovllm::test::has_gpu() ? nanovllm::test::num_gpus() : 0; }

#include "engine/laws/laws_cases.hpp"
