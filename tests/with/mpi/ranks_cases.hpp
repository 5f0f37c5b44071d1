#pragma once
/// Engines with tensor-parallel ranks in processes, on any backend. Who includes this defines
/// `BackendFloat32` and `BackendBfloat16`, the policies, `ranks_present(n)`, the bound
/// `kFloat32Bound` of log-probabilities, and whether engines are `kReproducible`, before.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/mpi.hpp"
#include "nanovllm/with/peers/options.hpp"
#include "parallel/ranks_rig.hpp"
#include "with/mpi/world.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;

namespace {

struct ProcessFloat32 : BackendFloat32 {
  using Ranks = ProcessRanks;
};
struct ProcessBfloat16 : BackendBfloat16 {
  using Ranks = ProcessRanks;
};
using Engine32 = Engine<AnyModel, ProcessFloat32>;
using Engine16 = Engine<AnyModel, ProcessBfloat16>;

/// Rank 0 serves, and the others follow.
template <class AnyEngine>
std::vector<Trace> serve_in_processes(const EngineConfig& config) {
  std::vector<Trace> out;
  run_rank([&] {
    AnyEngine engine(config);
    if (world()->rank() != 0) return engine.run_worker();
    out = serve(engine);
  });
  return out;
}

template <class AnyEngine>
std::vector<Trace> serve_on_threads(const EngineConfig& config) {
  AnyEngine engine(config);
  return serve(engine);
}

void check_same_bits(const std::vector<Trace>& got, const std::vector<Trace>& expected) {
  CHECK(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size() && i < expected.size(); ++i) {
    CHECK(got[i].tokens == expected[i].tokens);
    CHECK(got[i].logprobs == expected[i].logprobs);
  }
}

/// The ConfigError of an engine with this config, which all ranks get.
std::string refusal(const EngineConfig& config) {
  const std::string mine = error_of<ConfigError>([&] { Engine32 engine(config); });
  for (const std::vector<std::byte>& theirs :
       world()->gather(std::as_bytes(std::span(mine.data(), mine.size()))))
    CHECK(std::string(reinterpret_cast<const char*>(theirs.data()), theirs.size()) == mine);
  return mine;
}

}  // namespace

TEST_CASE("TP 2 in processes = TP 2 in threads = TP 1 in float32", "[ranks]") {
  if (!processes_present(2) || !ranks_present(2)) return;
  const std::string model = GENERATE(as<std::string>{}, "fairytale", "group4_untied_sharded");
  INFO(model);
  EngineConfig config = ranks_config(model, 2, world());
  config.step_timeout = std::chrono::seconds(600);  // a rank on a thread that does not start MPI
  for (int round = 0; round < 2; ++round) {         // a group serves one engine after the other
    const std::vector<Trace> processes = serve_in_processes<Engine32>(config);
    config.step_timeout.reset();
    config.extras.set(PeerOptions{.max_bytes = 0});  // by NCCL alone, on GPUs
    if (world()->rank() != 0) continue;
    const auto threads = serve_on_threads<Engine32>(ranks_config(model, 2));
    check_near(processes, serve_on_threads<Engine32>(ranks_config(model, 1)), kFloat32Bound);
    if (kReproducible) check_same_bits(processes, threads);
  }
}

TEST_CASE("TP 2 in processes = TP 2 in threads, and like TP 1, in bfloat16", "[ranks]") {
  if (!processes_present(2) || !ranks_present(2)) return;
  const std::string model = GENERATE(as<std::string>{}, "fairytale", "group4_untied_sharded");
  INFO(model);
  const std::vector<Trace> processes =
      serve_in_processes<Engine16>(ranks_config(model, 2, world()));
  if (world()->rank() != 0) return;
  // The fairytale model's logits are large; docs/numerics.md says more.
  const double bound = model == "fairytale" ? 5e-2 : 2e-2;
  check_alike(processes, serve_on_threads<Engine16>(ranks_config(model, 1)), bound);
  if (kReproducible) check_same_bits(processes, serve_on_threads<Engine16>(ranks_config(model, 2)));
}

