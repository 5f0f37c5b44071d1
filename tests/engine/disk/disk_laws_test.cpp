// The law of the disk tier on the CPU backend.

#include "nanovllm/policy.hpp"

using BackendFloat32 = nanovllm::Float32Policy;
static constexpr bool kBitEqual = true;
static int num_devices() { return 2; }

#include "engine/disk/disk_laws_cases.hpp"
