// Tensor-parallel ranks on CPUs.

#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::FullFloat32Policy;
using BackendBfloat16 = nanovllm::FullPolicy;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static constexpr int kFailures = 18;  // slower by as much
#else
static constexpr int kFailures = 100;
#endif
static constexpr double kFloat32Bound = 1e-5;
static bool ranks_present(int) { return true; }

#include "parallel/ranks_cases.hpp"
