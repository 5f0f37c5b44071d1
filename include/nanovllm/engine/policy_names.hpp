#pragma once
/// Names in a policy that are almost those of slots. C++20 cannot list the members of a class, but
/// it can ask for one by its name, so these are asked for: of each slot its name without one of the
/// letters, with two of them swapped, with one of them twice, in another case, and what else it is
/// called here or there. A closed check would need a list that each policy states of its own slots;
/// sizes and structured bindings show data members alone, and never types.

#include <concepts>
#include <type_traits>

#include "nanovllm/core/type_name.hpp"

// clang-format off
#define NANOVLLM_NEAR_ELEMENT(use) \
  use(lement) use(Eement) use(Elment) use(Eleent) use(Elemnt) use(Elemet) use(Elemen) \
  use(lEement) use(Eelment) use(Elmeent) use(Eleemnt) use(Elemnet) use(Elemetn) use(EElement) \
  use(Ellement) use(Eleement) use(Elemment) use(Elemeent) use(Elemennt) use(Elementt) \
  use(element) use(Elements) use(DType) use(Dtype) use(dtype) use(ElementType)
#define NANOVLLM_NEAR_WEIGHT(use) \
  use(eight) use(Wight) use(Weght) use(Weiht) use(Weigt) use(Weigh) use(eWight) use(Wieght) \
  use(Wegiht) use(Weihgt) use(Weigth) use(WWeight) use(Weeight) use(Weiight) use(Weigght) \
  use(Weighht) use(Weightt) use(weight) use(Weights) use(WeightElement) use(WeightType) \
  use(WeightFormat) use(weights)
#define NANOVLLM_NEAR_ACTIVATION(use) \
  use(ctivation) use(Ativation) use(Acivation) use(Actvation) use(Actiation) use(Activtion) \
  use(Activaion) use(Activaton) use(Activatin) use(Activatio) use(cAtivation) use(Atcivation) \
  use(Acitvation) use(Actviation) use(Actiavtion) use(Activtaion) use(Activaiton) use(Activatoin) \
  use(Activatino) use(AActivation) use(Acctivation) use(Acttivation) use(Actiivation) \
  use(Activvation) use(Activaation) use(Activattion) use(Activatiion) use(Activatioon) \
  use(Activationn) use(activation) use(Activations) use(ActivationElement) use(ActivationType)
#define NANOVLLM_NEAR_KV_ELEMENT(use) \
  use(vElement) use(KElement) use(Kvlement) use(KvEement) use(KvElment) use(KvEleent) \
  use(KvElemnt) use(KvElemet) use(KvElemen) use(vKElement) use(KEvlement) use(KvlEement) \
  use(KvEelment) use(KvElmeent) use(KvEleemnt) use(KvElemnet) use(KvElemetn) use(KKvElement) \
  use(KvvElement) use(KvEElement) use(KvEllement) use(KvEleement) use(KvElemment) use(KvElemeent) \
  use(KvElemennt) use(KvElementt) use(kvElement) use(kv_element) use(kvelement) use(KVElement) \
  use(KvElements) use(KvFormat) use(KvType) use(KvDType) use(KvDtype) use(KvCacheDType)
#define NANOVLLM_NEAR_BACKEND(use) \
  use(ackend) use(Bckend) use(Bakend) use(Bacend) use(Backnd) use(Backed) use(Backen) \
  use(aBckend) use(Bcakend) use(Bakcend) use(Baceknd) use(Backned) use(Backedn) use(BBackend) \
  use(Baackend) use(Bacckend) use(Backkend) use(Backeend) use(Backennd) use(Backendd) \
  use(backend) use(Backends) use(BackEnd) use(Device)
#define NANOVLLM_NEAR_RANKS(use) \
  use(anks) use(Rnks) use(Raks) use(Rans) use(Rank) use(aRnks) use(Rnaks) use(Rakns) use(Ransk) \
  use(RRanks) use(Raanks) use(Rannks) use(Rankks) use(Rankss) use(ranks) use(RankPolicy) \
  use(TensorParallel)
