#pragma once
/// `apply_functor` on CUDA: a user's function on every logit. Contract: ops/logits_functor.hpp.
///
/// A thread for each logit; blocks of rows that did not ask end at once. Bytes moved: 8 · vocab a
/// row that asked.
/// Measured: not at all: no benchmark has a functor.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/logits_functor.hpp"

namespace nanovllm::cuda {

inline constexpr int kApplyFunctorThreads = 256;

/// Grid (parts of the vocabulary, rows).
template <class F>
__global__ void __launch_bounds__(kApplyFunctorThreads)
    apply_functor_kernel(const ApplyFunctorArgs<F> args) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t row = blockIdx.y;
  if (args.arguments.data[row] == 0) return;
  const std::int64_t token = std::int64_t{blockIdx.x} * kApplyFunctorThreads + threadIdx.x;
  if (token >= args.logits.extent(1)) return;
  float* const logit = args.logits.at(row, token);
  *logit = args.functor(*logit, static_cast<TokenId>(token), args.context(row));
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <LogitsFunctorLike F>
void apply_functor(const ApplyFunctorArgs<F>& args, const Context& context) {
  validate(args);
  const std::int64_t rows = args.logits.extent(0), vocab = args.logits.extent(1);
  if (args.logits.empty()) return;
  check<ShapeError>(rows <= 65535, "apply_functor: at most 65535 rows, got ", rows);
  launch(apply_functor_kernel<F>,
         {.grid = dim3(static_cast<unsigned>(ceil_div(vocab, std::int64_t{kApplyFunctorThreads})),
                       static_cast<unsigned>(rows)),
          .block = dim3(kApplyFunctorThreads)},
         context, args);
}

template <LogitsFunctorLike F, class State>
void run_op(const ApplyFunctorArgs<F>& args, State& state) {
  apply_functor(args, state.context);
}

}  // namespace nanovllm::cuda
