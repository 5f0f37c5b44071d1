#pragma once
/// Time that a kernel of a test takes, so that what does not wait for it is seen not to.

namespace nanovllm::test {

/// Returns `nanoseconds` later, by the clock that all multiprocessors share.
__device__ inline void spend_time(unsigned long long nanoseconds) {
  const auto now = [] {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  };
  const unsigned long long begin = now();
  while (now() - begin < nanoseconds) __nanosleep(1000);
}

}  // namespace nanovllm::test
