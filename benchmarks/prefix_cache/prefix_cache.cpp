// What prefix caches save on the CPU. `prefix_cache --help` says how to use it.
#include "nanovllm/full_policy.hpp"
#include "program.hpp"

int main(int argc, char** argv) {
  return prefix_bench::run_main<nanovllm::FullPolicy, 64>(argc, argv);
}
