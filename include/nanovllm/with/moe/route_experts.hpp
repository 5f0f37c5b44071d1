#pragma once
/// Contract of `route_experts`: which experts a token goes to, and with what weights.
/// Source: transformers, models/qwen3_moe/modeling_qwen3_moe.py (Qwen3MoeTopKRouter);
/// docs/numerics.md lists the departures.

#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// Of each row the k largest logits, in descending order; of equal logits the lower id comes first.
/// Their weights are p = softmax(logits) over all experts, all in float32; with `normalise` divided
/// by their sum, so that the weights of a row add up to 1. (p needs no sum over all experts then.)
///
/// Where a row has a NaN, all its weights are NaN; its ids are still k different ones.
///
/// With `counts`, counts[e] grows by the number of rows that go to expert e. Padded rows, whose
/// slot is `kNoSlot`, do not count. The backend's `download_early` may read counts at any time.
struct RouteExpertsArgs {
  MatrixView<const float> logits;  ///< [n, experts]
  MatrixView<std::int32_t> ids;    ///< [n, k], 1 ≤ k ≤ experts
  MatrixView<float> weights;       ///< [n, k]
  bool normalise = false;
  VectorView<const Slot> slots{};     ///< [n]: where K and V of the rows go; or none: no padding
  VectorView<std::int64_t> counts{};  ///< [experts], or none
};

/// Throws ShapeError when the operands do not fit together.
inline void validate(const RouteExpertsArgs& args) {
  constexpr auto kOp = "route_experts";
  const std::int64_t n = args.logits.extent(0), experts = args.logits.extent(1);
  const std::int64_t k = args.ids.extent(1);
  check_shape(kOp, "ids", args.ids, {n, -1});
  check_shape(kOp, "weights", args.weights, {n, k});
  check<ShapeError>(k >= 1 && k <= experts, kOp, ": a row must have between 1 and ", experts,
                    " experts, which is all, got ", k);
  if (!args.slots.empty()) check_shape(kOp, "slots", args.slots, {n});
  if (!args.counts.empty()) check_shape(kOp, "counts", args.counts, {experts});
}

}  // namespace nanovllm