#define NANOVLLM_NEAR_COMMUNICATOR(use) \
  use(ommunicator) use(Cmmunicator) use(Comunicator) use(Commnicator) use(Commuicator) \
  use(Communcator) use(Communiator) use(Communictor) use(Communicaor) use(Communicatr) \
  use(Communicato) use(oCmmunicator) use(Cmomunicator) use(Comumnicator) use(Commnuicator) \
  use(Commuincator) use(Communciator) use(Communiactor) use(Communictaor) use(Communicaotr) \
  use(Communicatro) use(CCommunicator) use(Coommunicator) use(Commmunicator) use(Commuunicator) \
  use(Communnicator) use(Communiicator) use(Communiccator) use(Communicaator) use(Communicattor) \
  use(Communicatoor) use(Communicatorr) use(communicator) use(Communicators) use(Communication) \
  use(Comm) use(Communicater)
#define NANOVLLM_NEAR_SCHEDULING(use) \
  use(cheduling) use(Sheduling) use(Sceduling) use(Schduling) use(Scheuling) use(Schedling) \
  use(Scheduing) use(Schedulng) use(Schedulig) use(Schedulin) use(cSheduling) use(Shceduling) \
  use(Scehduling) use(Schdeuling) use(Scheudling) use(Schedluing) use(Scheduilng) use(Schedulnig) \
  use(Schedulign) use(SScheduling) use(Sccheduling) use(Schheduling) use(Scheeduling) \
  use(Schedduling) use(Scheduuling) use(Schedulling) use(Scheduliing) use(Schedulinng) \
  use(Schedulingg) use(scheduling) use(Scheduler) use(Schedule) use(SchedulingPolicy) \
  use(SchedulerPolicy) use(Schedulings)
#define NANOVLLM_NEAR_PREEMPTION(use) \
  use(reemption) use(Peemption) use(Premption) use(Preeption) use(Preemtion) use(Preempion) \
  use(Preempton) use(Preemptin) use(Preemptio) use(rPeemption) use(Peremption) use(Premeption) \
  use(Preepmtion) use(Preemtpion) use(Preempiton) use(Preemptoin) use(Preemptino) \
  use(PPreemption) use(Prreemption) use(Preeemption) use(Preemmption) use(Preempption) \
  use(Preempttion) use(Preemptiion) use(Preemptioon) use(Preemptionn) use(preemption) \
  use(Preemptions) use(PreemptionPolicy) use(PreEmption) use(Preempt) use(Eviction)
#define NANOVLLM_NEAR_PREFIX_CACHE(use) \
  use(refixCache) use(PefixCache) use(PrfixCache) use(PreixCache) use(PrefxCache) use(PrefiCache) \
  use(Prefixache) use(PrefixCche) use(PrefixCahe) use(PrefixCace) use(PrefixCach) \
  use(rPefixCache) use(PerfixCache) use(PrfeixCache) use(PreifxCache) use(PrefxiCache) \
  use(PrefiCxache) use(PrefixaCche) use(PrefixCcahe) use(PrefixCahce) use(PrefixCaceh) \
  use(PPrefixCache) use(PrrefixCache) use(PreefixCache) use(PreffixCache) use(PrefiixCache) \
  use(PrefixxCache) use(PrefixCCache) use(PrefixCaache) use(PrefixCacche) use(PrefixCachhe) \
  use(PrefixCachee) use(prefixCache) use(prefix_cache) use(prefixcache) use(PrefixCaches) \
  use(PrefixCaching) use(Prefixcache) use(PrefixCachePolicy) use(prefix_caching)
#define NANOVLLM_NEAR_TIERS(use) \
  use(iers) use(Ters) use(Tirs) use(Ties) use(Tier) use(iTers) use(Teirs) use(Tires) use(Tiesr) \
  use(TTiers) use(Tiiers) use(Tieers) use(Tierrs) use(Tierss) use(tiers) use(TierPolicy) \
  use(KvTiers)
