#pragma once
/// Contract of `apply_functor`: a user's function of every logit of a row, before the draw.

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm {

/// What a functor knows of the row that it is called for.
struct FunctorContext {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;  ///< index in its sequence of the token to be drawn
  TokenId previous = 0;        ///< the token before it
  float argument = 0;          ///< SamplingParams::functor_argument, not 0
};

/// Plain data with a call operator for host and device, `NANOVLLM_HD`:
/// `functor(logit, token, context)` is the new logit. It is compiled into the backend's kernel, and
/// called for every token of the rows that asked for it; what it gives must depend on its arguments
/// alone.
template <class F>
concept LogitsFunctorLike = std::is_trivially_copyable_v<F> && std::default_initializable<F> &&
    requires(const F& functor, const FunctorContext& context) {
  { functor(float{}, TokenId{}, context) } -> std::convertible_to<float>;
};

/// The policy slot's default: there is none.
struct NoLogitsFunctor {
  NANOVLLM_HD constexpr float operator()(float logit, TokenId, const FunctorContext&) const {
    return logit;
  }
};

/// logits[r, t] = functor(logits[r, t], t, context of row r), for rows with arguments[r] ≠ 0;
/// others stay as they are. Moved: 8 bytes a logit of those rows.
template <LogitsFunctorLike F>
struct ApplyFunctorArgs {
  MatrixView<float> logits;            ///< [rows, vocab], in and out
  VectorView<const SamplingRow> rows;  ///< [rows]; seeds and positions
  VectorView<const float> arguments;   ///< [rows]
  VectorView<const TokenId> previous;  ///< [rows]
  F functor{};

  /// Of row r; reads the operands.
  [[nodiscard]] NANOVLLM_HD FunctorContext context(std::int64_t r) const {
    return {.seed = rows.data[r].seed,
            .position = rows.data[r].position,
            .previous = previous.data[r],
            .argument = arguments.data[r]};
  }
};

/// Throws ShapeError when the operands do not fit together.
template <class F>
void validate(const ApplyFunctorArgs<F>& args) {
  const std::int64_t n = args.logits.extent(0);
  check_shape("apply_functor", "rows", args.rows, {n});
  check_shape("apply_functor", "arguments", args.arguments, {n});
  check_shape("apply_functor", "previous", args.previous, {n});
}

}  // namespace nanovllm
