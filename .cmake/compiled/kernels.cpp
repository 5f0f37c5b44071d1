// The instances of NANOVLLM_COMPILED_TEMPLATE: the CPU's kernels.
#define NANOVLLM_COMPILE_TEMPLATES
#include "nanovllm/cpu/backend.hpp"
