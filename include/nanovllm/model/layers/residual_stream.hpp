#pragma once
/// The residual stream: what every block reads, normalised, and adds its result to.

#include <array>
#include <concepts>
#include <cstdint>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/norm.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/gather_rows.hpp"
#include "nanovllm/ops/input_norm.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm {

/// What a block reads: rows, and the norm of them that is left to the op that reads them.
template <class Context>
struct BlockInput {
  typename Context::ConstRows x;               ///< [n, width]
  InputNorm<typename Context::Weight> norm{};  ///< of x
  typename Context::Rows scratch{};            ///< [n, width], if there is a norm
};

/// The backend has the ops that read a residual stream in forms that norm it themselves.
template <class Context>
inline constexpr bool kFusesNorms =
    RunsOp<typename Context::Backend,
           GatedLinearArgs<typename Context::Activation, typename Context::Matrix,
                           typename Context::Weight>>&&
        RunsOp<typename Context::Backend,
               ProjectQkvArgs<typename Context::Activation, typename Context::Matrix,
                              typename Context::KvElement, typename Context::Weight>>;

/// The communicator sums over ranks with the residual and RMSNorm after the sum.
template <class Context>
inline constexpr bool kNormsSums = requires(const Context& context, typename Context::Rows x,
                                            VectorView<const typename Context::Weight> weight) {
  { context.comm.all_reduce_add_norm(x, x, weight, 1e-6f, x) } -> std::same_as<bool>;
};

/// The communicator makes sums beside other ops.
template <class Context>
inline constexpr bool kOverlapsSums = requires(const Context& context, typename Context::Rows x,
                                               VectorView<const typename Context::Weight> weight) {
  { context.comm.overlaps_sum(x) } -> std::same_as<bool>;
  context.comm.begin_sum(x, std::int64_t{});
  context.comm.finish_sum_add_norm(x, x, weight, 1e-6f, x);
};

/// Owns the residual and its normalised form, and knows when a block's result is added to the
/// residual: by its last product itself, where that costs less (`kAccumulatesResidual`) and there
/// is one rank, or else, after the sum over all ranks, by the norm that follows. A communicator
/// that sums, adds and norms in one (`kNormsSums`) does so at that norm. One that makes sums beside
/// other ops (`kOverlapsSums`) has those of large steps in two halves, each while the other half is
/// multiplied. A network says
///
///     stream.start(n);  …fill stream.residual()…;
///     stream.add(result of a block that reads stream.normed(weight), weight of its last product);
///     stream.add_rows(norm's weight, weight of its last product, block whose rows are apart);
///     …;  stream.norm(weight);  …read stream.hidden()…
///
/// `Norm` is one of model/layers/norm.hpp.
template <class Context, class Norm = RmsNorm>
class ResidualStream {
  using A = typename Context::Activation;
  using Matrix = typename Context::Matrix;
  using Rows = typename Context::Rows;
  using NormParameters = typename Norm::template Parameters<Context>;

  /// Whether the sum over ranks is left to the norm after it.
  static constexpr bool kDefersSums = std::same_as<Norm, RmsNorm> && kNormsSums<Context>;
  static constexpr bool kHasHalves = std::same_as<Norm, RmsNorm> && kOverlapsSums<Context>;

 public:
  /// For steps of up to `max_rows` rows of `width` elements.
  ResidualStream(const Context& context, std::int64_t max_rows, std::int64_t width, float eps)
      : context_(context),
        max_rows_(max_rows),
        eps_(eps),
        residual_(max_rows, width),
        hidden_(max_rows, width) {}

  /// Begins a step of `n` rows, whose residual is to be written to `residual()`.
  void start(std::int64_t n) {
    check<ShapeError>(n <= max_rows_, "forward: at most ", max_rows_, " tokens a step, got ", n);
    num_rows_ = n;
    has_summand_ = false;
    is_sum_due_ = false;
    has_halves_ = false;
  }

  [[nodiscard]] Rows residual() { return residual_.rows(num_rows_); }
  /// Rows to be written before the next norm, which adds them to the residual: what a step begins
  /// with besides `residual()`. They lie where `hidden()` does.
  [[nodiscard]] Rows summand() {
    has_summand_ = true;
    summand_bias_ = {};
    return hidden();
  }
  /// What `norm` computed last, for a block to read.
  [[nodiscard]] Rows hidden() { return hidden_.rows(num_rows_); }

