#pragma once
/// Sums over ranks of a step's rows in two halves, each beside the products of the other.

#include <array>
#include <concepts>
#include <cstdint>
#include <utility>

#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/norm.hpp"
#include "nanovllm/model/layers/residual_stream.hpp"
#include "nanovllm/ops/linear.hpp"

namespace nanovllm {

/// The communicator makes sums beside other ops: `overlaps_sum(x)` says whether it pays. Then
/// `begin_sum(x, max_rows)`, of which no sum has more rows, and later, in the same order,
/// `finish_sum_add_norm(x, residual, weight, eps, out)`; two can be under way.
template <class Context>
concept OverlapsSums = requires(const Context& context, typename Context::Rows x,
                                VectorView<const typename Context::Weight> weight) {
  { context.comm.overlaps_sum(x) } -> std::same_as<bool>;
  context.comm.begin_sum(x, std::int64_t{});
  context.comm.finish_sum_add_norm(x, x, weight, 1e-6f, x);
};

/// The `Sums` of a ResidualStream whose large steps are in two halves. A communicator has it by
///
///     template <class Context>
///     using Sums = SumsInHalves<Context>;
template <OverlapsSums Context>
class SumsInHalves : public detail::SumsFor<Context, RmsNorm>::type {
  using Base = typename detail::SumsFor<Context, RmsNorm>::type;
  using typename Base::ConstRows;
  using typename Base::Matrix;
  using typename Base::Rows;
  using typename Base::Weights;

 public:
  SumsInHalves(const Context& context, std::int64_t max_rows)
      : Base(context, max_rows), max_rows_(max_rows) {}

  void start() {
    Base::start();
    has_halves_ = false;
  }

  template <class Stream>
  bool add(Stream& stream, ConstRows x, const Matrix& weight) {
    const Rows y = stream.hidden();
    if (y.extent(0) <= kHalfRows || !this->context_.comm.overlaps_sum(y)) return false;
    for (const auto& [begin, end] : halves(y.extent(0)))
      begin_sum(x.slice(begin, end), weight, y.slice(begin, end));
    has_halves_ = true;
    return true;
  }

  template <class Stream, class Read>
  bool read_rows(Stream& stream, const Weights& norm, float eps, const Read& read) {
    if (!std::exchange(has_halves_, false)) return false;
    for (const auto& half : halves(stream.hidden().extent(0)))
      read(BlockInput<Context>{.x = finish(stream, norm, eps, half)}, half.begin);
    return true;
  }

  template <class Stream, class Block>
  bool add_rows(Stream& stream, const Weights& norm, float eps, const Matrix& weight,
                const Block& block) {
    if (!has_halves_) return false;
    for (const auto& half : halves(stream.hidden().extent(0))) {
      const Rows y = finish(stream, norm, eps, half);
      begin_sum(block(BlockInput<Context>{.x = y}), weight, y);
    }
    return true;
  }

 private:
  /// Rows [begin, end) of a step.
  struct Range {
    std::int64_t begin, end;
  };

  [[nodiscard]] static std::array<Range, 2> halves(std::int64_t num_rows) {
    const std::int64_t middle = first_half_of(num_rows);
    return {Range{0, middle}, Range{middle, num_rows}};
  }
  /// Rows of the first half of a step. The second one never has more.
  [[nodiscard]] static std::int64_t first_half_of(std::int64_t num_rows) {
    return align_up(ceil_div(num_rows, std::int64_t{2}), kHalfRows);
  }

  /// Begins the sum of y = x · weightᵀ.
  void begin_sum(ConstRows x, const Matrix& weight, Rows y) {
    this->context_.backend.run(
        LinearArgs<typename Context::Activation, Matrix>{.x = x, .weight = &weight, .y = y});
    this->context_.comm.begin_sum(y, first_half_of(max_rows_));
  }

  /// Finishes the sum of these rows, and norms them.
  template <class Stream>
  [[nodiscard]] Rows finish(Stream& stream, const Weights& norm, float eps, const Range& half) {
    const Rows y = stream.hidden().slice(half.begin, half.end);
    this->context_.comm.finish_sum_add_norm(y, stream.residual().slice(half.begin, half.end), norm,
                                            eps, y);
    return y;
  }

  /// Products take rows in tiles of so many. Steps of more can be in halves.
  static constexpr std::int64_t kHalfRows = 128;

  std::int64_t max_rows_;
  bool has_halves_ = false;  // the sums of both halves are under way
};

}  // namespace nanovllm
