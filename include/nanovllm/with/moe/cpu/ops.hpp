#pragma once
/// A mixture of experts on the CPU: `route_experts` and `expert_mlp`. Contracts: with/moe/ops.hpp.
///
/// For `expert_mlp` tokens are sorted by expert, so that the weights of each expert that has any
/// are read once in a step. Experts are shared among threads, one each, those with the most tokens
/// first. The last ones, which are fewer than threads, are multiplied by all threads together.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/kernels/rowwise.hpp"
#include "nanovllm/cpu/linear/linear.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/with/moe/ops.hpp"

#define NANOVLLM_KERNELS "nanovllm/with/moe/cpu/ops_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

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

namespace detail {

/// Pairs of a token and a slot whose expert is here, sorted by expert. Pair p is slot p % k of
/// token p / k. Experts are counted from the first that is here.
struct ExpertOrder {
  std::int32_t* first;    ///< [experts + 1]: where the pairs of each begin in `pairs`
  std::int32_t* pairs;    ///< [num_pairs]: ascending within an expert
  std::int32_t* places;   ///< [n · k]: where pair p is in `pairs`, or -1 for nowhere
  std::int32_t* touched;  ///< [num_touched]: experts with pairs, those with the most first
  std::int64_t num_touched;
  std::int64_t num_pairs;

  [[nodiscard]] std::int64_t rows(std::int64_t expert) const {
    return first[expert + 1] - first[expert];
  }
};

/// The pairs of `count` experts of `all`, from `first` on. In memory of the calling thread. Throws
/// ShapeError for an id that is no expert's.
[[nodiscard]] ExpertOrder sort_by_expert(MatrixView<const std::int32_t> ids, std::int64_t first,
                                         std::int64_t count, std::int64_t all);

// Whose scratch memory it is.
struct ExpertInput;
struct ExpertGateUp;
struct ExpertHidden;
struct ExpertResults;
struct ExpertSum;

/// y = the results of one expert for its rows [rows, in], without their weights. Scratch memory is
/// the calling thread's, and not more than for some rows of x: as many as `linear` takes at a time.
template <Element T, class Matrix>
void run_expert(const ExpertMlpArgs<T, Matrix>& args, const Expert<Matrix>& expert,
                const std::int32_t* pairs, std::int64_t rows, float* y, Context context) {
  const std::int64_t in = args.x.extent(1), width = expert.down.cols(), k = args.ids.extent(1);
  const std::int64_t most = rows_per_pass(in * static_cast<std::int64_t>(sizeof(T)));
  for (; rows > most; rows -= most, pairs += most, y += most * in)
    run_expert(args, expert, pairs, most, y, context);
  const MatrixView<T> x(scratch<ExpertInput, T>(rows * in), {rows, in});
  const MatrixView<T> gate_up(scratch<ExpertGateUp, T>(rows * 2 * width), {rows, 2 * width});
  const MatrixView<T> hidden(scratch<ExpertHidden, T>(rows * width), {rows, width});
  for (std::int64_t r = 0; r < rows; ++r) std::copy_n(args.x.at(pairs[r] / k), in, x.at(r));
  run_op(LinearArgs<T, Matrix>{.x = x, .weight = &expert.gate_up, .y = gate_up}, context);
  const SiluMulArgs<T> activation{.gate_up = gate_up, .out = hidden};
  const auto activate = NANOVLLM_PICK(context.isa, silu_mul_rows<T>);
  share(context, rows, kRowGrain,
        [&](std::int64_t begin, std::int64_t end) { activate(activation, begin, end); });
  run_op(FloatLinearArgs<T, Matrix>{.x = hidden, .weight = &expert.down, .y = {y, {rows, in}}},
         context);
}

}  // namespace detail