  /// Whether `add` multiplies into the residual, in steps of up to `kMaxAccumulatedRows`. With
  /// several ranks the sum over ranks comes first.
  [[nodiscard]] bool accumulates() const {
    return Context::Backend::kAccumulatesResidual && context_.comm.size() == 1;
  }

  /// residual += the sum over all ranks of x · weightᵀ. `hidden()` is done with.
  void add(typename Context::ConstRows x, const Matrix& weight) {
    if constexpr (kHasHalves) {
      if (num_rows_ > kHalfRows && context_.comm.overlaps_sum(hidden())) {
        for (const auto& [begin, end] : halves()) add_half(x.slice(begin, end), weight, begin);
        has_halves_ = has_summand_ = true;
        return;
      }
    }
    const bool accumulate = accumulates_now();
    context_.backend.run(LinearArgs<A, Matrix>{.x = x,
                                               .weight = &weight,
                                               .y = accumulate ? residual() : hidden(),
                                               .accumulate = accumulate});
    if (accumulate) return;
    sum_over_ranks({});
  }

  /// The same for a layer with bias. The norm that follows adds both, and rounds once.
  void add(typename Context::ConstRows x, const Matrix& weight,
           VectorView<const typename Context::Weight> bias) requires Norm::kAddsBias {
    context_.backend.run(LinearArgs<A, Matrix>{.x = x, .weight = &weight, .y = hidden()});
    sum_over_ranks(bias);
  }

  /// Calls read(input, begin): `normed` rows from row `begin` on. All rows at once, or, where the
  /// sums of halves are under way, those of the first half while the other one's is.
  template <class Read>
  void read_rows(const NormParameters& parameters, const Read& read) {
    if constexpr (kHasHalves) {
      if (std::exchange(has_halves_, false)) {
        for (const auto& [begin, end] : halves()) {
          norm_half(parameters, begin, end);
          read(BlockInput<Context>{.x = hidden().slice(begin, end)}, begin);
        }
        has_summand_ = false;
        return;
      }
    }
    read(normed(parameters), std::int64_t{0});
  }

  /// residual += the sum over all ranks of block(normed rows) · weightᵀ. The block takes a
  /// `BlockInput` and returns as many rows, each of which depends on its own row alone. It may be
  /// called for some rows at a time, and be done with what it has returned before.
  template <class Block>
  void add_rows(const NormParameters& parameters, const Matrix& weight, const Block& block) {
    if constexpr (kHasHalves) {
      if (has_halves_) {
        for (const auto& [begin, end] : halves()) {
          norm_half(parameters, begin, end);
          add_half(block(BlockInput<Context>{.x = hidden().slice(begin, end)}), weight, begin);
        }
        return;
      }
    }
    add(block(normed(parameters)), weight);
  }

  /// residual += the sum over all ranks of the result of a block that reads `hidden()` and is the
  /// last to do so: block(out, accumulate) writes it to `out`, or adds it there.
  template <class Block>
  void add_result(const Block& block) {
    const bool accumulate = accumulates_now();
    block(accumulate ? residual() : hidden(), accumulate);
    if (!accumulate) sum_over_ranks({});
  }

  /// hidden() = norm of residual(), whatever was added before included.
  void norm(const NormParameters& parameters) {
    if constexpr (kHasHalves) {
      if (has_halves_) return read_rows(parameters, [](const auto&, std::int64_t) {});
    }
    if (!sum_with_norm(parameters)) add_and_norm(parameters);
    has_summand_ = false;
  }

  /// What the next block reads: `norm`, or, where the backend has ops that take the norm upon
  /// themselves and nothing waits to be added, the residual and that norm. Valid until the next
  /// call of `add`, `norm` or `normed`.
  [[nodiscard]] BlockInput<Context> normed(const NormParameters& parameters) {
    if constexpr (std::same_as<Norm, RmsNorm> && kFusesNorms<Context>) {
      if (!has_summand_) return {.x = residual(), .norm = norm_of(parameters), .scratch = hidden()};
    }
    norm(parameters);
    return {.x = hidden()};
  }

