// The slot `Ranks`: the same tokens whatever it is, and errors that name it.

#include "nanovllm/engine/runner/one_rank.hpp"

#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/runner/thread_ranks.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct OnePolicy : Float32Policy {
  using Ranks = OneRank;
};
struct ThreadPolicy : Float32Policy {
  using Ranks = ThreadRanks;
};

EngineConfig config(int num_ranks = 1) {
  return {.model = model_directory("group4_untied_sharded"),
          .tensor_parallel = num_ranks,
          .num_threads = 2,
          .kv_size = KvSize::blocks(8)};
}

template <class Policy>
std::vector<TokenId> tokens_of(EngineConfig settings) {
  Engine<AnyModel, Policy> engine(std::move(settings));
  const SamplingParams greedy{.temperature = 0.f, .max_tokens = 12, .ignore_eos = true};
  Output output = engine.generate(random_prompt(3, 17, 90), greedy);
  CHECK(output.error.empty());
  return output.token_ids;
}

template <class Policy>
std::string refusal(EngineConfig settings) {
  try {
    Engine<AnyModel, Policy> engine(std::move(settings));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("tokens do not depend on where the ranks run") {
  const auto expected = tokens_of<OnePolicy>(config());
  REQUIRE(expected.size() == 12);
  CHECK(tokens_of<ThreadPolicy>(config()) == expected);
  CHECK(tokens_of<ThreadPolicy>(config(2)) == expected);
}

TEST_CASE("a setting that the ranks cannot honour names the slot and the line to write") {
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal<OnePolicy>(config(2)),
             Contains("tensor_parallel = 2") && Contains("'using Ranks = nanovllm::ThreadRanks;'"));
  EngineConfig limited = config();
  limited.step_timeout = std::chrono::seconds(60);
  CHECK_THAT(refusal<OnePolicy>(limited),
             Contains("step_timeout is set") && Contains("'using Ranks = nanovllm::ThreadRanks;'"));
  CHECK(refusal<ThreadPolicy>(limited).empty());

  EngineConfig processes = config();
  int group = 0;  // stands for one, which needs MPI, and is not looked into
  processes.processes = {std::shared_ptr<int>(), reinterpret_cast<ProcessGroup*>(&group)};
  for (const std::string& error : {refusal<OnePolicy>(processes), refusal<ThreadPolicy>(processes)})
    CHECK_THAT(error,
               Contains("processes is set") && Contains("include nanovllm/mpi.hpp and write "
                                                        "'using Ranks = nanovllm::ProcessRanks;'"));
}

TEST_CASE("the communicator is that of the ranks unless the policy has one") {
  CHECK(std::is_same_v<CommunicatorOf<OnePolicy>, Single>);
  CHECK(std::is_same_v<CommunicatorOf<ThreadPolicy>, ThreadGroup>);
  struct OwnGroup : ThreadPolicy {
    using Communicator = Single;
  };
  CHECK(std::is_same_v<CommunicatorOf<OwnGroup>, Single>);
}

TEST_CASE("one rank runs on the caller's thread, and hears of what it throws") {
  CallerThread threads(1, false);
  std::thread::id where;
  int failures = 0;
  const auto on_error = [&](int) { ++failures; };
  threads.run([&](int rank) { where = rank == 0 ? std::this_thread::get_id() : where; }, on_error);
  CHECK(where == std::this_thread::get_id());
  CHECK(failures == 0);
  CHECK_THROWS_AS(threads.run([](int) { throw Error("no"); }, on_error), Error);
  CHECK(failures == 1);
}

TEST_CASE("a rank without others follows nobody") {
  Engine<AnyModel, OnePolicy> engine(config());
  CHECK_THROWS_AS(engine.run_worker(), Error);
}
