#pragma once
/// Contracts of `route_experts`, which experts a token goes to, and with what weights; and of
/// `expert_mlp`, the gated MLPs of these experts.
/// Source: transformers, models/qwen3_moe/modeling_qwen3_moe.py (Qwen3MoeTopKRouter,
/// Qwen3MoeExperts); docs/numerics.md lists the departures.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

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

/// The weights of one expert.
template <class Matrix>
struct Expert {
  Matrix gate_up;  ///< [2 · width, in]: gates, then ups
  Matrix down;     ///< [in, width]
};

/// `count` experts [in → width], without values, as a backend wants to have them: all matrices of a
/// kind in one piece of memory where it has `Matrix::stacked(count, rows, cols)`.
template <class Matrix>
[[nodiscard]] std::vector<Expert<Matrix>> make_experts(std::int64_t count, std::int64_t in,
                                                       std::int64_t width) {
  std::vector<Expert<Matrix>> out;
  out.reserve(static_cast<std::size_t>(count));
  if constexpr (requires { Matrix::stacked(count, width, in); }) {
    auto gate_up = Matrix::stacked(count, 2 * width, in);
    auto down = Matrix::stacked(count, in, width);
    for (std::size_t e = 0; e < gate_up.size(); ++e)
      out.push_back({std::move(gate_up[e]), std::move(down[e])});
  } else {
    for (std::int64_t e = 0; e < count; ++e)
      out.push_back({Matrix(2 * width, in), Matrix(in, width)});
  }
  return out;
}

/// What a backend may allocate the scratch memory of `expert_mlp` by.
struct ExpertMlpSizes {
  std::int64_t max_rows = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t in = 0;
  std::int64_t width = 0;  ///< of an expert
};

/// The same, as arguments of a backend's `reserve`, for activations `T`.
template <class T>
struct ReserveExpertMlpArgs {
  ExpertMlpSizes sizes;
};

/// out[i] = Σ over slots s, ascending, of weights[i, s] · y(ids[i, s]), where
/// y(e) = down(e) · h and h = silu(gate) · up, gate and up being the halves of gate_up(e) · x[i].
///
/// h is rounded to T. The backend decides whether gate, up and silu(gate) are, as `linear` and
/// `silu_mul` do, or not at all, and whether y is. Weights and the sum are float32, and the sum is
/// rounded to T once. As in `linear`, a row's result depends neither on the number of rows nor on
/// where the other rows go, unless the backend says otherwise.
///
/// `experts` may be some of the layer's alone, as where ranks divide them. A slot whose expert is
/// not among them adds nothing to the sum, whatever its weight; a row without any other is 0.
///
/// With `accumulate`, out[i] = round(out[i] + what it would be without).
///
/// T is the activations' element, `Matrix` the backend's weight type. All experts have one shape.
template <class T, class Matrix>
struct ExpertMlpArgs {
  MatrixView<const T> x;                    ///< [n, in]
  MatrixView<const std::int32_t> ids;       ///< [n, k], each in [0, all_experts())
  MatrixView<const float> weights;          ///< [n, k]
  std::span<const Expert<Matrix>> experts;  ///< in the host's memory; from `make_experts`
  MatrixView<T> out;                        ///< [n, in]; may be x
  std::int64_t first_expert = 0;            ///< experts[i] is the layer's first_expert + i
  std::int64_t num_experts = 0;             ///< of the layer; 0: there are no others
  bool accumulate = false;

  /// How many experts the layer has, here and elsewhere.
  [[nodiscard]] std::int64_t all_experts() const {
    return num_experts != 0 ? num_experts : static_cast<std::int64_t>(experts.size());
  }
  /// Whether some are elsewhere.
  [[nodiscard]] bool has_part() const {
    return all_experts() != static_cast<std::int64_t>(experts.size());
  }
};

/// Throws ShapeError when the operands do not fit together. What `ids` holds is not read.
template <class T, class Matrix>
void validate(const ExpertMlpArgs<T, Matrix>& args) {
  constexpr auto kOp = "expert_mlp";
  check<ShapeError>(!args.experts.empty(), kOp, ": there are no experts");
  const auto count = static_cast<std::int64_t>(args.experts.size());
  check<ShapeError>(args.first_expert >= 0 && args.first_expert <= args.all_experts() - count, kOp,
                    ": the ", count, " experts from ", args.first_expert,
                    " on must be among the layer's ", args.all_experts());
  const std::int64_t n = args.x.extent(0), in = args.x.extent(1);
  const std::int64_t width = args.experts.front().down.cols();
  check_shape(kOp, "ids", args.ids, {n, -1});
  check_shape(kOp, "weights", args.weights, {n, args.ids.extent(1)});
  check_shape(kOp, "out", args.out, {n, in});
  for (std::size_t e = 0; e < args.experts.size(); ++e) {
    const Matrix& gate_up = args.experts[e].gate_up;
    const Matrix& down = args.experts[e].down;
    const bool fits = gate_up.rows() == 2 * width && gate_up.cols() == in && down.rows() == in &&
                      down.cols() == width;
    check<ShapeError>(fits, kOp, ": expert ", e, " must have matrices [", 2 * width, ", ", in,
                      "] and [", in, ", ", width, "], got [", gate_up.rows(), ", ", gate_up.cols(),
                      "] and [", down.rows(), ", ", down.cols(), "]");
  }
}

}  // namespace nanovllm
