// The law for combinations of policies on the CPU.

#include "with/speculation/law_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

TEST_CASE("drafted = undrafted: hashes, recomputed", "[speculation][laws]") {
  check_drafted<Float32Policy, HashPrefixCache, RecomputePreemption, ContinuousBatching>();
}
TEST_CASE("drafted = undrafted: radix tree, swapped, by priority", "[speculation][laws]") {
  check_drafted<Float32Policy, RadixPrefixCache, SwapPreemption, Priority>();
}
TEST_CASE("drafted = undrafted: no cache, recomputed, prompts first", "[speculation][laws]") {
  check_drafted<Float32Policy, NoPrefixCache, RecomputePreemption, PrefillFirst>();
}
