// Models, and what engines of them need, that are not what is wanted. `says:` is what the compiler
// must say of each, in words of ours; see check_wording.sh. Policies are in wrong_policies.cpp.
#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp>

using namespace nanovllm;

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
