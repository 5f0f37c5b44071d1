#pragma once
/// The CUDA backend whose results for a request do not depend on what else is computed.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/cuda/runtime/device_features.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/projections.hpp"
#include "nanovllm/with/batch_invariant/attention/attention.cuh"
#include "nanovllm/with/batch_invariant/hopper/tuning.hpp"
#include "nanovllm/with/batch_invariant/linear/engine.cuh"
#include "nanovllm/with/moe/ops.hpp"
#include "nanovllm/with/shards/cuda/shard_draw.cuh"
#include "nanovllm/with/shards/shard_draw.hpp"

namespace nanovllm {

/// `CudaBackend` with one order of summation in every op: a row's bits are the same alone and
/// between any other rows, in a decode and in a chunk, in a graph with padding and without, in this
/// run of the program and in the next. docs/numerics.md ("Batch-invariant mode") has the guarantee
/// and what it rests on.
///
/// What differs from `CudaBackend`:
///   dense layers   16 bits: with/batch_invariant/linear/engine.cuh; float32: as they are
///   attention      with/batch_invariant/attention/
///   residual       rounded products are added and the sum is rounded, in steps of few rows by the
///                  product's kernel, in others by `add_rms_norm`: the same bits
///   experts        by one kernel for any number of rows
///   sampler        rows are always cut in the same places
/// Norms, rotation, embedding, activation and copies treat each row alone as they are.
///
/// Needs compute capability 9.0 and code for sm_90a.
class BatchInvariantCudaBackend : public CudaBackend {
 public:
  static constexpr bool kAccumulatesResidual = true;
  /// More rows of 16 bits are for cuBLASLt, which would add before it rounds. float32 has one way.
  template <class A>
  static constexpr std::int64_t kMaxAccumulatedRows =
      sizeof(A) == 2 ? cuda::kMaxBatchInvariantSums : std::numeric_limits<std::int64_t>::max();
  static constexpr bool kSharesPrefixes = false;

  /// Throws CudaError when there is no such device, or it cannot run what keeps the order.
  explicit BatchInvariantCudaBackend(const BackendConfig& config) : CudaBackend(config) {
    check<CudaError>(keeps_order(context()), "BatchInvariantCudaBackend: CUDA device ",
                     config.device,
                     " must have compute capability 9.0, and the program must be "
                     "compiled for sm_90a");
    const cuda::DeviceGuard guard = activate();
    linear_.emplace();
  }

  void reserve(const ReserveArgs& args) {
    CudaBackend::reserve(args);
    attention_.emplace(args, context());
  }

  using CudaBackend::run;

  template <Element T, Element Out>
  void run(const LinearArgs<T, cuda::DeviceMatrix<T>, Out>& args) {
    if constexpr (sizeof(T) == 2) {
      check<ShapeError>(args.weight != nullptr, "linear: no weight given");
      validate(args);
      if (!args.y.empty() && args.weight->cols() > 0) return linear_->run(args, context());
    }
    CudaBackend::run(args);
  }

  /// By its parts.
  template <Element T>
  void run(const GatedLinearArgs<T, cuda::DeviceMatrix<T>, T>& args) {
    check<ShapeError>(args.weight != nullptr, "gated_linear: no weight given");
    validate(args);
    if (args.out.empty()) return;
    compose(args, [&](const auto& part) { run(part); });
  }

  /// By its parts.
  template <Element T>
  void run(const ProjectQkvArgs<T, cuda::DeviceMatrix<T>, T, T>& args) {
    check<ShapeError>(args.weight != nullptr, "project_qkv: no weight given");
    validate(args);
    if (args.qkv.empty()) return;
    compose(args, [&](const auto& part) { run(part); });
  }

  void run(const PlanAttentionArgs& args) {
    state_.plan_start.planned(args.has_chunk_rows);
    attention_->plan(args, context());
  }

