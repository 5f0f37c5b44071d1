#pragma once
/// Declarations of the library's main templates: enough to name them in an interface, and the only
/// home of their default arguments.

#include <cstdint>
#include <string_view>

namespace nanovllm {

// policy.hpp
struct DefaultPolicy;
struct Float32Policy;

// full_policy.hpp
struct FullPolicy;
struct FullFloat32Policy;

// cuda_policy.hpp
struct CudaPolicy;
struct CudaFullPolicy;
struct CudaFloat32Policy;
struct CudaFullFloat32Policy;
struct CudaBatchInvariantPolicy;

// cpu/
class CpuBackend;

// kv/
struct XxPrefixHash;
class LeastRecentlyUsed;
template <int kBlockSize, class Hash = XxPrefixHash, class Eviction = LeastRecentlyUsed>
class HashPrefixCache;
template <int kBlockSize>
class NoPrefixCache;
template <int kBlockSize, class Eviction = LeastRecentlyUsed>
class RadixPrefixCache;
template <int kBlockSize, class Cache = HashPrefixCache<kBlockSize>>
class BlockManager;
template <int kBlockSize, class Cache = HashPrefixCache<kBlockSize>>
class TieredBlockManager;

// sched/
struct ContinuousBatching;
struct PrefillFirst;
template <std::int64_t kWindow>
struct PriorityWithin;
using Priority = PriorityWithin<1024>;
struct RecomputePreemption;
struct SwapPreemption;
template <class Policy, class Blocks, class Preemption = RecomputePreemption>
class Scheduler;

// engine/, engine.hpp
template <class Model, class Policy>
class Runner;
template <class Model, class Policy = DefaultPolicy>
class Engine;

// What opens which checkpoint, for messages.
namespace detail {

struct ModelHeader {
  std::string_view model_type, architecture, engine, header;
};
inline constexpr ModelHeader kModelHeaders[] = {
    {"qwen3", "Qwen3ForCausalLM", "Engine<Qwen3<shapes::qwen3_any>>", "model/qwen3/qwen3.hpp"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "Engine<Qwen3Moe<shapes::qwen3_moe_any>>", "with/moe.hpp"},
    {"gpt2", "GPT2LMHeadModel", "Engine<Gpt2<shapes::gpt2_any>>", "with/gpt2.hpp"}};
inline constexpr std::string_view kAnyModelHeader =
    "make_engine<AllModels> of nanovllm/with/any.hpp";

}  // namespace detail

}  // namespace nanovllm
