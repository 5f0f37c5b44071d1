// What prefix caches save on a GPU. `prefix_cache_cuda --help` says how to use it.
#include "nanovllm/full_policy.hpp"
#include "program.hpp"

int main(int argc, char** argv) {
  return prefix_bench::run_main<nanovllm::CudaFullPolicy, 16>(argc, argv);
}