#define NANOVLLM_NEAR_LOGITS_PROCESSORS(use) \
  use(ogitsProcessors) use(LgitsProcessors) use(LoitsProcessors) use(LogtsProcessors) \
  use(LogisProcessors) use(LogitProcessors) use(Logitsrocessors) use(LogitsPocessors) \
  use(LogitsPrcessors) use(LogitsProessors) use(LogitsProcssors) use(LogitsProcesors) \
  use(LogitsProcessrs) use(LogitsProcessos) use(LogitsProcessor) use(oLgitsProcessors) \
  use(LgoitsProcessors) use(LoigtsProcessors) use(LogtisProcessors) use(LogistProcessors) \
  use(LogitPsrocessors) use(LogitsrPocessors) use(LogitsPorcessors) use(LogitsPrcoessors) \
  use(LogitsProecssors) use(LogitsProcsesors) use(LogitsProcesosrs) use(LogitsProcessros) \
  use(LogitsProcessosr) use(LLogitsProcessors) use(LoogitsProcessors) use(LoggitsProcessors) \
  use(LogiitsProcessors) use(LogittsProcessors) use(LogitssProcessors) use(LogitsPProcessors) \
  use(LogitsPrrocessors) use(LogitsProocessors) use(LogitsProccessors) use(LogitsProceessors) \
  use(LogitsProcesssors) use(LogitsProcessoors) use(LogitsProcessorrs) use(LogitsProcessorss) \
  use(logitsProcessors) use(logits_processors) use(logitsprocessors) use(LogitProcessor) \
  use(Processors) use(Logitsprocessors)
#define NANOVLLM_NEAR_LOGITS_FUNCTOR(use) \
  use(ogitsFunctor) use(LgitsFunctor) use(LoitsFunctor) use(LogtsFunctor) use(LogisFunctor) \
  use(LogitFunctor) use(Logitsunctor) use(LogitsFnctor) use(LogitsFuctor) use(LogitsFuntor) \
  use(LogitsFuncor) use(LogitsFunctr) use(LogitsFuncto) use(oLgitsFunctor) use(LgoitsFunctor) \
  use(LoigtsFunctor) use(LogtisFunctor) use(LogistFunctor) use(LogitFsunctor) use(LogitsuFnctor) \
  use(LogitsFnuctor) use(LogitsFucntor) use(LogitsFuntcor) use(LogitsFuncotr) use(LogitsFunctro) \
  use(LLogitsFunctor) use(LoogitsFunctor) use(LoggitsFunctor) use(LogiitsFunctor) \
  use(LogittsFunctor) use(LogitssFunctor) use(LogitsFFunctor) use(LogitsFuunctor) \
  use(LogitsFunnctor) use(LogitsFuncctor) use(LogitsFuncttor) use(LogitsFunctoor) \
  use(LogitsFunctorr) use(logitsFunctor) use(logits_functor) use(logitsfunctor) \
  use(LogitsFunctors) use(LogitsFunction) use(LogitFunctors) use(Logitsfunctor) \
  use(LogitsFuncter)
#define NANOVLLM_NEAR_DRAWS(use) \
  use(raws) use(Daws) use(Drws) use(Dras) use(Draw) use(rDaws) use(Darws) use(Drwas) use(Drasw) \
  use(DDraws) use(Drraws) use(Draaws) use(Drawws) use(Drawss) use(draws) use(DrawPolicy) \
  use(VocabDraws) use(StepSampler) use(Sampler)
#define NANOVLLM_NEAR_GUESSES(use) \
  use(uesses) use(Gesses) use(Gusses) use(Gueses) use(Guesss) use(Guesse) use(uGesses) \
  use(Geusses) use(Guseses) use(Guesess) use(Guessse) use(GGuesses) use(Guuesses) use(Gueesses) \
  use(Guessses) use(Guessees) use(Guessess) use(guesses) use(GuessPolicy) \
 
