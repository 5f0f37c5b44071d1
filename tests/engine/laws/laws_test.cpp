// The engine's laws on the CPU backend, where the order of summation is always kept but across
// tensor-parallel ranks.

#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::FullFloat32Policy;
using BackendBfloat16 = nanovllm::FullPolicy;
static constexpr float kShardedBound = 1e-5f;
static constexpr bool kBitEqual = true;
static int num_devices() { return 2; }

#include "engine/laws/laws_cases.hpp"
