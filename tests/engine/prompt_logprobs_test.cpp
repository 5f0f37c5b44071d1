// Log-probabilities of prompts on the CPU backend.

#include "nanovllm/policy.hpp"

using BackendFloat32 = nanovllm::Float32Policy;
static bool backend_present() { return true; }

#include "engine/prompt_logprobs_cases.hpp"
