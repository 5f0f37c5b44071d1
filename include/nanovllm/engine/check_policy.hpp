#pragma once
/// Whether a policy is one, before anything of an engine is made of it.
///
/// Each function tells of one fault, the first, and says nothing where it depends on what another
/// has told of. `CheckedPolicy` makes the compiler go on with the default policy then, so that the
/// message is the only one.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/core/no_guesses.hpp"
#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/engine/kv_identity.hpp"
#include "nanovllm/engine/policy_checks.hpp"
#include "nanovllm/engine/policy_names.hpp"
#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/step/runner_policy.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/kv/prefix/prefix_cache.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/backend_check.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/ops/logits_functor.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/sampling/logits_processor.hpp"
#include "nanovllm/sched/outside.hpp"
#include "nanovllm/sched/policy/preemption.hpp"
#include "nanovllm/sched/policy/scheduling_policy.hpp"

namespace nanovllm {

namespace detail {

// Slots that a policy need not have: whether there is anything of the name.
struct OptionalSlots {
  static int Weight, Activation, KvElement, Communicator, LogitsFunctor, Draws, Executor, Blocks,
      Guesses;
};
template <template <class Network, class Backend> class>
struct IsSampler {};
template <class D>  // one that is only declared is of an engine that is linked
concept HasSampler = !Complete<D> || requires {
  typename IsSampler<D::template Sampler>;
};
template <class P>
using OptionalProbe = NameProbe<P, OptionalSlots>;
#define NANOVLLM_OPTIONAL_SLOT(slot)     \
  template <class P>                     \
  concept HasTypeOrNo##slot = requires { \
    typename P::slot;                    \
  }                                      \
  || requires { OptionalProbe<P>::slot; };
NANOVLLM_OPTIONAL_SLOT(Weight)
NANOVLLM_OPTIONAL_SLOT(Activation)
NANOVLLM_OPTIONAL_SLOT(KvElement)
NANOVLLM_OPTIONAL_SLOT(LogitsFunctor)
NANOVLLM_OPTIONAL_SLOT(Communicator)
NANOVLLM_OPTIONAL_SLOT(Draws)
NANOVLLM_OPTIONAL_SLOT(Guesses)
#undef NANOVLLM_OPTIONAL_SLOT

template <class P>
concept HasElements = requires {
  typename ElementsOf<P>;
};

template <class P>
concept HasKv = std::same_as<std::remove_cvref_t<decltype(P::kv)>, KvConfig> && requires {
  typename std::integral_constant<int, P::kv.block_size>;
  typename std::bool_constant<P::kv.prefix_caching>;
};

template <class P>
concept HasPrefixCache = HasKv<P> &&(P::kv.block_size >= 1) && requires {
  typename P::template PrefixCache<P::kv.block_size>;
  requires Complete<typename P::template PrefixCache<P::kv.block_size>>;
  requires PrefixCacheLike<typename P::template PrefixCache<P::kv.block_size>>;
};

template <class P>
concept HasOwnSize = P::template PrefixCache<P::kv.block_size>::block_size() == P::kv.block_size;

/// All that its block manager is made of.
template <class P>
concept HasBlocks = HasPrefixCache<P> && HasOwnSize<P> && TiersLike<typename P::Tiers> && requires {
  typename BlocksOf<P>;
};

template <class T, class Blocks>
concept MakesBlocks = requires(const TierSetup& setup, KvIdentity (*identity)()) {
  { T::template make_blocks<Blocks>(std::int32_t{}, std::int32_t{}, true) } -> std::same_as<Blocks>;
  { T::template observer<Blocks>(setup, identity) } -> std::convertible_to<ObserverMaker<Blocks>>;
};

template <class R>
concept RanksLike = requires(const RunnerConfig& config) {
  typename R::Threads;
  typename R::Peers;
  typename R::HostCommunicator;
  R::validate(config);
};

/// The first of a list of processors that is none; void if all are.
template <class List>
struct WrongProcessor {
  using type = void;
};
template <class P, class... Rest>
struct WrongProcessor<LogitsProcessors<P, Rest...>> {
  using type = P;
};
template <class P, class... Rest>
requires(Complete<P>&& LogitsProcessorLike<P>) struct WrongProcessor<LogitsProcessors<P, Rest...>>
    : WrongProcessor<LogitsProcessors<Rest...>> {
};

template <class L>
concept ProcessorsLike = requires(const LogitsProcessorSetup& setup) {
  { L::kReadsTokens } -> std::convertible_to<bool>;
  { L::make(setup) } -> std::convertible_to<std::unique_ptr<SequenceProcessors>>;
  { L::template kHas<MinTokensProcessor> } -> std::convertible_to<bool>;
};

/// A type that this program neither has nor links. What CUDA's half does is compiled there, and
/// `check_policy_runner` tells of the CPU's.
template <class T>
#if defined(NANOVLLM_CUDA_POLICIES) && !defined(__CUDACC__)
concept IsOnlyDeclared = false;
#else
concept IsOnlyDeclared = std::is_class_v<T> && !Complete<T> && !std::same_as<T, CpuBackend>;
#endif

template <class C, class Backend>
concept IsOfOtherMemory = Complete<C> && Complete<Backend> && requires {
  requires C::kOnDevice && !Backend::kAsynchronous;
};

// Each with no question that the standard library has no answer to, for want of a body.
template <class S, class Blocks>
concept Schedules = Complete<S> && SchedulingPolicyLike<S, Blocks>;
template <class T>
concept Preempts = Complete<T> && PreemptionLike<T>;
template <class F>
concept EditsLogits = Complete<F> && LogitsFunctorLike<F>;
template <class C>
concept Communicates = !Complete<C> || CommunicatorLike<C>;

/// That what draws can call the policy's functor; an executor of its own may draw without it.
template <class P>
concept RunsFunctor =
    std::same_as<typename LogitsFunctorOf<P>::type, NoLogitsFunctor> ||
    !Complete<typename P::Backend> ||
    RunsOp<typename P::Backend, ApplyFunctorArgs<typename LogitsFunctorOf<P>::type>> || requires {
  typename IsTemplate<P::template Executor>;
};

}  // namespace detail

