// The engine on the CPU backend against Hugging Face transformers.

#include "nanovllm/cpu.hpp"
#include "nanovllm/policy.hpp"

using BackendFloat32 = nanovllm::Float32Policy;
using BackendBfloat16 = nanovllm::DefaultPolicy;
static bool backend_present() { return true; }

#include "engine/parity/parity_cases.hpp"