/// gate, up and silu(gate) are rounded to T, y is not. A row's result depends on that row alone,
/// bit for bit on a given instruction set. Keeps a row of floats for every pair of a token and an
/// expert that is here in the calling thread: at most 64 MiB for 1,024 tokens of a 30B-A3B.
/// Throws ShapeError for an id that is no expert's.
template <Element T, class Matrix>
void expert_mlp(const ExpertMlpArgs<T, Matrix>& args, const Context& context) {
  validate(args);
  const std::int64_t n = args.x.extent(0), in = args.x.extent(1), k = args.ids.extent(1);
  if (n == 0) return;
  const detail::ExpertOrder order =
      detail::sort_by_expert(args.ids, args.first_expert,
                             static_cast<std::int64_t>(args.experts.size()), args.all_experts());
  float* const y = detail::scratch<detail::ExpertResults, float>(order.num_pairs * in);
  const auto run = [&](std::int64_t index, const Context& threads) {
    const std::int32_t expert = order.touched[index];
    const std::int64_t first = order.first[expert];
    detail::run_expert(args, args.experts[static_cast<std::size_t>(expert)], order.pairs + first,
                       order.rows(expert), y + first * in, threads);
  };
  const std::int64_t num_threads = context.pool == nullptr ? 1 : context.pool->num_threads();
  const std::int64_t num_alone = order.num_touched / num_threads * num_threads;
  detail::share(context, num_alone, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) run(i, Context{.isa = context.isa});
  });
  for (std::int64_t i = num_alone; i < order.num_touched; ++i) run(i, context);
  const auto sum = NANOVLLM_PICK(context.isa, sum_expert_rows<T>);
  detail::share(context, n, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* const out = args.out.at(i);
      T* const to = args.accumulate ? detail::scratch<detail::ExpertSum, T>(in) : out;
      sum(y, in, order.places + i * k, args.weights.at(i), k, to);
      if (!args.accumulate) continue;
      for (std::int64_t j = 0; j < in; ++j)
        out[j] = T(static_cast<float>(out[j]) + static_cast<float>(to[j]));
    }
  });
}

template <Element T, class Matrix>
void run_op(const ExpertMlpArgs<T, Matrix>& args, Context& context) {
  expert_mlp(args, context);
}

NANOVLLM_COMPILED_TEMPLATE(void expert_mlp(const ExpertMlpArgs<float, PackedMatrix<float>>&,
                                           const Context&))
NANOVLLM_COMPILED_TEMPLATE(void expert_mlp(const ExpertMlpArgs<bf16, PackedMatrix<bf16>>&,
                                           const Context&))

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

namespace detail {

NANOVLLM_INLINE ExpertOrder sort_by_expert(MatrixView<const std::int32_t> ids, std::int64_t first,
                                           std::int64_t count, std::int64_t all) {
  const std::int64_t n = ids.extent(0), k = ids.extent(1), num_pairs = n * k;
  ExpertOrder out{};
  out.first = scratch<ExpertOrder, std::int32_t>(2 * count + 1 + 2 * num_pairs);
  out.touched = out.first + count + 1;
  out.pairs = out.touched + count;
  out.places = out.pairs + num_pairs;
  std::fill_n(out.first, count + 1, 0);
  const auto is_here = [&](std::int32_t id) { return id >= first && id < first + count; };
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t s = 0; s < k; ++s) {
      const std::int32_t id = *ids.at(i, s);
      check<ShapeError>(id >= 0 && id < all, "expert_mlp: ids must be in [0, ", all, "), got ", id);
      if (is_here(id)) ++out.first[id - first];
    }
  }
  // Counts become ends; filled from the back, ends become beginnings.
  for (std::int64_t e = 0; e < count; ++e) {
    if (out.first[e] > 0) out.touched[out.num_touched++] = static_cast<std::int32_t>(e);
    if (e > 0) out.first[e] += out.first[e - 1];
  }
  out.num_pairs = out.first[count - 1];
  out.first[count] = out.first[count - 1];
  for (std::int64_t p = num_pairs - 1; p >= 0; --p) {
    const std::int32_t id = *ids.at(p / k, p % k);
    out.places[p] = -1;
    if (!is_here(id)) continue;
    const std::int32_t place = --out.first[id - first];
    out.pairs[place] = static_cast<std::int32_t>(p);
    out.places[p] = place;
  }
  std::sort(out.touched, out.touched + out.num_touched, [&](std::int32_t a, std::int32_t b) {
    return out.rows(a) != out.rows(b) ? out.rows(a) > out.rows(b) : a < b;
  });
  return out;
}

}  // namespace detail

}  // namespace nanovllm::cpu

#endif  // NANOVLLM_BODIES