#define NANOVLLM_IS_NO_TYPE(slot) \
  "nanovllm: the policy's " slot " must be a public type; see docs/policies.md"

/// Whether the slots of `P` have what they must; of the backend, that it is there.
///
/// One function, as `check_backend`: a compiler says by which calls it came to a fault.
template <class P>
consteval bool check_policy_slots() {
  if constexpr (!detail::HasSlots<P>) {
    return false;  // of which check_policy_names tells
  } else if constexpr (!Element<typename P::Element>) {
    static_assert(kFits<typename P::Element>,
                  "nanovllm: the policy's Element must be float, nanovllm::bf16 or nanovllm::half; "
                  "other formats are for Weight and KvElement, see docs/policies.md");
  } else if constexpr (!detail::HasTypeOrNoWeight<P>) {
    static_assert(kFits<P>, NANOVLLM_IS_NO_TYPE("Weight"));
  } else if constexpr (!WeightFormat<typename detail::WeightSlot<P>::type>) {
    static_assert(kFits<typename P::Weight>,
                  "nanovllm: the policy's Weight must be float, nanovllm::bf16, nanovllm::half, or "
                  "a format with Element, Matrix<Backend, role>, kName and kBits; see "
                  "ops/weight_format.hpp and docs/policies.md");
  } else if constexpr (!detail::HasTypeOrNoActivation<P>) {
    static_assert(kFits<P>, NANOVLLM_IS_NO_TYPE("Activation"));
  } else if constexpr (!Element<typename detail::ActivationSlot<P>::type>) {
    static_assert(kFits<typename P::Activation>,
                  "nanovllm: the policy's Activation must be float, nanovllm::bf16 or "
                  "nanovllm::half; see docs/policies.md");
  } else if constexpr (!detail::HasTypeOrNoKvElement<P>) {
    static_assert(kFits<P>, NANOVLLM_IS_NO_TYPE("KvElement"));
  } else if constexpr (!KvFormat<typename detail::KvElementSlot<P>::type>) {
    static_assert(
        kFits<typename P::KvElement>,
        "nanovllm: the policy's KvElement must be float, nanovllm::bf16, nanovllm::half, or a "
        "format with Stored, kName, store and load; see ops/kv_format.hpp and docs/policies.md");
  } else if constexpr (!detail::HasKv<P>) {
    static_assert(
        kFits<P>,
        "nanovllm: the policy's kv must be a 'static constexpr nanovllm::KvConfig', as in 'static "
        "constexpr nanovllm::KvConfig kv{.block_size = 32};'; see docs/policies.md");
  } else if constexpr (P::kv.block_size < 1) {
    static_assert(kFits<std::integral_constant<int, P::kv.block_size>>,
                  "nanovllm: the policy's kv.block_size must be at least 1 token");
  } else if constexpr (!requires { typename P::template PrefixCache<P::kv.block_size>; }) {
    static_assert(kFits<P>,
                  "nanovllm: the policy's PrefixCache must be a template of the block size, as in "
                  "'template <int kBlockSize> using PrefixCache = "
                  "nanovllm::HashPrefixCache<kBlockSize>;'; see docs/policies.md");
  } else if constexpr (!detail::HasPrefixCache<P>) {
    static_assert(
        kFits<typename P::template PrefixCache<P::kv.block_size>>,
        "nanovllm: the policy's PrefixCache must be movable, made from a number of blocks, with "
        "block_size, match(tokens, salt), insert(block_table, tokens, begin, end, salt), contains, "
        "lock, unlock, evict, size, version and check_invariants as kv/prefix/prefix_cache.hpp "
        "states them, of which contains, lock, unlock and evict are noexcept; the salt is a "
        "CacheSalt, and blocks of two salts must never be shared");
  } else if constexpr (!detail::HasOwnSize<P>) {
    static_assert(kFits<typename P::template PrefixCache<P::kv.block_size>>,
                  "nanovllm: the policy's PrefixCache<kv.block_size> must have blocks of "
                  "kv.block_size tokens");
  } else if constexpr (!detail::HasBlocks<P>) {
    static_assert(kFits<typename P::Tiers>,
                  "nanovllm: the policy's Tiers must have Pools, validate(config), "
                  "num_outside(config, pool), make_blocks, observer and the block manager "
                  "Blocks<block_size, Cache>; see engine/tiers/no_tiers.hpp and docs/policies.md");
  } else if constexpr (!detail::MakesBlocks<typename P::Tiers, BlocksOf<P>>) {
    static_assert(kFits<typename P::Tiers>,
                  "nanovllm: the policy's Tiers must have make_blocks<Blocks>(num_blocks, "
                  "num_outside, enable_prefix_caching), which returns Blocks, and "
                  "observer<Blocks>(setup, identity), which returns an ObserverMaker<Blocks>; see "
                  "engine/tiers/no_tiers.hpp and docs/policies.md");
  } else if constexpr (!detail::Schedules<typename P::Scheduling, BlocksOf<P>>) {
    static_assert(
        kFits<typename P::Scheduling>,
        "nanovllm: the policy's Scheduling must be default-constructible and have a static or "
        "const member plan(const SchedulerView&, const Blocks&, const BatchConfig&) that returns a "
        "StepPlan; see sched/policy/scheduling_policy.hpp and docs/policies.md");
  } else if constexpr (!detail::Preempts<typename P::Preemption>) {
    static_assert(kFits<typename P::Preemption>,
                  "nanovllm: the policy's Preemption must be default-constructible and have a "
                  "static choose(std::span<Sequence* const>) that returns std::size_t, and a "
                  "noexcept vacate(const Sequence&, std::vector<BlockCopy>&); see "
                  "sched/policy/preemption.hpp and docs/policies.md");
  } else if constexpr (SwapsSequences<typename P::Preemption> &&
                       !Outside<BlocksOf<P>>::kKeepsSequences) {
    static_assert(kFits<typename P::Tiers>,
                  "nanovllm: the policy's Preemption swaps sequences to host memory, so its Tiers "
                  "must be HostTier or DiskTier: 'using Tiers = nanovllm::HostTier;'");
  } else if constexpr (!std::is_void_v<
                           typename detail::WrongProcessor<typename P::LogitsProcessors>::type>) {
    static_assert(
        kFits<typename detail::WrongProcessor<typename P::LogitsProcessors>::type>,
        "nanovllm: a logits processor must be copyable, be made from a 'const "
        "LogitsProcessorSetup&' and have accept(TokenId), process(std::int32_t, TokenMask&) const "
        "and a static kReadsTokens; see sampling/logits_processor.hpp and docs/policies.md");
  } else if constexpr (!detail::ProcessorsLike<typename P::LogitsProcessors>) {
    static_assert(kFits<typename P::LogitsProcessors>,
                  "nanovllm: the policy's LogitsProcessors must be nanovllm::LogitsProcessors<...> "
                  "with each processor, as in nanovllm::StandardLogitsProcessors<MyProcessor>; see "
                  "sampling/logits_processor.hpp and docs/policies.md");
  } else if constexpr (!detail::HasTypeOrNoLogitsFunctor<P>) {
    static_assert(kFits<P>, NANOVLLM_IS_NO_TYPE("LogitsFunctor"));
  } else if constexpr (!detail::EditsLogits<typename LogitsFunctorOf<P>::type>) {
    static_assert(kFits<typename P::LogitsFunctor>,
                  "nanovllm: the policy's LogitsFunctor must be plain data with a call operator, "
                  "'NANOVLLM_HD float operator()(float, TokenId, const FunctorContext&) const'; "
                  "see ops/logits_functor.hpp");
  } else if constexpr (!detail::RunsFunctor<P>) {
    static_assert(kFits<typename P::LogitsFunctor>,
                  "nanovllm: the policy has a LogitsFunctor, but its Backend has no 'run' for "
                  "'ApplyFunctorArgs'; see ops/logits_functor.hpp");
  } else if constexpr (!detail::RanksLike<typename P::Ranks>) {
    static_assert(kFits<typename P::Ranks>,
                  "nanovllm: the policy's Ranks must have the types Threads, Peers and "
                  "HostCommunicator, and validate(const RunnerConfig&), as OneRank and "
                  "ThreadRanks; see engine/runner/one_rank.hpp and docs/policies.md");
  } else if constexpr (!detail::HasTypeOrNoCommunicator<P>) {
    static_assert(kFits<P>, NANOVLLM_IS_NO_TYPE("Communicator"));
  } else if constexpr (detail::IsOnlyDeclared<typename P::Backend>) {
    static_assert(kFits<typename P::Backend>,
                  "nanovllm: the policy's Backend is declared here and not defined: CudaBackend is "
                  "there in files that nvcc compiles, and in others with the target "
                  "nanovllm::cuda_engines; see docs/cuda.md");
  } else if constexpr (detail::IsOnlyDeclared<CommunicatorOf<P>>) {
    static_assert(kFits<CommunicatorOf<P>>,
                  "nanovllm: the policy's Communicator is declared here and not defined: those of "
                  "CudaPolicy are for GPUs, in files that nvcc compiles; 'using Communicator = "
                  "nanovllm::ThreadGroup;' is for ranks on the CPU");
  } else if constexpr (!detail::Communicates<CommunicatorOf<P>>) {
    static_assert(kFits<CommunicatorOf<P>>,
                  "nanovllm: the policy's Communicator must be movable and offer make(int), "
                  "rank(), size(), all_reduce(matrix), all_gather_columns(part, whole) and "
                  "abort(); see parallel/communicator.hpp and docs/policies.md");
  } else if constexpr (requires { P::Draws; } || !detail::HasTypeOrNoDraws<P>) {
    static_assert(kFits<P>, NANOVLLM_IS_NO_TYPE("Draws"));
  } else if constexpr (detail::IsOnlyDeclared<typename DrawsOf<P>::type>) {
    static_assert(kFits<typename DrawsOf<P>::type>,
                  "nanovllm: the policy's Draws is declared here and not defined; the header that "
                  "has it is missing");
  } else if constexpr (requires { P::Guesses; } || !detail::HasTypeOrNoGuesses<P>) {
    static_assert(kFits<P>, NANOVLLM_IS_NO_TYPE("Guesses"));
  } else if constexpr (detail::IsOnlyDeclared<typename GuessesOf<P>::type>) {
    static_assert(kFits<typename GuessesOf<P>::type>,
                  "nanovllm: the policy's Guesses is declared here and not defined; include the "
                  "header that defines it before the engine is named");
  } else if constexpr (!GuessesLike<typename GuessesOf<P>::type>) {
    static_assert(kFits<typename GuessesOf<P>::type>,
                  "nanovllm: the policy's Guesses must have static validate(config), "
                  "num_logits(config, batch), which returns std::int32_t, and observer(setup), "
                  "which returns a std::unique_ptr<StepObserver>; see engine/core/no_guesses.hpp "
                  "and docs/policies.md");
  } else if constexpr (!detail::HasSampler<typename DrawsOf<P>::type>) {
    static_assert(kFits<typename DrawsOf<P>::type>,
                  "nanovllm: the policy's Draws must have 'template <class Network, class Backend> "
                  "using Sampler', as WholeRows; see engine/draw/step_sampler.hpp");
  } else if constexpr (
      !requires { detail::OptionalProbe<P>::Executor; } &&
      !requires { typename detail::IsTemplate<P::template Executor>; }) {
    static_assert(kFits<P>,
                  "nanovllm: the policy's Executor must be a public template of network, backend "
                  "and pool, as in 'template <class Network, class Backend, class Pool> using "
                  "Executor = MyExecutor<Network, Backend, Pool>;'; see docs/policies.md");
  } else if constexpr (detail::IsOfOtherMemory<CommunicatorOf<P>, typename P::Backend>) {
    static_assert(
        kFits<CommunicatorOf<P>>,
        "nanovllm: the policy's Communicator sums in the memory of GPUs, and its Backend computes "
        "in the host's; 'using Communicator = nanovllm::ThreadGroup;' is for ranks on the CPU");
  } else {
    return true;
  }
  return false;
}

