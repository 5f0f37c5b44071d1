// Policies and models that are not what their slots want. `says:` is what the compiler must say of
// each, in words of ours; see check_wording.sh.
#include <nanovllm/engine.hpp>
#include <nanovllm/model/qwen3_moe/qwen3_moe.hpp>
#include <nanovllm/policy.hpp>

using namespace nanovllm;
using Fairytale = Qwen3<shapes::fairytale>;

struct Nothing {};

// says: nanovllm: the policy's Scheduling must be
struct NoScheduling : DefaultPolicy {
  using Scheduling = Nothing;
};
template class nanovllm::Engine<Fairytale, NoScheduling>;

// says: nanovllm: the policy's Preemption must be
struct NoPreemption : DefaultPolicy {
  using Preemption = Nothing;
};
template class nanovllm::Engine<Fairytale, NoPreemption>;

// says: nanovllm: the policy's Tiers must have kHasHostPool
struct NoTiersPolicy : DefaultPolicy {
  using Tiers = Nothing;
};
template class nanovllm::Engine<Fairytale, NoTiersPolicy>;

// says: nanovllm: the policy's slot Blocks is Tiers now
struct OldBlocks : DefaultPolicy {
  template <int kBlockSize, class Cache>
  using Blocks = BlockManager<kBlockSize, Cache>;
};
template class nanovllm::Engine<Fairytale, OldBlocks>;

// says: so its Tiers must be HostTier or DiskTier: 'using Tiers = nanovllm::HostTier;'
struct NowhereToSwap : DefaultPolicy {
  using Preemption = SwapPreemption;
  using Tiers = nanovllm::NoTiers;
};
template class nanovllm::Engine<Fairytale, NowhereToSwap>;

// says: nanovllm: the policy's PrefixCache
// says: match(tokens, salt), insert(block_table, tokens, begin, end, salt)
struct NoCache : DefaultPolicy {
  template <int>
  using PrefixCache = Nothing;
};
template class nanovllm::Engine<Fairytale, NoCache>;

// says: nanovllm: a logits processor must be copyable
struct NoProcessor : DefaultPolicy {
  using LogitsProcessors = nanovllm::LogitsProcessors<Nothing>;
};
template class nanovllm::Engine<Fairytale, NoProcessor>;

// says: nanovllm: the policy's Communicator must be movable and offer make(int)
struct NoCommunicator : DefaultPolicy {
  using Communicator = Nothing;
};
template class nanovllm::Engine<Fairytale, NoCommunicator>;

// says: nanovllm: the policy's Executor
struct NoExecutor : DefaultPolicy {
  template <class Network, class Backend, class Pool>
  using Executor = Nothing;
};
template class nanovllm::Engine<Fairytale, NoExecutor>;

// says: nanovllm: the policy's Backend has no 'run' for 'SiluMulArgs'
class NoSiluBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  using CpuBackend::run;
  template <class T>
  void run(const SiluMulArgs<T>&) = delete;
};
struct NoSilu : DefaultPolicy {
  using Backend = NoSiluBackend;
};
template class nanovllm::Engine<Fairytale, NoSilu>;

// says: nanovllm: a mixture of experts needs a Backend with 'run' for 'RouteExpertsArgs'
// says: nanovllm: a mixture of experts needs a Backend with 'run' for 'ExpertMlpArgs'
class NoExpertsBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  using CpuBackend::run;
  void run(const RouteExpertsArgs&) = delete;
  template <class T, class Matrix>
  void run(const ExpertMlpArgs<T, Matrix>&) = delete;
};
struct NoExperts : DefaultPolicy {
  using Backend = NoExpertsBackend;
};
template class nanovllm::Engine<Qwen3Moe<shapes::qwen3_moe_any>, NoExperts>;

// says: nanovllm: the Model's Config must have a static 'load(checkpoint)'
struct NoModel {
  struct Config {};
};
template class nanovllm::Engine<NoModel, DefaultPolicy>;
