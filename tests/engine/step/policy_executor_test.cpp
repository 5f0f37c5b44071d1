// An executor of a policy's own: docs/policies.md, 'Executor'.

#include <atomic>
#include <string>

#include "catch.hpp"
#include "engine/models.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// Counts the steps and the tokens that another executor computes.
template <class Network, class Backend, class Pool>
class CountingExecutor : public DirectExecutor<Network, Backend, Pool> {
  using Base = DirectExecutor<Network, Backend, Pool>;

 public:
  using Base::Base;

  void launch(int slot, const StepInputs& inputs, Pool& kv) {
    ++num_steps;
    num_tokens += inputs.num_tokens();
    Base::launch(slot, inputs, kv);
  }

  inline static std::atomic<std::int64_t> num_steps = 0;
  inline static std::atomic<std::int64_t> num_tokens = 0;
};

struct CountingPolicy : Float32Policy {
  template <class Network, class Backend, class Pool>
  using Executor = CountingExecutor<Network, Backend, Pool>;
};

template <class Policy>
std::vector<Trace> serve(std::string* description = nullptr) {
  Engine<AnyModel, Policy> engine({.model = model_directory("group1_tied_yarn"),
                                   .num_threads = 1,
                                   .max_num_seqs = 3,
                                   .max_model_len = 64,
                                   .kv_size = KvSize::blocks(16)});
  if (description != nullptr) *description = engine.describe();
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < 5; ++i) prompts.push_back(random_prompt(i, 2 + 5 * i, 100));
  std::vector<Trace> out;
  for (const Output& output :
       engine.generate(prompts, SamplingParams{.temperature = 0.f, .max_tokens = 7, .logprobs = 1}))
    out.push_back(trace_of(output));
  return out;
}

}  // namespace

TEST_CASE("an executor of the policy's own does the steps", "[executor]") {
  const auto expected = serve<Float32Policy>();
  std::string description;
  const auto got = serve<CountingPolicy>(&description);
  CHECK_THAT(description, Catch::Matchers::Contains("::CountingExecutor\n"));
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].tokens == expected[i].tokens);
    CHECK(got[i].logprobs == expected[i].logprobs);
  }
  using Group = RankGroup<AnyModel, CountingPolicy>;
  static_assert(ExecutorLike<Group::Executor, Group::Network, Group::Backend, Group::Pool>);
  CHECK(Group::Executor::num_steps >= 7);
  CHECK(Group::Executor::num_tokens >= 2 + 7 + 12 + 17 + 22);
}

TEST_CASE("without one, the backend decides", "[executor]") {
  using Group = RankGroup<AnyModel, Float32Policy>;
  static_assert(
      std::same_as<Group::Executor, DirectExecutor<Group::Network, Group::Backend, Group::Pool>>);
  static_assert(!AsyncExecutorLike<Group::Executor>);
}
