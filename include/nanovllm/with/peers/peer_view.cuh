#pragma once
/// What a kernel needs to reach the memory of other ranks, and how it waits for what they send.
///
/// Every rank has a buffer with two slots, one for even and one for odd calls, and in each slot a
/// place for every other rank. Ranks write ("push") into the buffers of others and read only their
/// own. There are no flags: a word that has not arrived is `kNotHere`, and a reader asks again
/// until it is something else. The reader then sets the word back to `kNotHere`.
///
/// Why each step is safe:
///
/// - A word. Pushes and polls are relaxed accesses of system scope. Those of 16 bytes count as four
///   accesses of four bytes in no order, so every word is asked for by itself, and what a word
///   brings is nothing but its own value. That needs neither fences nor order between words.
/// - A value that looks like `kNotHere`. It is a NaN of float32, or two NaNs of a 16-bit type, and
///   it is sent as other NaNs (`sendable`): the sum is a NaN either way. A sum itself is never that
///   word, because additions and conversions give the NaN whose sign is 0.
/// - A slot that is used again. Call n pushes into slot n % 2. It begins when this rank's call n -
///   1 is done, since `grid_dependency_wait` comes first. That one had words of call n - 1 from, or
///   sums of them with, all other ranks; so they had begun call n - 1, and were done with their
///   call n - 2: they had read the slot and set it back, and their kernel had ended, with these
///   stores in the memory that the pushes of call n go to. A rank is at most one call ahead of
///   another.
/// - A replay of a graph. The number of the call is in device memory. All threads read it, then one
///   of the last block to have done so counts on; the next kernel reads it after its own wait.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace nanovllm::peer {

/// Ranks that one group may have.
inline constexpr int kMaxRanks = 8;
/// Calls whose words a buffer can hold.
inline constexpr int kNumSlots = 2;
/// A word that has not arrived. `cudaMemset(…, 0xff, …)` makes a buffer ready.
inline constexpr std::uint32_t kNotHere = 0xffffffffu;
/// What is sent in its place.
inline constexpr std::uint32_t kOtherNan = 0x7fffffffu;

/// Values of the word, in memory of the host, by which a group ends.
enum Ending : std::uint32_t {
  kGoesOn = 0,
  kAborted = 1,  ///< by the host
  kLate = 2,     ///< by a kernel that has waited longer than the limit
};

inline constexpr std::uint32_t kHasEnded = 1u << 31;

/// What kernels of one rank leave for the next ones; in the rank's device memory, first all 0.
struct alignas(16) State {
  std::uint32_t num_calls;   ///< that were begun before, below kHasEnded
  std::uint32_t num_blocks;  ///< of the present call that have read num_calls
  std::uint32_t has_ended;   ///< kHasEnded once the group has ended: kernels wait no more
  std::uint32_t last_look;   ///< when a thread has read the host's word
};

/// One rank's way to all buffers.
struct View {
  std::byte* buffers[kMaxRanks];  ///< of each rank, as this rank's device reaches them
  State* state;
  volatile std::uint32_t* ending;   ///< an `Ending`, in mapped memory of the host
  unsigned long long limit;         ///< nanoseconds that a kernel waits for others
  std::uint32_t vectors_of_a_rank;  ///< 16-byte vectors that a slot holds for each rank
  int rank;
  int size;

  /// Bytes from one rank's place in a slot to the next one's.
  [[nodiscard]] __device__ __forceinline__ std::size_t bytes_of_a_rank() const {
    return std::size_t{16} * vectors_of_a_rank;
  }
  /// Where in a buffer vector `index` of what rank `from` sends in call `call` is.
  [[nodiscard]] __device__ __forceinline__ std::size_t offset(std::uint32_t call, int from,
                                                              std::uint32_t index) const {
    const std::size_t part = static_cast<std::size_t>(call % kNumSlots) * size + from;
    return part * bytes_of_a_rank() + std::size_t{16} * index;
  }
  /// Bytes of a buffer.
  [[nodiscard]] std::size_t buffer_bytes() const {
    return std::size_t{16} * kNumSlots * static_cast<std::size_t>(size) * vectors_of_a_rank;
  }
};

// ---- Memory that several devices access ----

__device__ __forceinline__ uint4 load_relaxed(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(__cvta_generic_to_global(p))
               : "memory");
  return v;
}

