// The op suite on the CPU backend.

#include "nanovllm/with/gpt2/cpu/ops.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/with/tiers/cpu/swap_blocks.hpp"
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

static bool can_test() { return true; }

#define TESTED_BACKEND nanovllm::CpuBackend
#define TESTED_TYPES float, nanovllm::bf16, nanovllm::half
#include "ops/op_suite.inc"
