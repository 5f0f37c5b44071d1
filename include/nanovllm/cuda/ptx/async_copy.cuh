#pragma once
/// Asynchronous copies from global to shared memory: cp.async of 16 bytes, past L1.
///
/// The copies a thread has issued since its last commit form a group; groups complete in order.
/// Each thread waits for its own groups; what other threads copied needs a barrier (`__syncwarp`,
/// `__syncthreads`) after their wait. Both addresses must be 16-byte aligned.
/// Source: PTX ISA 9.0, "cp.async".

#include <cstdint>

namespace nanovllm::cuda {

/// How much L2 fetches from memory around the 16 bytes, when they are not there.
enum class L2Fetch { sector, bytes_128, bytes_256 };

/// How long L2 should keep a line, made once a thread and given to copies.
struct L2Policy {
  std::uint64_t bits;
};

/// For data that is read once.
__device__ __forceinline__ L2Policy l2_evict_first() {
  L2Policy out;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(out.bits));
  return out;
}

/// For data that will be read again.
__device__ __forceinline__ L2Policy l2_evict_last() {
  L2Policy out;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(out.bits));
  return out;
}

/// Starts copying 16 bytes to the shared address `to`.
template <L2Fetch kFetch = L2Fetch::sector>
__device__ __forceinline__ void copy_async_16(std::uint32_t to, const void* from) {
  if constexpr (kFetch == L2Fetch::sector) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else if constexpr (kFetch == L2Fetch::bytes_128) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
  }
}

/// The same, keeping the line in L2 by `policy`.
template <L2Fetch kFetch = L2Fetch::sector>
__device__ __forceinline__ void copy_async_16(std::uint32_t to, const void* from, L2Policy policy) {
  if constexpr (kFetch == L2Fetch::sector) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(policy.bits)
                 : "memory");
  } else if constexpr (kFetch == L2Fetch::bytes_128) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(policy.bits)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(policy.bits)
                 : "memory");
  }
}

/// Starts copying 4 bytes, through L1.
__device__ __forceinline__ void copy_async_4(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/// Starts copying 16 bytes, or writing 16 zero bytes when not `valid`; then `from` is not read, but
/// must still be an aligned global address.
template <L2Fetch kFetch = L2Fetch::sector>
__device__ __forceinline__ void copy_async_16_or_zero(std::uint32_t to, const void* from,
                                                      bool valid) {
  const int bytes = valid ? 16 : 0;
  if constexpr (kFetch == L2Fetch::sector) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  } else if constexpr (kFetch == L2Fetch::bytes_128) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
  }
}

/// The same through L1: for what several warps and blocks of a multiprocessor read.
__device__ __forceinline__ void copy_async_16_or_zero_by_l1(std::uint32_t to, const void* from,
                                                            bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

/// The same, keeping the line in L2 by `policy`.
template <L2Fetch kFetch = L2Fetch::sector>
__device__ __forceinline__ void copy_async_16_or_zero(std::uint32_t to, const void* from,
                                                      bool valid, L2Policy policy) {
  const int bytes = valid ? 16 : 0;
  if constexpr (kFetch == L2Fetch::sector) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(from), "r"(bytes), "l"(policy.bits)
                 : "memory");
  } else if constexpr (kFetch == L2Fetch::bytes_128) {
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
        "l"(from), "r"(bytes), "l"(policy.bits)
        : "memory");
  } else {
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2, %3;" ::"r"(to),
        "l"(from), "r"(bytes), "l"(policy.bits)
        : "memory");
  }
}

/// Closes the group of copies issued since the last commit. An empty group is complete at once.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most the `kPending` newest groups of this thread are unfinished.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace nanovllm::cuda
