#pragma once
/// `linear` and `embedding` with matrices of integers on the CPU.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/kernels/embedding.hpp"
#include "nanovllm/cpu/linear/linear.hpp"
#include "nanovllm/cpu/linear/linear_avx512.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/ops/embedding.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/with/eight_bits/cpu/int_amx.hpp"
#include "nanovllm/with/eight_bits/cpu/int_avx.hpp"
#include "nanovllm/with/eight_bits/cpu/int_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/int_neon.hpp"
#include "nanovllm/with/eight_bits/cpu/int_tile.hpp"

namespace nanovllm::cpu {
namespace detail {

/// y for rows [0, n) of x, which are followed by one more that may be read.
template <class Family, int kBits, class Out>
void multiply_rows(const ActivationGroup* x, const IntMatrix<kBits>& weight, MatrixView<Out> y,
                   bool accumulate, const Context& context) {
  const std::int64_t groups = weight.num_groups(), n = y.extent(0);
  const RowBlocks blocks{n, ceil_div<std::int64_t>(n, Family::kMaxRows)};
  share_queue(context, weight.num_panels(), [&](IndexQueue& queue) {
    Tile tile;
    IndexQueue::Taker taker(queue);
    for (std::int64_t index = taker.next(); index < queue.count(); index = taker.next()) {
      const IntPanel panel{weight.panel(index), weight.shifts(index), groups};
      const std::int64_t first = index * kPanelRows;
      const auto cols = static_cast<int>(std::min<std::int64_t>(kPanelRows, weight.rows() - first));
      for (std::int64_t b = 0; b < blocks.count; ++b) {
        const std::int64_t begin = blocks.begin(b);
        Family::template multiply<kBits>(blocks.rows(b), x + begin * groups, groups, panel, tile);
        Family::store(tile, blocks.rows(b), cols, y.at(begin, first), y.strides[0], accumulate);
      }
    }
  });
}

#if defined(__x86_64__)
/// From how many rows on AMX is taken. Unpacking a panel takes as long as VNNI's products of nine
/// rows, and for each row AMX saves a twelfth of VNNI's time.
inline constexpr std::int64_t kLeastAmxRows = 128;

/// The same by AMX, for at least AmxInt::kRows rows. The last tile begins among the rows of the one
/// ahead of it where rows are no multiple of 16; only its own results are stored.
template <int kBits, class Out>
void multiply_tiles(const ActivationGroup* x, const IntMatrix<kBits>& weight, MatrixView<Out> y,
                    bool accumulate, const Context& context) {
  const std::int64_t groups = weight.num_groups(), n = y.extent(0);
  share_queue(context, weight.num_panels(), [&](IndexQueue& queue) {
    Tile tile;
    AmxInt::configure();
    IndexQueue::Taker taker(queue);
    for (std::int64_t index = taker.next(); index < queue.count(); index = taker.next()) {
      const IntPanel panel{weight.panel(index), weight.shifts(index), groups};
      const std::int64_t first = index * kPanelRows;
      const auto cols = static_cast<int>(std::min<std::int64_t>(kPanelRows, weight.rows() - first));
      auto* const codes = scratch<AmxInt, std::int8_t>(AmxInt::unpacked_bytes(panel));
      AmxInt::unpack<kBits>(panel, codes);
      for (std::int64_t row = 0; row < n; row += AmxInt::kRows) {
        const std::int64_t begin = std::min(row, n - AmxInt::kRows);
        AmxInt::multiply<kBits>(x + begin * groups, groups, panel, codes, tile);
        avx512_store_tile(tile, static_cast<int>(row - begin), AmxInt::kRows, cols,
                          y.at(begin, first), y.strides[0], accumulate);
      }
    }
    amx_release();
  });
}
#endif

/// The same by the widest kernel of `isa`.
template <int kBits, class Out>
void multiply_rows(const ActivationGroup* x, const IntMatrix<kBits>& weight, MatrixView<Out> y,
                   bool accumulate, const Context& context, [[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::amx && has_amx_int8() && y.extent(0) >= kLeastAmxRows)
    return multiply_tiles(x, weight, y, accumulate, context);
  if (isa >= Isa::avx512 && has_avx512_vnni())
    return multiply_rows<VnniInt>(x, weight, y, accumulate, context);
  if (isa >= Isa::avx2) return multiply_rows<Avx2Int>(x, weight, y, accumulate, context);
#elif defined(__aarch64__)
  const ArmFeatures features = isa >= Isa::neon ? best_arm_features() : ArmFeatures{};
  if (features.dotprod && features.i8mm)
    return multiply_rows<I8mmInt>(x, weight, y, accumulate, context);
  if (features.dotprod) return multiply_rows<DotProdInt>(x, weight, y, accumulate, context);
#endif
  multiply_rows<PortableInt>(x, weight, y, accumulate, context);
}

}  // namespace detail

/// Contract: ops/linear.hpp, but for the rounding of x: each row is rounded to integers of 8 bits,
/// 32 columns at a time, by a scale of the largest |x| / 127. Products are of integers; the sum of
/// a group is scaled and added in float32, in the order of int_tile.hpp. A row's result is the
/// same, bit for bit, whatever the other rows, the threads and the instruction set. A row with an x
/// that is not finite is NaN. Keeps scratch of at most a few MiB in the calling thread.
template <Element T, int kBits, Element Out>
void linear(const LinearArgs<T, IntMatrix<kBits>, Out>& args, const Context& context) {
  check<ShapeError>(args.weight != nullptr, "linear: no weight given");
  validate(args);
  if (args.weight->rows() == 0) return;
  const Isa isa = has(context.isa) ? context.isa : best_isa();
  const std::int64_t n = args.x.extent(0), groups = args.weight->num_groups();
  const auto quantise = NANOVLLM_PICK(isa, quantise_activations<T>);
  const std::int64_t step =
      detail::rows_per_pass(groups * static_cast<std::int64_t>(sizeof(ActivationGroup)));
  auto* const x =
      detail::scratch<ActivationGroup, ActivationGroup>((std::min(step, n) + 1) * groups);
  for (std::int64_t begin = 0; begin < n; begin += step) {
    const MatrixView<const T> rows = args.x.slice(begin, std::min(begin + step, n));
    detail::share(context, rows.extent(0), kRowGrain, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t r = from; r < to; ++r) quantise(rows.at(r), rows.extent(1), x + r * groups);
    });
    std::fill_n(x + rows.extent(0) * groups, groups, ActivationGroup{});
    detail::multiply_rows(x, *args.weight, args.y.slice(begin, begin + rows.extent(0)),
                          args.accumulate, context, isa);
  }
}

template <Element T, int kBits, Element Out>
void run_op(const LinearArgs<T, IntMatrix<kBits>, Out>& args, Context& context) {
  linear(args, context);
}

/// Contract: ops/embedding.hpp.
template <Element T, int kBits>
void run_op(const EmbeddingArgs<T, IntMatrix<kBits>>& args, Context& context) {
  detail::embed(args, context);
}

}  // namespace nanovllm::cpu
