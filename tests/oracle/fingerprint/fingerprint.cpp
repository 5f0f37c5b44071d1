// What the CPU backend computes; fingerprint.hpp says how it is told.
#include "fingerprint.hpp"

#if __has_include(<nanovllm/full_policy.hpp>)
#include <nanovllm/full_policy.hpp>
using Float32 = nanovllm::FullFloat32Policy;
using Bfloat16 = nanovllm::FullPolicy;
#else  // older headers
using Float32 = nanovllm::Float32Policy;
using Bfloat16 = nanovllm::DefaultPolicy;
#endif

struct Small : Bfloat16 {
  using Scheduling = nanovllm::PrefillFirst;
  static constexpr nanovllm::KvConfig kv{.block_size = 8};
};

int main(int argc, char** argv) {
  return fingerprint::main_of<Float32, Bfloat16, Small>(argc, argv, 2);
}