  template <Element T, class Heads>
  void run(const DecodeAttentionArgs<T, T, Heads>& args) {
    attention_->run(args, context(), state_.plan_start.is_visible());
  }
  template <Element T, class Heads>
  void run(const VarlenAttentionArgs<T, T, Heads>& args) {
    attention_->run(args, context());
  }
  /// There are no kernels for other formats of the cache yet whose bits do not depend on the batch.
  template <Element T, ScaledKvFormat Kv, class Heads>
  void run(const DecodeAttentionArgs<T, Kv, Heads>& args) = delete;
  template <Element T, ScaledKvFormat Kv, class Heads>
  void run(const VarlenAttentionArgs<T, Kv, Heads>& args) = delete;
  /// Rounding to 8 bits begins above a number of rows.
  template <Element T, Element Out>
  void run(const LinearArgs<T, cuda::Fp8Matrix, Out>& args) = delete;
  template <Element T>
  void run(const GatedLinearArgs<T, cuda::Fp8Matrix, T>& args) = delete;
  template <Element T, KvFormat Kv>
  void run(const ProjectQkvArgs<T, cuda::Fp8Matrix, Kv, T>& args) = delete;

  template <class T, class Matrix>
  requires requires(const ExpertMlpArgs<T, Matrix>& args, cuda::OpState& state) {
    run_op_in_order(args, state);
  }
  void run(const ExpertMlpArgs<T, Matrix>& args) { run_op_in_order(args, state_); }

  void run(const SampleArgs& args) { run_with_equal_cuts(args, args.plain); }
  void run(const SurveyShardArgs& args) { run_with_equal_cuts(args, false); }
  void run(const DrawShardArgs& args) { run_with_equal_cuts(args, args.surveys.extent(1) == 0); }

  /// As in `CudaBackend`, among the ways that give equal bits. Of products that are added to the
  /// residual, few rows are timed as sums and many as they are.
  template <class A, class W, class Heads>
  void tune(const Projections<A, cuda::DeviceMatrix<W>, W, Heads>& network) {
    if constexpr (sizeof(W) == 2) {
      for (const auto& one : network.list) {
        std::vector<std::int64_t> sums, products;
        for (const std::int64_t rows : cuda::rows_up_to(one.max_rows))
          (one.accumulates && rows <= kMaxAccumulatedRows<A> ? sums : products).push_back(rows);
        linear_->template tune<W, A>(one.matrices, true, sums, context());
        linear_->template tune<W, A>(one.matrices, false, products, context());
      }
      const auto& logits = network.logits;
      if (!logits.matrices.empty())
        linear_->template tune<W, float>(logits.matrices, false, cuda::rows_up_to(logits.max_rows),
                                         context());
    } else {
      CudaBackend::tune(network);
    }
  }

  /// As `CudaBackend`'s, and that it is batch-invariant.
  [[nodiscard]] std::string describe() const {
    return CudaBackend::describe() + ", batch-invariant";
  }

 private:
  /// Runs an op of the sampler. How rows are cut follows from how many multiprocessors they leave
  /// without work: with a single one the cuts are the same for any number of rows. Tokens of plain
  /// rows do not depend on them.
  template <class Args>
  void run_with_equal_cuts(const Args& args, bool plain) {
    if (plain) return run_op(args, state_);
    struct OneMultiprocessor {
      cuda::Context& context;
      int num_sms = std::exchange(context.num_sms, 1);
      ~OneMultiprocessor() { context.num_sms = num_sms; }
    } const guard{state_.context};
    run_op(args, state_);
  }

  [[nodiscard]] static bool keeps_order(const cuda::DeviceFeatures& device) {
    return cuda::DeviceArchitectures::choose(device,
                                             [](auto native) { return native.kKeepsOrder; });
  }

  std::optional<cuda::BatchInvariantLinear> linear_;
  std::optional<cuda::BatchInvariantAttention> attention_;
};

static_assert(BackendLike<BatchInvariantCudaBackend, float>);
static_assert(BackendLike<BatchInvariantCudaBackend, bf16>);

}  // namespace nanovllm
