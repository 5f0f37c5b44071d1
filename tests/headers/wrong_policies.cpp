// Policies that are not what an engine wants, each in a namespace of its own. `says:` is what the
// compiler must say of it, in words of ours, the first line in the line of its error; see
// check_wrong_policies.sh.
#include <nanovllm/cpu.hpp>
#include <nanovllm/cuda_policy.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/with/any/all_models.hpp>
#include <nanovllm/with/any/make_engine.hpp>
#include <nanovllm/with/eight_bits/weights.hpp>
#include <nanovllm/with/tiers/swapping.hpp>
#include <string>

using namespace nanovllm;
using Fairytale = Qwen3<shapes::fairytale>;

struct Nothing {};

// ---- Names that are no slot's ----

namespace misspelt_scheduling {
// says: nanovllm: the policy has a member that is no slot and would be ignored; its name is almost that of the slot 'Scheduling'
// says: Schedulin
struct Wrong : DefaultPolicy {
  using Schedulin = PrefillFirst;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace misspelt_scheduling

namespace misspelt_prefix_cache {
// says: its name is almost that of the slot 'PrefixCache'
// says: PrefixCach
struct Wrong : DefaultPolicy {
  template <int kBlockSize>
  using PrefixCach = RadixPrefixCache<kBlockSize>;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace misspelt_prefix_cache

namespace misspelt_block_size {
// says: its name is almost that of the slot 'kv'; the block size is a field of it
// says: BlockSiz
struct Wrong : DefaultPolicy {
  static constexpr int BlockSiz = 32;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace misspelt_block_size

namespace misspelt_in_a_base {
// says: its name is almost that of the slot 'LogitsProcessors'
// says: LogitsProcessor
struct Base : DefaultPolicy {
  using LogitsProcessor = StandardLogitsProcessors<>;
};
struct Wrong : Base {
  using Scheduling = PrefillFirst;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace misspelt_in_a_base

namespace misspelt_function {
// says: its name is almost that of the slot 'Preemption'
// says: preemption
struct Wrong : DefaultPolicy {
  static int preemption() { return 1; }
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace misspelt_function

namespace misspelt_class {
// says: its name is almost that of the slot 'Backend'
// says: Bakcend
struct Wrong : DefaultPolicy {
  struct Bakcend {};
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace misspelt_class

namespace old_blocks {
// says: nanovllm: the policy's slot Blocks is Tiers now
struct Wrong : DefaultPolicy {
  template <int kBlockSize, class Cache>
  using Blocks = BlockManager<kBlockSize, Cache>;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace old_blocks

// ---- No policy at all ----

namespace no_struct {
// says: nanovllm: a policy is a struct that derives from nanovllm::DefaultPolicy
using Wrong = int;
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace no_struct

namespace only_declared {
// says: nanovllm: a policy is a struct that derives from nanovllm::DefaultPolicy
struct Wrong;
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace only_declared

namespace no_base {
// says: nanovllm: the policy must have a public type 'Element'
struct Wrong {
  using Scheduling = PrefillFirst;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace no_base

namespace private_base {
// says: nanovllm: the policy must have a public type 'Element'
class Wrong : DefaultPolicy {};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace private_base

// ---- Elements ----

namespace element {
// says: nanovllm: the policy's Element must be float, nanovllm::bf16 or nanovllm::half
// says: int
struct Wrong : DefaultPolicy {
  using Element = int;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace element

namespace value_for_a_type {
// says: nanovllm: the policy must have a public type 'Element'
struct Wrong : DefaultPolicy {
  static constexpr int Element = 16;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace value_for_a_type

namespace weight {
// says: nanovllm: the policy's Weight must be float, nanovllm::bf16, nanovllm::half, or a format
struct Wrong : DefaultPolicy {
  using Weight = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace weight

namespace value_for_weight {
// says: nanovllm: the policy's Weight must be a public type
struct Wrong : DefaultPolicy {
  static constexpr int Weight = 8;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace value_for_weight

namespace weight_of_gpus {
// says: nanovllm: the policy's Backend must have 'set_rows(matrix, first_row, rows)' for the matrices of the policy's Weight
struct Wrong : DefaultPolicy {
  using Weight = Int4Group128;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace weight_of_gpus

namespace activation {
// says: nanovllm: the policy's Activation must be float
struct Wrong : DefaultPolicy {
  using Activation = double;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace activation

namespace kv_element {
// says: nanovllm: the policy's KvElement must be float
struct Wrong : DefaultPolicy {
  using KvElement = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace kv_element

// ---- Blocks ----

namespace kv_of_another_type {
// says: nanovllm: the policy's kv must be a 'static constexpr nanovllm::KvConfig'
struct Wrong : DefaultPolicy {
  static constexpr int kv = 32;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace kv_of_another_type

namespace kv_not_constant {
// says: nanovllm: the policy's kv must be a 'static constexpr nanovllm::KvConfig'
struct Wrong : DefaultPolicy {
  inline static KvConfig kv{.block_size = 32};
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace kv_not_constant

namespace no_tokens {
// says: nanovllm: the policy's kv.block_size must be at least 1 token
struct Wrong : DefaultPolicy {
  static constexpr KvConfig kv{.block_size = 0};
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace no_tokens

namespace prefix_cache {
// says: nanovllm: the policy's PrefixCache must be movable
// says: match(tokens, salt), insert(block_table, tokens, begin, end, salt)
struct Wrong : DefaultPolicy {
  template <int>
  using PrefixCache = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace prefix_cache

namespace prefix_cache_only_declared {
// says: nanovllm: the policy's PrefixCache must be movable
class Later;
struct Wrong : DefaultPolicy {
  template <int>
  using PrefixCache = Later;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace prefix_cache_only_declared

namespace prefix_cache_of_one_size {
// says: nanovllm: the policy's PrefixCache must be a template of the block size
struct Wrong : DefaultPolicy {
  using PrefixCache = HashPrefixCache<16>;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace prefix_cache_of_one_size

namespace prefix_cache_of_another_size {
// says: nanovllm: the policy's PrefixCache<kv.block_size> must have blocks of kv.block_size tokens
struct Wrong : DefaultPolicy {
  template <int>
  using PrefixCache = HashPrefixCache<64>;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace prefix_cache_of_another_size

namespace tiers {
// says: nanovllm: the policy's Tiers must have Pools
struct Wrong : DefaultPolicy {
  using Tiers = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace tiers

namespace tiers_without_observer {
// says: nanovllm: the policy's Tiers must have make_blocks<Blocks>
struct Half {
  template <int kBlockSize, class Cache>
  using Blocks = BlockManager<kBlockSize, Cache>;
  using Pools = PlainPools;
  static void validate(const EngineConfig&) {}
  static std::int32_t num_outside(const EngineConfig&, const PoolPlan&) { return 0; }
};
struct Wrong : DefaultPolicy {
  using Tiers = Half;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace tiers_without_observer

// ---- Steps ----

namespace scheduling {
// says: nanovllm: the policy's Scheduling must be
// says: Nothing
struct Wrong : DefaultPolicy {
  using Scheduling = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace scheduling

namespace preemption {
// says: nanovllm: the policy's Preemption must be
struct Wrong : DefaultPolicy {
  using Preemption = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace preemption

namespace scheduling_only_declared {
// says: nanovllm: the policy's Scheduling must be
class Later;
struct Wrong : DefaultPolicy {
  using Scheduling = Later;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace scheduling_only_declared

namespace preemption_only_declared {
// says: nanovllm: the policy's Preemption must be
class Later;
struct Wrong : DefaultPolicy {
  using Preemption = Later;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace preemption_only_declared

namespace nowhere_to_swap {
// says: so its Tiers must be HostTier or DiskTier: 'using Tiers = nanovllm::HostTier;'
struct Wrong : DefaultPolicy {
  using Preemption = SwapPreemption;
  using Tiers = nanovllm::NoTiers;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace nowhere_to_swap

namespace functor_without_an_op {
// says: nanovllm: the policy has a LogitsFunctor, but its Backend has no 'run' for 'ApplyFunctorArgs'
class PlainBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  using CpuBackend::run;
  template <class F>
  void run(const ApplyFunctorArgs<F>&) = delete;
};
struct Twice {
  float operator()(float logit, TokenId, const FunctorContext&) const { return 2 * logit; }
};
struct Wrong : DefaultPolicy {
  using Backend = PlainBackend;
  using LogitsFunctor = Twice;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace functor_without_an_op

namespace executor {
// says: nanovllm: the policy's Executor must be made from
struct Wrong : DefaultPolicy {
  template <class Network, class Backend, class Pool>
  using Executor = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace executor

namespace executor_no_template {
// says: nanovllm: the policy's Executor must be a public template
struct Wrong : DefaultPolicy {
  using Executor = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace executor_no_template

// ---- Logits ----

namespace processor {
// says: nanovllm: a logits processor must be copyable
struct Wrong : DefaultPolicy {
  using LogitsProcessors = nanovllm::LogitsProcessors<MinTokensProcessor, Nothing>;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace processor

namespace processor_only_declared {
// says: nanovllm: a logits processor must be copyable
class Later;
struct Wrong : DefaultPolicy {
  using LogitsProcessors = nanovllm::LogitsProcessors<Later>;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace processor_only_declared

namespace one_processor {
// says: nanovllm: the policy's LogitsProcessors must be nanovllm::LogitsProcessors<...>
struct Wrong : DefaultPolicy {
  using LogitsProcessors = MinTokensProcessor;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace one_processor

namespace functor {
// says: nanovllm: the policy's LogitsFunctor must be plain data with a call operator
struct Wrong : DefaultPolicy {
  using LogitsFunctor = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace functor

// ---- Ranks ----

namespace functor_only_declared {
// says: nanovllm: the policy's LogitsFunctor must be plain data
class Later;
struct Wrong : DefaultPolicy {
  using LogitsFunctor = Later;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace functor_only_declared

namespace ranks {
// says: nanovllm: the policy's Ranks must have the types Threads, Peers and HostCommunicator
struct Wrong : DefaultPolicy {
  using Ranks = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace ranks

namespace communicator {
// says: nanovllm: the policy's Communicator must be movable and offer make(int)
struct Wrong : DefaultPolicy {
  using Communicator = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace communicator

namespace communicator_only_declared {
// says: nanovllm: the policy's Communicator is declared here and not defined
class Later;
struct Wrong : DefaultPolicy {
  using Communicator = Later;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace communicator_only_declared

namespace backend_of_another_policy {
// says: nanovllm: the policy's Communicator is declared here and not defined: those of CudaPolicy
struct Wrong : CudaPolicy {
  using Backend = CpuBackend;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace backend_of_another_policy

namespace communicator_of_devices {
// says: nanovllm: the policy's Communicator sums in the memory of GPUs
struct Peers : Single {
  static constexpr bool kOnDevice = true;
  static std::vector<Peers> make(int) { return std::vector<Peers>(1); }
};
struct Wrong : DefaultPolicy {
  using Communicator = Peers;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace communicator_of_devices

// ---- Backends ----

namespace backend {
// says: nanovllm: the policy's Backend must have 'Buffer<T>'
// says: Nothing
struct Wrong : DefaultPolicy {
  using Backend = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace backend

namespace backend_no_class {
// says: nanovllm: the policy's Backend must be a class
struct Wrong : DefaultPolicy {
  using Backend = int;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace backend_no_class

namespace backend_only_declared {
// says: nanovllm: the policy's Backend is declared here and not defined
class Later;
struct Wrong : DefaultPolicy {
  using Backend = Later;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace backend_only_declared

namespace backend_of_a_gpu {
// says: nanovllm: the policy's Backend is declared here and not defined: CudaBackend is there in files
struct Wrong : CudaPolicy {};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace backend_of_a_gpu

namespace backend_without_an_op {
// says: nanovllm: the policy's Backend has no 'run' for 'SiluMulArgs'
class NoSiluBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  using CpuBackend::run;
  template <class T>
  void run(const SiluMulArgs<T>&) = delete;
};
struct Wrong : DefaultPolicy {
  using Backend = NoSiluBackend;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace backend_without_an_op

namespace backend_without_a_constructor {
// says: nanovllm: the policy's Backend must have a constructor from 'BackendConfig'
class Mute : public CpuBackend {
 public:
  explicit Mute(int threads);
};
struct Wrong : DefaultPolicy {
  using Backend = Mute;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace backend_without_a_constructor

namespace backend_half_asynchronous {
// says: nanovllm: the policy's Backend is 'kAsynchronous' and must have 'HostBuffer<T>'
class Ahead : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  static constexpr bool kAsynchronous = true;
};
struct Wrong : DefaultPolicy {
  using Backend = Ahead;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace backend_half_asynchronous

// ---- Draws ----

namespace draws_no_type {
// says: nanovllm: the policy's Draws must be a public type
struct Wrong : DefaultPolicy {
  static constexpr int Draws = 1;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace draws_no_type

namespace draws_without_a_sampler {
// says: nanovllm: the policy's Draws must have 'template <class Network, class Backend> using Sampler'
struct Wrong : DefaultPolicy {
  using Draws = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace draws_without_a_sampler

namespace draws_misspelt {
// says: name is almost that of the slot 'Draws'
struct Wrong : DefaultPolicy {
  using Draw = WholeRows;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace draws_misspelt

// ---- Guesses ----

namespace guesses_no_type {
// says: nanovllm: the policy's Guesses must be a public type
struct Wrong : DefaultPolicy {
  static constexpr int Guesses = 1;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace guesses_no_type

namespace guesses_without_an_observer {
// says: nanovllm: the policy's Guesses must have static validate(config), num_logits(config, batch)
struct Wrong : DefaultPolicy {
  using Guesses = Nothing;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace guesses_without_an_observer

namespace guesses_misspelt {
// says: name is almost that of the slot 'Guesses'
struct Wrong : DefaultPolicy {
  using Gueses = NoGuesses;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace guesses_misspelt

// ---- By way of make_engine ----

namespace made_engine {
// says: nanovllm: the policy's Scheduling must be
struct Wrong : DefaultPolicy {
  using Scheduling = Nothing;
};
inline std::string run() { return make_engine<AllModels, Wrong>({})->describe(); }
}  // namespace made_engine

namespace made_engine_backend {
// says: nanovllm: the policy's Backend must have 'Buffer<T>'
struct Bare {};
struct Wrong : DefaultPolicy {
  using Backend = Bare;
};
inline std::string run() { return make_engine<AllModels, Wrong>({})->describe(); }
}  // namespace made_engine_backend

// ---- Right ones: not a word ----

namespace right {
// What is right, with a constant that is no slot: not a word.
struct Base : DefaultPolicy {
  using Scheduling = Priority;
  static constexpr int tokens_per_page = 4 * kv.block_size;
};
struct Wrong final : Base {
  using Element = float;
  using Weight = bf16;
  static constexpr KvConfig kv{.block_size = 32};
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace right
