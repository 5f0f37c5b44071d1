// The op suite on the CUDA backend.

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/with/gpt2/cuda/ops.cuh"
#include "nanovllm/with/tiers/cuda/swap_blocks.cuh"
#include "ops/attention_cases.hpp"
#include "ops/bias_cases.hpp"
#include "ops/embedding_cases.hpp"
#include "ops/fused_cases.hpp"
#include "ops/layer_norm_cases.hpp"
#include "ops/linear_cases.hpp"
#include "ops/logit_edits_cases.hpp"
#include "ops/qkv_cases.hpp"
#include "ops/rms_norm_cases.hpp"
#include "ops/sample_cases.hpp"
#include "ops/silu_mul_cases.hpp"
#include "ops/step_cases.hpp"

static bool can_test() { return nanovllm::test::has_gpu(); }

#define TESTED_BACKEND nanovllm::CudaBackend
#define TESTED_TYPES float, nanovllm::bf16
#include "ops/op_suite.inc"
