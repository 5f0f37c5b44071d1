// From where a prefix is back soonest, on the CPU. `prefix_cache_ladder --help` says how to use it.
#include "ladder.hpp"
#include "nanovllm/full_policy.hpp"

int main(int argc, char** argv) {
  return prefix_bench::run_ladder<nanovllm::FullPolicy>(argc, argv);
}
