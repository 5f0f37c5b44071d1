#pragma once
/// Checkpoints that the engine's tests run, and policies to run them with.

#include <array>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "nanovllm/core/philox.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/full_policy.hpp"
#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/any/make_engine.hpp"

namespace nanovllm::test {

/// Small checkpoints with random weights in tests/fixtures/parity, of odd shapes: GQA groups 4, 1
/// and 8, head_dim 64 and 128, tied and untied, sharded, YaRN. See tests/oracle/README.md.
inline constexpr std::array kRandomModels = {"group4_untied_sharded", "group1_tied_yarn",
                                             "group8_untied_yarn_4x"};

inline std::filesystem::path model_directory(const std::string& name) {
  if (name == "fairytale") return "examples/models/fairytale";
  return "tests/fixtures/parity/" + name;
}

using AnyModel = Qwen3<shapes::qwen3_any>;

/// What computes the steps of an engine of this policy.
template <class Policy>
using RunnerOf = Runner<AnyModel, RunnerPolicyOf<Policy>>;

/// `Base` with another block size and scheduling policy.
template <class Base, int kBlockSize, class SchedulingPolicy = ContinuousBatching>
struct TestPolicy : Base {
  using Scheduling = SchedulingPolicy;
  static constexpr KvConfig kv{.block_size = kBlockSize};
};

/// The same, but `Base` itself where nothing is another: that engine may be compiled already.
template <class Base, int kBlockSize, class SchedulingPolicy = ContinuousBatching>
using PolicyWith =
    std::conditional_t<kBlockSize == Base::kv.block_size &&
                           std::is_same_v<SchedulingPolicy, typename Base::Scheduling>,
                       Base, TestPolicy<Base, kBlockSize, SchedulingPolicy>>;

/// Deterministic prompt of `length` tokens in [0, vocab).
inline std::vector<TokenId> random_prompt(std::uint64_t seed, std::size_t length,
                                          std::int64_t vocab) {
  std::vector<TokenId> out;
  for (std::size_t i = 0; i < length; ++i) {
    const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 7});
    out.push_back(static_cast<TokenId>(words[0] % static_cast<std::uint64_t>(vocab)));
  }
  return out;
}

/// Log-probabilities and tokens of a request, in the shape that comparisons want.
struct Trace {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
};

inline Trace trace_of(const Output& output) {
  Trace trace{output.token_ids, {}};
  for (const TokenLogprobs& entry : output.logprobs) trace.logprobs.push_back(entry.logprob);
  return trace;
}

}  // namespace nanovllm::test