TEST_CASE("logits for evaluation come from all processes", "[ranks]") {
  if (!processes_present(2) || !ranks_present(2)) return;
  const std::vector<TokenId> prompt = random_prompt(3, 20, 250);
  const auto config = Qwen3Config::load(model_directory("fairytale"));
  const auto logits_of = [&](const Group& group) {
    const Checkpoint checkpoint(model_directory("fairytale"));
    RunnerOf<ProcessFloat32> runner(
        config,
        {.num_ranks = 2,
         .num_threads = 2,
         .limits = {.max_num_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 64},
         .block_size = ProcessFloat32::kv.block_size,
         .processes = group},
        [&](auto& weights, auto& backend, int) { weights.load(checkpoint, backend); });
    runner.allocate_kv(8);
    std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
    if (group && group->rank() != 0) {
      runner.run_worker();
      return logits;
    }
    Sequence sequence;
    sequence.tokens = prompt;
    for (BlockId b = 0; b * ProcessFloat32::kv.block_size < 20; ++b)
      sequence.block_table.push_back(b + 1);
    StepPlan plan;
    plan.sequences.push_back({.sequence = &sequence, .end = 20, .rows = {{RowKind::draw, 19, 1}}});
    plan.num_tokens = 20;
    HostSamplingBatch sampling;
    append_sample(sampling, {});
    StepInputs inputs;
    inputs.build(plan, ProcessFloat32::kv.block_size, sampling);
    runner.run_logits(inputs, {logits.data(), {1, config.vocab_size}});
    return logits;
  };
  std::vector<float> processes;
  run_rank([&] { processes = logits_of(world()); });
  if (world()->rank() != 0) return;
  const std::vector<float> threads = logits_of(nullptr);
  double largest = 0, sum = 0;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(threads[i] - processes[i])));
    sum += std::abs(threads[i]);
  }
  CHECK(sum > 0);
  CHECK(largest <= (kReproducible ? 0 : 1e-3));
}

TEST_CASE("processes that do not fit together say so on all ranks, before anything is computed",
          "[ranks]") {
  if (!processes_present(2)) return;
  EngineConfig config = ranks_config("fairytale", 2, world());
  const bool is_odd = world()->rank() == 1;
  SECTION("number of ranks") {
    config.tensor_parallel = 1;
    CHECK_THAT(refusal(config), Contains("tensor_parallel = 1, but there are 2 processes"));
  }
  if (!ranks_present(2)) return;
  SECTION("settings") {
    config.max_num_seqs = is_odd ? 9 : 8;
    CHECK_THAT(refusal(config), Contains("max_num_seqs is 9 on rank 1 and 8 on rank 0"));
  }
  SECTION("how peers add") {
    config.extras.set(PeerOptions{.max_bytes = is_odd ? 0 : 8192});
    CHECK_THAT(refusal(config),
               Contains("PeerOptions::max_bytes is 0 on rank 1 and 8192 on rank 0"));
  }
  SECTION("the model") {
    if (is_odd) config.model = model_directory("group4_untied_sharded");
    CHECK_THAT(refusal(config), Contains("hidden_size is"));
  }
  // The group is as before.
  config = ranks_config("fairytale", 2, world());
  CHECK(serve_in_processes<Engine32>(config).size() == (is_odd ? 0 : 12));
}

TEST_CASE("followers take no requests, rank 0 follows nobody, and there is no reset", "[ranks]") {
  if (!processes_present(2) || !ranks_present(2)) return;
  run_rank([] {
    Engine32 engine(ranks_config("fairytale", 2, world()));
    if (world()->rank() != 0) {
      CHECK_THROWS_AS(engine.submit(std::vector<TokenId>{1}), RequestError);
      return engine.run_worker();
    }
    check(!engine.generate(std::vector<TokenId>{1}, greedy(2)).token_ids.empty(), "generate");
    CHECK_THAT(error_of<Error>([&] { engine.run_worker(); }), Contains("this is rank 0"));
    CHECK_THAT(error_of<Error>([&] { engine.reset(); }),
               Contains("reset: the ranks are in several processes"));
  });
}
