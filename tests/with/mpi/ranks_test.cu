// Tensor-parallel ranks on GPUs, in processes; mpi_tests.cmake starts the program with mpirun.
// Without NANOVLLM_MPI, as in what pack_gpu.sh packs, nothing is left of it.

#if defined(NANOVLLM_MPI) && __has_include(<nccl.h>)

#include "cuda/gpu_test.cuh"
#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::CudaFullFloat32Policy;
using BackendBfloat16 = nanovllm::CudaFullPolicy;
static constexpr double kFloat32Bound = 1e-4;
static constexpr bool kReproducible = false;  // each engine chooses its products by their speed

static bool ranks_present(int num_ranks) { return nanovllm::test::has_gpus(num_ranks); }

#include "with/mpi/ranks_cases.hpp"

#else

#include <iostream>

#include "catch.hpp"

TEST_CASE("ranks in processes on GPUs", "[ranks]") {
  std::cout << "skipped: compiled without MPI or NCCL\n";
}

#endif