/// What this thread reads after it is as new as the word.
[[nodiscard]] __device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
               : "=r"(v)
               : "l"(__cvta_generic_to_global(p))
               : "memory");
  return v;
}

__device__ __forceinline__ void store_relaxed(void* p, uint4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(p)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

[[nodiscard]] __device__ __forceinline__ bool is_here(uint4 v) {
  return v.x != kNotHere && v.y != kNotHere && v.z != kNotHere && v.w != kNotHere;
}

/// `v` without words that mean "not here".
[[nodiscard]] __device__ __forceinline__ uint4 sendable(uint4 v) {
  const auto other = [](std::uint32_t word) { return word == kNotHere ? kOtherNan : word; };
  return {other(v.x), other(v.y), other(v.z), other(v.w)};
}

/// A call, as a thread sees it.
struct Call {
  std::uint32_t number;
  std::uint32_t has_ended;  ///< kHasEnded: the kernel waits for no rank; its result is garbage
};

/// Reads the number of this call. After `grid_dependency_wait`, by every thread.
[[nodiscard]] __device__ __forceinline__ Call begin_call(const View& view) {
  const uint4 state = load_relaxed(view.state);
  return {state.x, state.z};
}

/// Counts this block as one that has read the number, and the call when all have. Once, by all
/// threads of the block; there is a barrier. Returns whether a thread has seen that the group has
/// ended.
///
/// No thread of this kernel reads the number after it has changed. Each thread's argument of the
/// barrier depends on what it has read, and the last block changes the number after its barrier.
[[nodiscard]] __device__ __forceinline__ bool count_call(const View& view, const Call& call) {
  const auto bit = static_cast<int>((call.number | call.has_ended) / kHasEnded);
  const bool has_ended = __syncthreads_or(bit) != 0;
  if (threadIdx.x == 0 && atomicAdd(&view.state->num_blocks, 1u) + 1 == gridDim.x) {
    auto* const state = const_cast<volatile State*>(view.state);
    state->num_blocks = 0;
    state->num_calls = (call.number + 1) % kHasEnded;
  }
  return has_ended;
}

/// A thread's waiting: it ends when the host says so, or after the limit.
class Patience {
 public:
  __device__ __forceinline__ explicit Patience(const View& view) : view_(view) {}

  /// This thread waits for no other rank from now on.
  __device__ __forceinline__ void end() { has_ended_ = true; }
  [[nodiscard]] __device__ __forceinline__ bool has_ended() const { return has_ended_; }

  /// Whether to ask again. Whether the group has ended is looked up once in 1024 times.
  [[nodiscard]] __device__ __forceinline__ bool goes_on() {
    if (has_ended_) return false;
    if (++num_polls_ % 1024 == 0) {
      begin_ = look_up(view_.state, view_.ending, view_.limit, begin_);
      has_ended_ = begin_ == kEnded;
    }
    return !has_ended_;
  }

 private:
  static constexpr unsigned long long kEnded = ~0ull;

  /// Returns when the waiting began, or kEnded; `begin` is 0 in the first call.
  __device__ __noinline__ static unsigned long long look_up(State* state_in,
                                                            volatile std::uint32_t* ending,
                                                            unsigned long long limit,
                                                            unsigned long long begin) {
    auto* const state = const_cast<volatile State*>(state_in);
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (begin == 0) begin = now;
    if (state->has_ended == 0 && !host_has_ended(state_in, ending, now)) {
      if (now - begin < limit) return begin;
      if (*ending == kGoesOn) *ending = kLate;
    }
    state->has_ended = kHasEnded;
    return kEnded;
  }

  /// What the host's word says. One thread of all that wait reads it every 66 microseconds, and the
  /// others go by `State::has_ended`: the word is behind PCIe.
  [[nodiscard]] __device__ __forceinline__ static bool host_has_ended(
      State* state, volatile std::uint32_t* ending, unsigned long long now) {
    constexpr int kTick = 16;  // 2^16 ns
    const auto tick = static_cast<std::uint32_t>(now >> kTick);
    const std::uint32_t last = const_cast<volatile State*>(state)->last_look;
    if (tick == last || atomicCAS(&state->last_look, last, tick) != last) return false;
    return *ending != kGoesOn;
  }

  const View& view_;
  bool has_ended_ = false;
  std::uint32_t num_polls_ = 0;
  unsigned long long begin_ = 0;
};

}  // namespace nanovllm::peer
