#pragma once
/// Dense layers on the GPU: kernels for few rows, those of the device's architecture, cuBLASLt for
/// the rest; and which of them runs a layer. At the end the ops that are dense layers: `linear`,
/// `gated_linear` and `project_qkv`.
///
/// That is chosen once for each layer's shape, types and bucket of rows (`DenseKey`): by time at
/// start-up (tune/), else by rule at first use. What has a norm ahead or SwiGLU after runs by the
/// ops that it is made of unless a kernel was faster.
///
/// Rounding. Sums are in float32, and y is rounded once; but where cuBLASLt adds to a y of 16 bits
/// (13.1 on Hopper), it rounds the product before it adds, and then the sum.
///
/// Batch invariance. float32: every number of rows runs the same algorithm, without a split of K;
/// a row's result depends neither on the number of rows nor on its place. 16 bits: rows of one
/// bucket agree, and so do all numbers of rows that run on the same kernel for few rows; otherwise
/// the order of summation may change from bucket to bucket, within the rounding of the result.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/architecture.hpp"
#include "nanovllm/cuda/linear/blas/blas_linear.cuh"
#include "nanovllm/cuda/linear/dispatch/tuned_plans.hpp"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/linear/small_m/registers.cuh"
#include "nanovllm/cuda/linear/small_m/small_m_linear.cuh"
#include "nanovllm/cuda/linear/small_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm::cuda {

/// What runs a dense layer: the ops that it is made of, cuBLASLt, a family of kernels, or one
/// kernel that does all of `project_qkv`.
enum class DenseKernel : std::uint8_t {
  parts,
  blas,
  registers,  ///< small_m/registers.cuh
  small_m,
  native,       ///< of the device's architecture
  native_heads  ///< of it, for all of `project_qkv`
};

/// One way to run a dense layer.
struct DensePlan {
  DenseKernel kernel = DenseKernel::parts;
  int variant = 0;  ///< tiles of a block of registers or small_m, a form of native, if any
  BlasAlgorithm algorithm{};  ///< of DenseKernel::blas
};

/// What dense layers of one device share: the choices, the cuBLASLt handle with its workspace, and
/// the descriptions of tensors. Serves one stream at a time and one host thread at a time; graphs
/// captured with it keep using its workspace. An `Op` is what `layer_of` takes; `Architectures` is
/// the list of which the device gets one's kernels (architecture.hpp).
template <class Architectures>
class DenseEngine {
 public:
  template <class Kv>
  using QkvArgs = ProjectQkvArgs<bf16, DeviceMatrix<bf16>, Kv, bf16>;

  /// Enqueues a product that is not empty: see `cuda::linear`.
  template <Element T, Element Out>
  void run(const LinearArgs<T, DeviceMatrix<T>, Out>& args, const Context& context) {
    run(layer_of(args), context);
  }
  template <Element T, Element Out>
  void run(const DenseLayer<T, Out>& layer, const Context& context) {
    if (!execute(layer, plan_for(layer, context), context)) blas_.run_any(layer, context);
  }

  /// Enqueues a layer with a norm or SwiGLU in one kernel, where one was chosen. False, with
  /// nothing enqueued: run its parts.
  [[nodiscard]] bool run_fused(const DenseLayer<bf16>& layer, const Context& context) {
    return execute(layer, plan_for(layer, context), context);
  }

  /// Enqueues `project_qkv`, or its product with the norm ahead, in one kernel, where one was
  /// chosen, and says which: `native_heads` did all, `parts` enqueued nothing.
  template <class Kv>
  [[nodiscard]] DenseKernel run(const QkvArgs<Kv>& args, const Context& context) {
    if (!args.norm) return DenseKernel::parts;
    const DensePlan plan = plan_for(args, context);
    return execute(args, plan, context) ? plan.kernel : DenseKernel::parts;
  }

  /// The way in force. Where there is none yet a product gets one by rule; others run by their
  /// parts.
  template <class Op>
  [[nodiscard]] DensePlan plan_for(const Op& op, const Context& context) {
    const auto layer = layer_of(op);
    const DenseKey key = key_of(layer);
    if (const DensePlan* const plan = plans_.find(key)) return *plan;
    if (layer.kind() != ProductKind::plain) return {};
    const DensePlan plan = plan_by_rule(layer, key.bucket, context);
    plans_.choose(key, plan);
    return plan;
  }

