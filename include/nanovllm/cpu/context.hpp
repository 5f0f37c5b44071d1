#pragma once
/// What every CPU op needs in addition to its operands.

#include <cstdint>

#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/thread_pool.hpp"

namespace nanovllm::cpu {

/// The threads to use and the instruction set to use them with. Does not own the pool.
struct Context {
  ThreadPool* pool = nullptr;
  Isa isa = best_isa();
};

/// Rows that a thread takes at a time in ops that treat each row on its own.
inline constexpr std::int64_t kRowGrain = 4;

/// rows(args, begin, end) for all of `n` rows, on threads.
template <class Args>
void for_rows(std::int64_t n, const Args& args,
              void (*rows)(const Args&, std::int64_t, std::int64_t), const Context& context) {
  context.pool->parallel_for(
      n, kRowGrain, [&](std::int64_t begin, std::int64_t end, int) { rows(args, begin, end); });
}

}  // namespace nanovllm::cpu
