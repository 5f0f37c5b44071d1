// What prefix caches save on the CPU. `prefix_cache --help` says how to use it.
#include "program.hpp"

int main(int argc, char** argv) {
  return prefix_bench::run_main<nanovllm::DefaultPolicy, 64>(argc, argv);
}
