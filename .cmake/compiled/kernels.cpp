// The instances of NANOVLLM_COMPILED_TEMPLATE: the CPU's kernels, and some of what engines of all
// policies have.
#define NANOVLLM_COMPILE_TEMPLATES
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/sampling/standard_processors.hpp"
// Of the wings, a line each.
#include "nanovllm/with/gpt2/cpu/ops.hpp"
#include "nanovllm/with/moe/cpu/ops.hpp"