  /// The ways to run the op that were close when they were timed, the one in force first; none
  /// where nothing was timed. Of them `choose` puts one in force.
  template <class Op>
  [[nodiscard]] std::vector<DensePlan> close_plans(const Op& op) const {
    return plans_.close_plans(key_of(layer_of(op)));
  }
  template <class Op>
  void choose(const Op& op, const DensePlan& plan) {
    plans_.choose(key_of(layer_of(op)), plan);
  }

  // ---- For those who time ----

  [[nodiscard]] TunedPlans<DenseKey, DensePlan>& plans() { return plans_; }

  /// The ways to run the layer that are worth timing; `execute` says whether one takes it.
  template <class T, class Out>
  [[nodiscard]] std::vector<DensePlan> candidates(const DenseLayer<T, Out>& layer,
                                                  const Context& context) {
    const std::int64_t m = layer.x.extent(0), n = layer.weight.extent(0),
                       k = layer.weight.extent(1);
    const ProductKind kind = layer.kind();
    std::vector<DensePlan> out;
    if (kind != ProductKind::plain) out.push_back({DenseKernel::parts});
    const bool has_few =
        !kIsNative<T, Out> || suits_small_m(m, n, k, tuning_for(context).small_weights);
    for (const int tiles : kSmallMTiles) {
      if (has_few && small_m_registers_takes(layer, tiles))
        out.push_back({DenseKernel::registers, tiles});
    }
    for (const int tiles : kSmallMTiles) {
      if (has_few && small_m_takes(layer, tiles)) out.push_back({DenseKernel::small_m, tiles});
    }
    if constexpr (kIsNative<T, Out>) {
      for (const int form : Architectures::choose(
               context, [&](auto native) { return native.dense_forms(kind, m, n, k); }))
        out.push_back({DenseKernel::native, form});
    }
    if (kind != ProductKind::plain) return out;
    for (const BlasAlgorithm& algorithm :
         blas_.algorithms(layer, m, m <= 256 ? 8 : 4, sizeof(T) == 2))
      out.push_back({.kernel = DenseKernel::blas, .algorithm = algorithm});
    return out;
  }

  /// Whether one kernel for all of `project_qkv` is worth timing on `rows` rows of x.
  [[nodiscard]] static bool suits_heads(std::int64_t rows, std::int64_t n, std::int64_t k,
                                        const Context& context) {
    return Architectures::choose(context,
                                 [&](auto native) { return native.suits_heads(rows, n, k); });
  }

  /// Enqueues the layer as `plan` says. False, with nothing enqueued, when the plan does not fit.
  template <class T, class Out>
  [[nodiscard]] bool execute(const DenseLayer<T, Out>& layer, const DensePlan& plan,
                             const Context& context);
  /// The same for all of `project_qkv`, or for its product where the plan does no more.
  template <class Kv>
  [[nodiscard]] bool execute(const QkvArgs<Kv>& args, const DensePlan& plan,
                             const Context& context);

  /// Times that cuBLASLt was asked for algorithms, and descriptions of tensors that were made: a
  /// shape that has run before adds to neither.
  [[nodiscard]] std::int64_t num_heuristics() const { return blas_.num_heuristics(); }
  [[nodiscard]] std::int64_t num_tensor_maps() const { return maps_.num_encoded(); }

 private:
  /// Where an architecture's kernels are ways to run a layer. They are not compiled for logits.
  template <class T, class Out>
  static constexpr bool kIsNative = std::same_as<T, bf16>&& std::same_as<Out, bf16>;

  [[nodiscard]] static DenseTuning tuning_for(const Context& context) {
    return Architectures::choose(context, [](auto native) { return native.kDense; });
  }

  template <class T, class Out>
  [[nodiscard]] DensePlan plan_by_rule(const DenseLayer<T, Out>& layer, std::int64_t bucket,
                                       const Context& context) {
    const int tiles = default_small_m_tiles(layer.weight.extent(0), context.num_sms);
    if (bucket <= tuning_for(context).few_rows && small_m_registers_takes(layer, tiles))
      return {DenseKernel::registers, tiles};
    const auto found = blas_.algorithms(layer, bucket, 1, sizeof(T) == 2);
    DensePlan plan{DenseKernel::blas};
    if (!found.empty()) plan.algorithm = found[0];
    return plan;
  }

