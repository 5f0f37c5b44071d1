// Beam search on the CUDA backend against Hugging Face transformers.

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"

using BackendFloat32 = nanovllm::CudaFloat32Policy;
static bool backend_present() { return nanovllm::test::has_gpu(); }

#include "with/beams/beam_cases.hpp"
