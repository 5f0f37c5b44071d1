#pragma once
/// How long the sequences of a measurement get, and what the KV pool must hold for it. The engine
/// is made for the longest of them; `decode_blocks` says whether its pool is enough for one row.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "nanovllm/core/math.hpp"

namespace engine_bench {

/// Steps that bring all sequences of a decode measurement to their first decode, at the most.
inline constexpr std::int64_t kSettleSteps = 64;

/// How often things are repeated.
struct Repeats {
  std::int64_t warm_up_steps = 4;
  std::int64_t steps = 32;
  std::int64_t prompts = 5;
};

/// What is to be measured.
struct Measurements {
  std::vector<std::int64_t> batch_sizes, contexts{1024}, prefill, embed, first_token;
  std::int64_t num_texts = 1000;  // of `embed`
  bool workload = false;
  std::int64_t max_input = 1024, max_output = 1024;
  Repeats repeats;
};

/// Tokens that a sequence of a decode measurement may grow to.
[[nodiscard]] inline std::int64_t decode_length(std::int64_t context, const Repeats& repeats) {
  return context + kSettleSteps + repeats.warm_up_steps + repeats.steps;
}

/// KV blocks that `batch` such sequences hold at the most. What else the prefix cache keeps is
/// given up for them.
[[nodiscard]] inline std::int64_t decode_blocks(std::int64_t batch, std::int64_t context,
                                                const Repeats& repeats, std::int64_t block_size) {
  return batch * nanovllm::ceil_div(decode_length(context, repeats), block_size);
}

/// Tokens of the longest sequence that the measurements need; a prompt needs room for a token more.
[[nodiscard]] inline std::int64_t longest_sequence(const Measurements& m) {
  std::int64_t out = m.workload ? m.max_input + m.max_output : 64;
  for (const std::int64_t context : m.contexts) {
    if (!m.batch_sizes.empty()) out = std::max(out, decode_length(context, m.repeats));
  }
  for (const std::int64_t length : m.prefill) out = std::max(out, length + 1);
  for (const std::int64_t length : m.embed) out = std::max(out, length + 1);
  for (const std::int64_t length : m.first_token) out = std::max(out, length + 1);
  return out;
}

}  // namespace engine_bench