#define NANOVLLM_NEAR_EXECUTOR(use) \
  use(xecutor) use(Eecutor) use(Excutor) use(Exeutor) use(Exector) use(Execuor) use(Executr) \
  use(Executo) use(xEecutor) use(Eexcutor) use(Exceutor) use(Exeuctor) use(Exectuor) \
  use(Execuotr) use(Executro) use(EExecutor) use(Exxecutor) use(Exeecutor) use(Execcutor) \
  use(Execuutor) use(Executtor) use(Executoor) use(Executorr) use(executor) use(Executors) \
  use(Executer) use(Execution) use(StepExecutor)
#define NANOVLLM_NEAR_KV(use) \
  use(Kv) use(KV) use(kvs) use(kv_config) use(KvConfig) use(kv_cache) use(KvCache) use(KVCache) \
  use(BlockSize) use(BlockSiz) use(block_size) use(kBlockSize) use(blocksize) use(block_siz)
#define NANOVLLM_FOR_EACH_NEAR(use) \
  use(Element, NANOVLLM_NEAR_ELEMENT) \
  use(Weight, NANOVLLM_NEAR_WEIGHT) \
  use(Activation, NANOVLLM_NEAR_ACTIVATION) \
  use(KvElement, NANOVLLM_NEAR_KV_ELEMENT) \
  use(Backend, NANOVLLM_NEAR_BACKEND) \
  use(Ranks, NANOVLLM_NEAR_RANKS) \
  use(Communicator, NANOVLLM_NEAR_COMMUNICATOR) \
  use(Scheduling, NANOVLLM_NEAR_SCHEDULING) \
  use(Preemption, NANOVLLM_NEAR_PREEMPTION) \
  use(PrefixCache, NANOVLLM_NEAR_PREFIX_CACHE) \
  use(Tiers, NANOVLLM_NEAR_TIERS) \
  use(LogitsProcessors, NANOVLLM_NEAR_LOGITS_PROCESSORS) \
  use(LogitsFunctor, NANOVLLM_NEAR_LOGITS_FUNCTOR) \
  use(Draws, NANOVLLM_NEAR_DRAWS) \
  use(Guesses, NANOVLLM_NEAR_GUESSES) \
  use(Executor, NANOVLLM_NEAR_EXECUTOR) \
  use(kv, NANOVLLM_NEAR_KV)
// clang-format on

namespace nanovllm::detail {

/// The names as types, for messages.
namespace misspelt {

#define NANOVLLM_NEAR_TAG(name) struct name;
#define NANOVLLM_NEAR_TAGS(slot, names) names(NANOVLLM_NEAR_TAG)
NANOVLLM_FOR_EACH_NEAR(NANOVLLM_NEAR_TAGS)
#undef NANOVLLM_NEAR_TAGS
#undef NANOVLLM_NEAR_TAG

}  // namespace misspelt

/// A member of `Names` is ambiguous here if `Policy` has a member of that name, of whatever kind.
template <class Policy, class Names>
struct NameProbe : Policy, Names {};
template <class Policy, class Names>
requires std::is_final_v<Policy>  // it cannot be asked in this way
struct NameProbe<Policy, Names> : Names {
};

/// `near_<slot><Policy>()`: a pointer to the tag of the first name that `Policy` has; to void if it
/// has none.
#define NANOVLLM_NEAR_MEMBER(name) static int name;
#define NANOVLLM_NEAR_LOOK(name) Probe::name;
#define NANOVLLM_NEAR_PICK(name)                  \
  if constexpr (!requires { Probe::name; }) {     \
    return static_cast<misspelt::name*>(nullptr); \
  } else
#define NANOVLLM_NEAR_SLOT(slot, names)                             \
  struct Near_##slot {                                              \
    names(NANOVLLM_NEAR_MEMBER)                                     \
  };                                                                \
  template <class Policy>                                           \
  consteval auto near_##slot() {                                    \
    using Probe = NameProbe<Policy, Near_##slot>;                   \
    if constexpr (requires {names(NANOVLLM_NEAR_LOOK)}) {           \
      return static_cast<void*>(nullptr);                           \
    } else {                                                        \
      names(NANOVLLM_NEAR_PICK) return static_cast<void*>(nullptr); \
    }                                                               \
  }
