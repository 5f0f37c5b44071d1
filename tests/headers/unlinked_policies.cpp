// Policies whose steps no library has compiled, in a file that has not said that it compiles them.
// As wrong_policies.cpp.
#include <nanovllm/engine.hpp>
#include <nanovllm/engine/runner/thread_ranks.hpp>
#include <nanovllm/policy.hpp>
#include <string>

using namespace nanovllm;
using Fairytale = Qwen3<shapes::fairytale>;

namespace own_element {
// says: nanovllm: no library here has compiled what computes the steps of this model with this policy's Element, Backend and Ranks. '#include <nanovllm/cpu.hpp>' compiles it in this file
struct Wrong : DefaultPolicy {
  using Element = float;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace own_element

namespace own_ranks {
// says: '#include <nanovllm/cpu.hpp>' compiles it in this file
struct Wrong : DefaultPolicy {
  using Ranks = ThreadRanks;
};
inline std::string run() { return Engine<Fairytale, Wrong>({}).describe(); }
}  // namespace own_ranks

namespace noise_for_weights {
// says: '#include <nanovllm/cpu.hpp>' compiles it in this file
struct Wrong : Float32Policy {};
inline std::string run() { return Engine<Fairytale, Wrong>({}, RandomWeights(), {}).describe(); }
}  // namespace noise_for_weights
