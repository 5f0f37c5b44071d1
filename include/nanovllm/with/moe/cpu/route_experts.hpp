#pragma once
/// `route_experts` on the CPU. Contract: with/moe/route_experts.hpp.

#include <atomic>
#include <cmath>
#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/with/moe/route_experts.hpp"

namespace nanovllm::cpu {
namespace detail {

/// The ids of the k largest logits, descending; of equal ones the lower id first.
inline void choose_experts(const float* logits, std::int64_t experts, std::int64_t k,
                           std::int32_t* ids) {
  for (std::int64_t e = 0; e < experts; ++e) {
    if (e >= k && !(logits[e] > logits[ids[k - 1]])) continue;
    std::int64_t slot = e < k ? e : k - 1;  // the last of a full list makes room
    for (; slot > 0 && logits[e] > logits[ids[slot - 1]]; --slot) ids[slot] = ids[slot - 1];
    ids[slot] = static_cast<std::int32_t>(e);
  }
}

/// Sums of exponentials are taken in the order of slots, or of all ids.
inline void route_row(const RouteExpertsArgs& args, std::int64_t row) {
  const std::int64_t experts = args.logits.extent(1), k = args.ids.extent(1);
  const float* const logits = args.logits.at(row);
  const std::int32_t* const ids = args.ids.at(row);
  float* const weights = args.weights.at(row);
  choose_experts(logits, experts, k, args.ids.at(row));
  const float largest = logits[ids[0]];
  float sum = 0.f;
  for (std::int64_t s = 0; s < k; ++s) {
    weights[s] = std::exp(logits[ids[s]] - largest);
    sum += weights[s];
  }
  float all = 0.f;
  for (std::int64_t e = 0; e < experts; ++e) all += std::exp(logits[e] - largest);
  if (!args.normalise || std::isnan(all)) sum = all;
  for (std::int64_t s = 0; s < k; ++s) weights[s] /= sum;
}

/// Others may read counts meanwhile (`CpuBackend::download_early`).
inline void count_routes(const RouteExpertsArgs& args) {
  for (std::int64_t row = 0; row < args.ids.extent(0); ++row) {
    if (!args.slots.empty() && *args.slots.at(row) == kNoSlot) continue;
    for (std::int64_t s = 0; s < args.ids.extent(1); ++s) {
      std::atomic_ref(*args.counts.at(*args.ids.at(row, s)))
          .fetch_add(1, std::memory_order_relaxed);
    }
  }
}

}  // namespace detail

void route_experts(const RouteExpertsArgs& args, const Context& context);

inline void run_op(const RouteExpertsArgs& args, Context& context) { route_experts(args, context); }

}  // namespace nanovllm::cpu

#if NANOVLLM_BODIES

namespace nanovllm::cpu {

/// A row's result depends on that row alone, bit for bit.
NANOVLLM_INLINE void route_experts(const RouteExpertsArgs& args, const Context& context) {
  validate(args);
  detail::share(context, args.logits.extent(0), kRowGrain,
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t row = begin; row < end; ++row) detail::route_row(args, row);
                });
  if (!args.counts.empty()) detail::count_routes(args);
}

}  // namespace nanovllm::cpu

#endif  // NANOVLLM_BODIES
