// The law of the disk tier on the CUDA backend.

#include "cuda/gpu_test.cuh"
#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::CudaFullFloat32Policy;
static constexpr bool kBitEqual = false;
static int num_devices() { return nanovllm::test::has_gpu() ? nanovllm::test::num_gpus() : 0; }

#include "with/tiers/disk/disk_laws_cases.hpp"
