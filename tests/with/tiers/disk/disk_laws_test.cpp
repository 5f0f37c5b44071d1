// The law of the disk tier on the CPU backend.

#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::FullFloat32Policy;
static constexpr bool kBitEqual = true;
static int num_devices() { return 2; }

#include "with/tiers/disk/disk_laws_cases.hpp"