#undef NANOVLLM_IS_NO_TYPE

/// Whether the policy's slot `Executor`, a template, gives an executor for the ranks of this model;
/// true where there is no slot. `Slot` has the two types. A compile error names what is missing.
template <class Slot>
consteval bool check_policy_executor() {
  using Model = typename Slot::Model;
  using Policy = typename Slot::Policy;
  if constexpr (!requires { typename detail::IsTemplate<Policy::template Executor>; }) {
    return true;
  } else {
    using Elements = ElementsOf<Policy>;
    using Backend = typename Policy::Backend;
    using Network = typename Model::template Network<Elements, Backend, CommunicatorOf<Policy>>;
    using Pool =
        typename Policy::Tiers::Pools::template Pool<typename Elements::KvElement, Backend>;
    using E = typename Policy::template Executor<Network, Backend, Pool>;
    if constexpr (!std::constructible_from<E, Network&, Backend&, const StepLimits&,
                                           std::int64_t>) {
      static_assert(kFits<E>,
                    "nanovllm: the policy's Executor must be made from (network, backend, limits, "
                    "max_blocks); see engine/step/executor.hpp and docs/policies.md");
    } else if constexpr (!requires(E & e, Pool & kv) {
                           { e.profile_run(kv) } -> std::convertible_to<std::size_t>;
                           e.capture(kv);
                         }) {
      static_assert(kFits<E>,
                    "nanovllm: the policy's Executor must have profile_run(pool), which returns "
                    "bytes, and capture(pool); see engine/step/executor.hpp and docs/policies.md");
    } else if constexpr (!requires(E & e, Pool & kv, const StepInputs& inputs, int slot) {
                           e.launch(slot, inputs, kv);
                           { e.wait(slot) } -> std::convertible_to<StepResults>;
                         }) {
      static_assert(kFits<E>,
                    "nanovllm: the policy's Executor must have launch(slot, inputs, pool) and "
                    "wait(slot), which returns StepResults; see engine/step/executor.hpp and "
                    "docs/policies.md");
    } else if constexpr (!requires(E & e, Pool & kv, const StepInputs& inputs,
                                   MatrixView<float> out) { e.run_logits(inputs, kv, out); }) {
      static_assert(kFits<E>,
                    "nanovllm: the policy's Executor must have run_logits(inputs, pool, out); see "
                    "engine/step/executor.hpp and docs/policies.md");
    } else {
      return true;
    }
    return false;
  }
}

// No backend where the functions above have told of something, or what runs on it is linked.
template <class P>
requires(detail::HasSlots<P>&& detail::HasElements<P> &&
         (detail::Complete<typename P::Backend> ||
          !std::is_class_v<typename P::Backend>)) struct BackendSlot<P> {
  using Backend = typename P::Backend;
  using Elements = ElementsOf<P>;
};
}  // namespace nanovllm
