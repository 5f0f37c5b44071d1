#pragma once
/// The residual stream: what every block reads, normalised, and adds its result to.

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/norm.hpp"
#include "nanovllm/model/layers/stream_taps.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/embedding.hpp"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/rms_norm.hpp"

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

/// The sums over ranks of what a stream adds: made at once. Other ways have the same members, and
/// derive from it.
template <class Context>
class SumsAtOnce {
 public:
  using Rows = typename Context::Rows;
  using ConstRows = typename Context::ConstRows;
  using Matrix = typename Context::Matrix;
  using Weights = VectorView<const typename Context::Weight>;

  /// For steps of up to `max_rows` rows.
  SumsAtOnce(const Context& context, std::int64_t /*max_rows*/) : context_(context) {}

  /// A step begins.
  void start() {}
  /// x, this rank's part, becomes the sum, until the next norm at the latest.
  void sum(Rows x) { context_.comm.all_reduce(x); }
  /// Makes the sum that is due; returns whether it is added to `residual` and normed as well.
  bool norm(Rows, Rows, const auto&, float) { return false; }

  // The stream's calls of these names, of ways that do more; false, with nothing done, otherwise.
  bool add(auto&, ConstRows, const Matrix&) { return false; }
  bool read_rows(auto&, const auto&, float, const auto&) { return false; }
  bool add_rows(auto&, const auto&, float, const Matrix&, const auto&) { return false; }

 protected:
  Context context_;
};

/// Sums that are left to the norm after them, by a communicator that `kNormsSums`.
template <class Context>
class SumsWithNorm : public SumsAtOnce<Context> {
  using Base = SumsAtOnce<Context>;

 public:
  using Base::Base;

  void start() { is_due_ = false; }
  void sum(typename Base::Rows) { is_due_ = true; }
  bool norm(typename Base::Rows x, typename Base::Rows residual,
            const typename Base::Weights& weight, float eps) {
    return std::exchange(is_due_, false) &&
           this->context_.comm.all_reduce_add_norm(x, residual, weight, eps, x);
  }

 private:
  bool is_due_ = false;  // what was given to `sum` is this rank's part still
};

namespace detail {

template <class Context, class Norm>
struct SumsFor {
  using type = SumsAtOnce<Context>;
};
template <class Context>
requires kNormsSums<Context>
struct SumsFor<Context, RmsNorm> {
  using type = SumsWithNorm<Context>;
};

/// The communicator's own way, if it has one for such rows.
template <class Context, class Norm>
struct SumsSlot : SumsFor<Context, Norm> {};
template <class Context>
requires requires { typename Context::Communicator::template Sums<Context>; }
struct SumsSlot<Context, RmsNorm> {
  using type = typename Context::Communicator::template Sums<Context>;
};

}  // namespace detail

/// Owns the residual and its normalised form, and knows when a block's result is added to the
/// residual: by its last product itself, where that costs less (`kAccumulatesResidual`) and there
/// is one rank, or else, after the sum over all ranks, by the norm that follows. `Sums` says how
/// and when that sum is made. A network says
///
///     stream.start(n);  …fill stream.residual()…;
///     stream.add(result of a block that reads stream.normed(weight), weight of its last product);
///     stream.add_rows(norm's weight, weight of its last product, block whose rows are apart);
///     …;  stream.norm(weight);  …read stream.hidden()…
///
/// `Norm` is one of model/layers/norm.hpp.
template <class Context, class Norm = RmsNorm,
          class Sums = typename detail::SumsSlot<Context, Norm>::type>
class ResidualStream {
  using A = typename Context::Activation;
  using Matrix = typename Context::Matrix;
  using Rows = typename Context::Rows;
  using NormParameters = typename Norm::template Parameters<Context>;

 public:
  /// For steps of up to `max_rows` rows of `width` elements.
  ResidualStream(const Context& context, std::int64_t max_rows, std::int64_t width, float eps)
      : context_(context),
        max_rows_(max_rows),
        eps_(eps),
        sums_(context, max_rows),
        taps_(context, max_rows, width),
        residual_(max_rows, width),
        hidden_(max_rows, width) {}

  /// Begins a step of `n` rows, whose residual is to be written to `residual()`.
  void start(std::int64_t n) {
    check<ShapeError>(n <= max_rows_, "forward: at most ", max_rows_, " tokens a step, got ", n);
    num_rows_ = n;
    has_summand_ = false;
    entered_.reset();
    sums_.start();
  }

  /// What is asked of this stream from outside.
  [[nodiscard]] StreamTaps<Context>& taps() { return taps_; }
  /// The norm that follows is the first one of `layer`, or the final one, of their number.
  void enter(std::int64_t layer) {
    if (taps_.wants(layer)) entered_ = layer;
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
    if (sums_.add(*this, x, weight)) {
      has_summand_ = true;
      return;
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

  /// Calls read(input, begin): `normed` rows from row `begin` on. All rows at once, or as their
  /// sums are made.
  template <class Read>
  void read_rows(const NormParameters& parameters, const Read& read) {
    if (sums_.read_rows(*this, parameters, eps_, read)) {
      has_summand_ = false;
      return keep_entered();
    }
    read(normed(parameters), std::int64_t{0});
  }

  /// residual += the sum over all ranks of block(normed rows) · weightᵀ. The block takes a
  /// `BlockInput` and returns as many rows, each of which depends on its own row alone. It may be
  /// called for some rows at a time, and be done with what it has returned before.
  template <class Block>
  void add_rows(const NormParameters& parameters, const Matrix& weight, const Block& block) {
    if (sums_.add_rows(*this, parameters, eps_, weight, block)) return;
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
    const auto leave = [](const auto&, std::int64_t) {};
    if (!sums_.read_rows(*this, parameters, eps_, leave) &&
        !sums_.norm(hidden(), residual(), parameters, eps_))
      add_and_norm(parameters);
    has_summand_ = false;
    keep_entered();
  }

  /// What the next block reads: `norm`, or, where the backend has ops that take the norm upon
  /// themselves and nothing waits to be added, the residual and that norm. Valid until the next
  /// call of `add`, `norm` or `normed`.
  [[nodiscard]] BlockInput<Context> normed(const NormParameters& parameters) {
    if constexpr (std::same_as<Norm, RmsNorm> && kFusesNorms<Context>) {
      if (!has_summand_) {
        keep_entered();
        return {.x = residual(), .norm = norm_of(parameters), .scratch = hidden()};
      }
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
    sums_.sum(hidden());
    has_summand_ = true;
    summand_bias_ = bias;
  }

  /// The residual is what the norm read; gives it to the taps if it enters a layer they ask for.
  void keep_entered() {
    if (!entered_) return;
    taps_.keep(*entered_, residual());
    entered_.reset();
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

  Context context_;
  std::int64_t max_rows_;
  float eps_;
  Sums sums_;
  StreamTaps<Context> taps_;
  std::optional<std::int64_t> entered_;  // a layer that is asked for, until its norm
  std::int64_t num_rows_ = 0;
  bool has_summand_ = false;  // hidden_ is to be added to the residual, and summand_bias_ with it
  VectorView<const typename Context::Weight> summand_bias_{};
  RowBuffer<Context> residual_;
  RowBuffer<Context> hidden_;
};

}  // namespace nanovllm