NANOVLLM_FOR_EACH_NEAR(NANOVLLM_NEAR_SLOT)
#undef NANOVLLM_NEAR_SLOT
#undef NANOVLLM_NEAR_PICK
#undef NANOVLLM_NEAR_LOOK
#undef NANOVLLM_NEAR_MEMBER
#undef NANOVLLM_FOR_EACH_NEAR
#undef NANOVLLM_NEAR_ELEMENT
#undef NANOVLLM_NEAR_WEIGHT
#undef NANOVLLM_NEAR_ACTIVATION
#undef NANOVLLM_NEAR_KV_ELEMENT
#undef NANOVLLM_NEAR_BACKEND
#undef NANOVLLM_NEAR_RANKS
#undef NANOVLLM_NEAR_COMMUNICATOR
#undef NANOVLLM_NEAR_SCHEDULING
#undef NANOVLLM_NEAR_PREEMPTION
#undef NANOVLLM_NEAR_PREFIX_CACHE
#undef NANOVLLM_NEAR_TIERS
#undef NANOVLLM_NEAR_LOGITS_PROCESSORS
#undef NANOVLLM_NEAR_LOGITS_FUNCTOR
#undef NANOVLLM_NEAR_DRAWS
#undef NANOVLLM_NEAR_GUESSES
#undef NANOVLLM_NEAR_EXECUTOR
#undef NANOVLLM_NEAR_KV

template <template <int kBlockSize, class Cache> class>
struct IsBlocks {};

template <class T>
concept Complete = requires {
  sizeof(T);
};

/// Whether a policy has a type in a slot that must have one. g++ also finds the type of a base
/// behind a member that is none.
#define NANOVLLM_SLOT(slot)      \
  template <class P>             \
  concept Has##slot = requires { \
    typename P::slot;            \
  }                              \
  &&!requires { P::slot; };
NANOVLLM_SLOT(Element)
NANOVLLM_SLOT(Backend)
NANOVLLM_SLOT(Ranks)
NANOVLLM_SLOT(Scheduling)
NANOVLLM_SLOT(Preemption)
NANOVLLM_SLOT(LogitsProcessors)
NANOVLLM_SLOT(Tiers)
#undef NANOVLLM_SLOT

/// A policy with all of them.
template <class P>
concept HasSlots = std::is_class_v<P> && Complete<P> && HasElement<P> && HasBackend<P> &&
    HasRanks<P> && HasScheduling<P> && HasPreemption<P> && HasLogitsProcessors<P> && HasTiers<P>;

}  // namespace nanovllm::detail

