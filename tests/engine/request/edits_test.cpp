// Edited logits on the CPU backend.

#include "nanovllm/cpu.hpp"
#include "nanovllm/policy.hpp"

using BackendFloat32 = nanovllm::Float32Policy;
static bool backend_present() { return true; }

#include "engine/request/edits_cases.hpp"
