// What prefix caches save on a GPU. `prefix_cache_cuda --help` says how to use it.
#include "program.hpp"

int main(int argc, char** argv) {
  return prefix_bench::run_main<nanovllm::CudaPolicy, 16>(argc, argv);
}