  /// A norm of this stream, for the op that applies it.
  [[nodiscard]] InputNorm<typename Context::Weight> norm_of(
      const NormParameters& parameters) const requires std::same_as<Norm, RmsNorm> {
    return {.weight = parameters, .eps = eps_};
  }

  /// The rows of hidden() that are listed, in the order of the list; all of them where the list has
  /// no data. They lie in the residual's place: the step is done with it.
  [[nodiscard]] Rows take_rows(VectorView<const std::int32_t> list) {
    if (list.data == nullptr) return hidden();
    const Rows out = residual_.rows(list.extent(0));
    copy_rows(list, out);
    return out;
  }

  /// out[i] = row list[i] of hidden().
  void copy_rows(VectorView<const std::int32_t> list, Rows out) {
    context_.backend.run(GatherRowsArgs<A>{.x = hidden(), .rows = list, .out = out});
  }

 private:
  /// Whether what is added to the residual in this step is added by its own kernel.
  [[nodiscard]] bool accumulates_now() const {
    return accumulates() && num_rows_ <= kMaxAccumulatedRows<typename Context::Backend, A>;
  }
  /// hidden() becomes what the next norm adds, with `bias`, which all ranks have whole.
  void sum_over_ranks(VectorView<const typename Context::Weight> bias) {
    is_sum_due_ = kDefersSums;
    if (!kDefersSums) context_.comm.all_reduce(hidden());
    has_summand_ = true;
    summand_bias_ = bias;
  }

  /// hidden() = norm of residual(), to which the summand is added, if there is one.
  void add_and_norm(const NormParameters& parameters) {
    if (!has_summand_) return Norm::run(context_, residual(), parameters, eps_, hidden());
    if constexpr (Norm::kAddsBias) {
      Norm::run_add(context_, hidden(), summand_bias_, residual(), parameters, eps_, hidden());
    } else {
      Norm::run_add(context_, hidden(), residual(), parameters, eps_, hidden());
    }
  }

  /// Makes the sum that is due, if there is one; returns whether the norm of it is done as well.
  bool sum_with_norm(const NormParameters& parameters) {
    if constexpr (kDefersSums) {
      if (std::exchange(is_sum_due_, false))
        return context_.comm.all_reduce_add_norm(hidden(), residual(), parameters, eps_, hidden());
    }
    return false;
  }

  /// Rows [begin, end) of a step.
  struct Range {
    std::int64_t begin, end;
  };
  [[nodiscard]] std::array<Range, 2> halves() const {
    const std::int64_t middle = first_half_of(num_rows_);
    return {Range{0, middle}, Range{middle, num_rows_}};
  }
  /// Rows of the first half of a step. The second one never has more.
  [[nodiscard]] static std::int64_t first_half_of(std::int64_t num_rows) {
    return align_up(ceil_div(num_rows, std::int64_t{2}), kHalfRows);
  }
  /// Begins the sum of x · weightᵀ, rows from `begin` on.
  void add_half(typename Context::ConstRows x, const Matrix& weight, std::int64_t begin) {
    const Rows y = hidden().slice(begin, begin + x.extent(0));
    context_.backend.run(LinearArgs<A, Matrix>{.x = x, .weight = &weight, .y = y});
    context_.comm.begin_sum(y, first_half_of(max_rows_));
  }
  /// Finishes the sum of these rows, and norms them.
  void norm_half(const NormParameters& parameters, std::int64_t begin, std::int64_t end) {
    const Rows y = hidden().slice(begin, end);
    context_.comm.finish_sum_add_norm(y, residual().slice(begin, end), parameters, eps_, y);
  }

  /// Products take rows in tiles of so many. Steps of more can be in halves.
  static constexpr std::int64_t kHalfRows = 128;

  Context context_;
  std::int64_t max_rows_;
  float eps_;
  std::int64_t num_rows_ = 0;
  bool is_sum_due_ = false;   // hidden_ is this rank's part of what is to be added
  bool has_halves_ = false;   // the sums of both halves of hidden_ are under way
  bool has_summand_ = false;  // hidden_ is to be added to the residual, and summand_bias_ with it
  VectorView<const typename Context::Weight> summand_bias_{};
  RowBuffer<Context> residual_;
  RowBuffer<Context> hidden_;
};

}  // namespace nanovllm
