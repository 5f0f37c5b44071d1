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

}  // namespace nanovllm::cpu
