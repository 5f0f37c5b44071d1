/* What the samples in the comments of headers for C take as given; see check_samples.sh. */
#include <nanovllm/c/nanovllm.h>

extern const nvllm_event* event;
extern size_t num_top;
