// The bodies of what core/prebuilt.hpp tells of, as ordinary functions, and the cores of the engines.
#define NANOVLLM_PREBUILT_SOURCE
#include "nanovllm/nanovllm.hpp"

namespace nanovllm {

NANOVLLM_PREBUILT_CORE(, DefaultPolicy);
NANOVLLM_PREBUILT_CORE(, FullPolicy);

}  // namespace nanovllm
