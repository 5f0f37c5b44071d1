// GPT-2 on the CUDA backend: against Hugging Face transformers, and the laws.

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"

using BackendFloat32 = nanovllm::CudaFloat32Policy;
using BackendBfloat16 = nanovllm::CudaPolicy;
static bool backend_present() { return nanovllm::test::has_gpu(); }

#include "with/gpt2/parity/gpt2_cases.hpp"
