// The instances of NANOVLLM_PREBUILT_TEMPLATE: the CPU's kernels.
#define NANOVLLM_PREBUILT_TEMPLATES
#include "nanovllm/cpu/backend.hpp"
