// The instances of NANOVLLM_COMPILED_TEMPLATE: the CPU's kernels.
#define NANOVLLM_COMPILE_TEMPLATES
#include "nanovllm/cpu/backend.hpp"
// Of the wings, a line each.
#include "nanovllm/with/gpt2/cpu/ops.hpp"
#include "nanovllm/with/moe/cpu/ops.hpp"
