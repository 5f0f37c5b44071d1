#pragma once
/// What does a rank's steps: the policy's `Executor`, or one that suits its backend.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/engine/step/direct_executor.hpp"
#include "nanovllm/engine/step/graph_executor.hpp"
#include "nanovllm/engine/step/runner_policy.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_results.hpp"

namespace nanovllm {

/// One rank's steps. Its thread calls everything but `wait` and `is_done`, with its device being
/// the current one; those two belong to the thread that waits for the results.
///
/// - a constructor from `Network&`, `Backend&`, `const StepLimits&` and the number of blocks of
///   the longest sequence; both references outlive the executor. It is destroyed before them and
///   before the pool, and then waits for what is under way.
/// - `profile_run(scratch)`: takes what memory steps will take, on a pool of one block; returns the
///   bytes that `capture` will take.
/// - `capture(kv)`: prepares steps on this pool, which stays where it is.
/// - `launch(slot, inputs, kv)`: begins a step in slot 0 or 1, alternately. The step in the other
///   slot may be under way; it draws the tokens that this one does not know yet. `inputs` may
///   change as soon as this returns.
/// - `wait(slot)`: the results of the step in `slot`, valid until the slot's next launch.
/// - `run_logits(inputs, kv, out)`: computes a step without drawing; `out` is in host memory.
///
/// Where it has `is_done(slot)`, the runner asks that before it waits: whether the step in `slot`
/// is done, or there was none; throws when it has failed. Without it `launch` is taken to compute.
template <class E, class Network, class Backend, class Pool>
concept ExecutorLike =
    std::constructible_from<E, Network&, Backend&, const StepLimits&, std::int64_t> &&
    requires(E& executor, Pool& kv, const StepInputs& inputs, MatrixView<float> out, int slot) {
  { executor.profile_run(kv) } -> std::convertible_to<std::size_t>;
  executor.capture(kv);
  executor.launch(slot, inputs, kv);
  { executor.wait(slot) } -> std::convertible_to<StepResults>;
  executor.run_logits(inputs, kv, out);
};

/// An executor of which the host can ask whether a step is done.
template <class E>
concept AsyncExecutorLike = requires(const E& executor, int slot) {
  { executor.is_done(slot) } -> std::convertible_to<bool>;
};

/// An executor that computes deferred steps: `launch` leaves their draw to `sample(slot, inputs)`,
/// which is called at most once, before the next launch. Without it the engine refuses requests
/// that ask for edits of their logits.
template <class E>
concept EditingExecutorLike = requires(E& executor, const SampleInputs& inputs, int slot) {
  executor.sample(slot, inputs);
};

namespace detail {

template <class Policy, class Network, class Backend, class Pool>
struct ExecutorOf {
  using Functor = typename LogitsFunctorOf<Policy>::type;
  using Draws = typename DrawsOf<Policy>::type;
  using type = std::conditional_t<Backend::kAsynchronous,
                                  GraphExecutor<Network, Backend, Pool, Functor, Draws>,
                                  DirectExecutor<Network, Backend, Pool, Functor, Draws>>;
};
template <class Policy, class Network, class Backend, class Pool>
requires requires { typename Policy::template Executor<Network, Backend, Pool>; }
struct ExecutorOf<Policy, Network, Backend, Pool> {
  using type = typename Policy::template Executor<Network, Backend, Pool>;
};

}  // namespace detail

/// `Policy::Executor<Network, Backend, Pool>` where the policy has one; else `GraphExecutor` for a
/// backend that works behind the host's back, and `DirectExecutor` for others.
template <class Policy, class Network, class Backend, class Pool>
using ExecutorOf = typename detail::ExecutorOf<Policy, Network, Backend, Pool>::type;

}  // namespace nanovllm