  BlasLinear blas_;
  TensorMaps maps_;
  TunedPlans<DenseKey, DensePlan> plans_;
};

// Not inline: compiled_ops.cuh has the kernels of bfloat16.

template <class Architectures>
template <class T, class Out>
bool DenseEngine<Architectures>::execute(const DenseLayer<T, Out>& layer, const DensePlan& plan,
                                         const Context& context) {
  switch (plan.kernel) {
    case DenseKernel::parts:
    case DenseKernel::native_heads: return false;
    case DenseKernel::blas: return blas_.run(layer, plan.algorithm, context);
    case DenseKernel::registers:
      if constexpr (sizeof(T) == 2) return small_m_registers(layer, plan.variant, context);
      break;
    case DenseKernel::small_m:
      if constexpr (sizeof(T) == 2 && std::same_as<T, Out>)
        return small_m_linear(layer, plan.variant, context, NextStart::after_wait);
      break;
    case DenseKernel::native:
      if constexpr (kIsNative<T, Out>) {
        return Architectures::choose(context, [&](auto native) {
          return native.dense(layer, plan.variant, maps_, context);
        });
      }
      break;
  }
  return false;
}

template <class Architectures>
template <class Kv>
bool DenseEngine<Architectures>::execute(const QkvArgs<Kv>& args, const DensePlan& plan,
                                         const Context& context) {
  if (plan.kernel == DenseKernel::native_heads) {
    return Architectures::choose(context,
                                 [&](auto native) { return native.project_qkv(args, context); });
  }
  return execute(layer_of(args), plan, context);
}

/// Contract: ops/linear.hpp. `Out` is T or float; rows of x and y may have any stride and
/// alignment, but x and y must not overlap. Fast with 16-byte aligned rows.
///
/// Allocates no device memory and does not synchronise; legal during capture, if the same shape has
/// run before (cuBLASLt loads its kernels at first use).
template <Element T, Element Out, class Engine>
void linear(const LinearArgs<T, DeviceMatrix<T>, Out>& args, Engine& engine,
            const Context& context) {
  check<ShapeError>(args.weight != nullptr, "linear: no weight given");
  validate(args);
  if (args.y.empty()) return;
  if (args.weight->cols() == 0) {  // an empty sum
    if (args.accumulate) return;
    check_cuda(
        cudaMemset2DAsync(args.y.data, static_cast<std::size_t>(args.y.strides[0]) * sizeof(Out), 0,
                          static_cast<std::size_t>(args.y.extent(1)) * sizeof(Out),
                          static_cast<std::size_t>(args.y.extent(0)), context.stream),
        "cudaMemset2DAsync");
    return;
  }
  engine.run(args, context);
}

template <Element T, Element Out, class State>
void run_op(const LinearArgs<T, DeviceMatrix<T>, Out>& args, State& state) {
  linear(args, state.dense, state.context);
}

/// Contract: ops/gated_linear.hpp. Allocates no device memory and does not synchronise.
template <Element T, class State>
void run_op(const GatedLinearArgs<T, DeviceMatrix<T>, T>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "gated_linear: no weight given");
  validate(args);
  if (args.out.empty()) return;
  if constexpr (std::is_same_v<T, bf16>) {
    if (state.dense.run_fused(layer_of(args), state.context)) return;
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

/// Contract: ops/project_qkv.hpp. Allocates no device memory and does not synchronise.
template <Element T, KvFormat Kv, class State>
requires(std::same_as<T, Kv> ||
         ScaledKvFormat<Kv>) void run_op(const ProjectQkvArgs<T, DeviceMatrix<T>, Kv, T>& args,
                                         State& state) {
  check<ShapeError>(args.weight != nullptr, "project_qkv: no weight given");
  validate(args);
  if (args.qkv.empty()) return;
  if constexpr (std::is_same_v<T, bf16>) {
    const DenseKernel done = state.dense.run(args, state.context);
    if (done != DenseKernel::parts) {
      state.plan_start.waited();  // all of them let the next kernel start after their wait
      if (done != DenseKernel::native_heads) run_op(head_args(args), state);
      return;
    }
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

}  // namespace nanovllm::cuda