namespace nanovllm {

// Sentences that are said of many slots; only the words, so that an error is at the condition.
#define NANOVLLM_NEAR_NAME(slot)                                                         \
  "nanovllm: the policy has a member that is no slot and would be ignored; its name is " \
  "almost that of the slot '" slot "'"
#define NANOVLLM_NEAR(slot) NANOVLLM_NEAR_NAME(slot) "; see docs/policies.md"
#define NANOVLLM_HAS_NO(slot)                           \
  "nanovllm: the policy must have a public type '" slot \
  "', as all policies that derive from "                \
  "nanovllm::DefaultPolicy; see docs/policies.md"

/// No member that is meant for a slot and has another name.
template <class P>
consteval bool check_policy_names() {
  if constexpr (!std::is_class_v<P> || !detail::Complete<P>) {
    static_assert(kFits<P>,
                  "nanovllm: a policy is a struct that derives from nanovllm::DefaultPolicy, of "
                  "nanovllm/policy.hpp, and that is complete where its engine is named; see "
                  "docs/policies.md");
  } else if constexpr (!std::same_as<decltype(detail::near_Element<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Element<P>())>, NANOVLLM_NEAR("Element"));
  } else if constexpr (!std::same_as<decltype(detail::near_Weight<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Weight<P>())>, NANOVLLM_NEAR("Weight"));
  } else if constexpr (!std::same_as<decltype(detail::near_Activation<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Activation<P>())>, NANOVLLM_NEAR("Activation"));
  } else if constexpr (!std::same_as<decltype(detail::near_KvElement<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_KvElement<P>())>, NANOVLLM_NEAR("KvElement"));
  } else if constexpr (!std::same_as<decltype(detail::near_Backend<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Backend<P>())>, NANOVLLM_NEAR("Backend"));
  } else if constexpr (!std::same_as<decltype(detail::near_Ranks<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Ranks<P>())>, NANOVLLM_NEAR("Ranks"));
  } else if constexpr (!std::same_as<decltype(detail::near_Communicator<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Communicator<P>())>, NANOVLLM_NEAR("Communicator"));
  } else if constexpr (!std::same_as<decltype(detail::near_Scheduling<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Scheduling<P>())>, NANOVLLM_NEAR("Scheduling"));
  } else if constexpr (!std::same_as<decltype(detail::near_Preemption<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Preemption<P>())>, NANOVLLM_NEAR("Preemption"));
  } else if constexpr (!std::same_as<decltype(detail::near_PrefixCache<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_PrefixCache<P>())>, NANOVLLM_NEAR("PrefixCache"));
  } else if constexpr (!std::same_as<decltype(detail::near_Tiers<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Tiers<P>())>, NANOVLLM_NEAR("Tiers"));
  } else if constexpr (!std::same_as<decltype(detail::near_LogitsProcessors<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_LogitsProcessors<P>())>,
                  NANOVLLM_NEAR("LogitsProcessors"));
  } else if constexpr (!std::same_as<decltype(detail::near_LogitsFunctor<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_LogitsFunctor<P>())>, NANOVLLM_NEAR("LogitsFunctor"));
  } else if constexpr (!std::same_as<decltype(detail::near_Draws<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Draws<P>())>, NANOVLLM_NEAR("Draws"));
  } else if constexpr (!std::same_as<decltype(detail::near_Guesses<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Guesses<P>())>, NANOVLLM_NEAR("Guesses"));
  } else if constexpr (!std::same_as<decltype(detail::near_Executor<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_Executor<P>())>, NANOVLLM_NEAR("Executor"));
  } else if constexpr (!std::same_as<decltype(detail::near_kv<P>()), void*>) {
    static_assert(kFits<decltype(detail::near_kv<P>())>, NANOVLLM_NEAR_NAME("kv")
                  "; the block size is a field of it: 'static "
                  "constexpr nanovllm::KvConfig kv{.block_size = 32};'");
  } else if constexpr (!detail::HasElement<P>) {
    static_assert(kFits<P>, NANOVLLM_HAS_NO("Element"));
  } else if constexpr (!detail::HasBackend<P>) {
    static_assert(kFits<P>, NANOVLLM_HAS_NO("Backend"));
  } else if constexpr (!detail::HasRanks<P>) {
    static_assert(kFits<P>, NANOVLLM_HAS_NO("Ranks"));
  } else if constexpr (!detail::HasScheduling<P>) {
    static_assert(kFits<P>, NANOVLLM_HAS_NO("Scheduling"));
  } else if constexpr (!detail::HasPreemption<P>) {
    static_assert(kFits<P>, NANOVLLM_HAS_NO("Preemption"));
  } else if constexpr (!detail::HasLogitsProcessors<P>) {
    static_assert(kFits<P>, NANOVLLM_HAS_NO("LogitsProcessors"));
  } else if constexpr (!detail::HasTiers<P>) {
    static_assert(kFits<P>, NANOVLLM_HAS_NO("Tiers"));
  } else if constexpr (requires { typename detail::IsBlocks<P::template Blocks>; }) {
    static_assert(
        kFits<P>,
        "nanovllm: the policy's slot Blocks is Tiers now: 'using Tiers = nanovllm::NoTiers;' has "
        "BlockManager, HostTier and DiskTier TieredBlockManager; see docs/policies.md");
  } else {
    return true;
  }
  return false;
}

#undef NANOVLLM_NEAR_NAME
#undef NANOVLLM_NEAR
#undef NANOVLLM_HAS_NO

}  // namespace nanovllm
