#pragma once
/// Failures on demand: the n-th allocation or marked point from now on throws. Replaces the global
/// operator new, so one source file of a program may include this.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <stdexcept>

#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"
#include "nanovllm/sched/policy/scheduling_policy.hpp"

namespace faults {

struct Injected : std::runtime_error {
  Injected() : std::runtime_error("injected") {}
};

inline int num_left = 0;  // 0: none will fail

inline bool is_due() noexcept { return num_left > 0 && --num_left == 0; }

/// A place that may fail.
inline void point() {
  if (is_due()) throw Injected();
}

/// While it lives, point or allocation number `n` fails, and no other.
class Armed {
 public:
  explicit Armed(int n) { num_left = n; }
  ~Armed() { num_left = 0; }
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;
};

/// A prefix cache that may fail where it is allowed to.
template <int kBlockSize>
class Cache : public nanovllm::HashPrefixCache<kBlockSize> {
 public:
  using Base = nanovllm::HashPrefixCache<kBlockSize>;
  using Base::Base;

  [[nodiscard]] nanovllm::PrefixMatch match(std::span<const nanovllm::TokenId> tokens,
                                            const nanovllm::CacheSalt& salt) const {
    point();
    return Base::match(tokens, salt);
  }
  void insert(std::span<const nanovllm::BlockId> block_table,
              std::span<const nanovllm::TokenId> tokens, std::int32_t begin, std::int32_t end,
              const nanovllm::CacheSalt& salt) {
    point();
    Base::insert(block_table, tokens, begin, end, salt);
  }
};

/// A scheduling policy that may fail before and after it has planned.
template <class Policy>
struct Scheduling {
  template <class Blocks>
  static nanovllm::StepPlan plan(const nanovllm::SchedulerView& queues, const Blocks& blocks,
                                 const nanovllm::BatchConfig& config) {
    point();
    nanovllm::StepPlan plan = Policy::plan(queues, blocks, config);
    point();
    return plan;
  }
  static std::int64_t order(
      const nanovllm::Sequence& s) noexcept requires nanovllm::OrdersSequences<Policy> {
    return Policy::order(s);
  }
};

}  // namespace faults

// Not inline: the compiler must not see which function the memory comes from.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (faults::is_due()) throw std::bad_alloc();
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
