// The bodies of what core/prebuilt.hpp tells of, as ordinary functions.
#define NANOVLLM_PREBUILT_SOURCE
#include "nanovllm/nanovllm.hpp"
