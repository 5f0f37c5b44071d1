// What the CPU backend computes; fingerprint.hpp says how it is told.
#include "fingerprint.hpp"

struct Small : nanovllm::DefaultPolicy {
  using Scheduling = nanovllm::PrefillFirst;
  static constexpr nanovllm::KvConfig kv{.block_size = 8};
};

int main(int argc, char** argv) {
  return fingerprint::main_of<nanovllm::Float32Policy, nanovllm::DefaultPolicy, Small>(argc, argv,
                                                                                       2);
}
