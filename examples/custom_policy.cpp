// Your own scheduling policy, in one type. Usage: custom_policy [MODEL_DIR]
//
// `OneAtATime` serves requests strictly one after the other, which is what an engine without
// batching does. The program runs the same prompts through it and through the default policy: the
// texts are equal, the time is not.
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "plain_command_line.hpp"

namespace nvllm = nanovllm;

/// Plans like continuous batching, for a batch of one.
struct OneAtATime {
  template <class Blocks>
  static nvllm::StepPlan plan(const nvllm::SchedulerView& queues, const Blocks& blocks,
                              nvllm::BatchConfig config) {
    config.max_num_seqs = 1;
    return nvllm::ContinuousBatching::plan(queues, blocks, config);
  }
};

struct OneAtATimePolicy : nvllm::DefaultPolicy {
  using Scheduling = OneAtATime;
  static constexpr nvllm::KvConfig kv{.block_size = 32};
};

template <class Policy>
std::vector<nvllm::Output> run(const std::string& model, const std::vector<std::string>& prompts) {
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::fairytale>, Policy> engine(
      {.model = model, .on_generate = nvllm::generate_progress_line()});
  std::printf("%s", engine.describe().c_str());
  const auto begin = std::chrono::steady_clock::now();
  auto outputs = engine.generate(prompts, {.temperature = 0.f, .max_tokens = 64});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("=> %zu requests in %.2f s\n\n", outputs.size(), seconds.count());
  return outputs;
}

int main(int argc, char** argv) try {
  const auto line = nvllm::examples::read_command_line(
      argc, argv,
      {.text = "usage: custom_policy [MODEL_DIR]\n"
               "Serves the same prompts by the default policy and by one of its own.\n",
       .most = 1});
  if (line.status) return *line.status;
  const std::string model = line.argument(0, "examples/models/fairytale");
  std::vector<std::string> prompts;
  for (const char* who :
       {"king", "tailor", "fox", "princess", "miller", "wolf", "giant", "queen"}) {
    prompts.push_back(std::string("Once upon a time there was a ") + who + " who");
  }
  const auto batched = run<nvllm::DefaultPolicy>(model, prompts);
  const auto alone = run<OneAtATimePolicy>(model, prompts);
  std::size_t num_equal = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) num_equal += batched[i].text == alone[i].text;
  std::printf("%zu of %zu texts are equal; the first:\n%s%s\n", num_equal, prompts.size(),
              prompts[0].c_str(), alone[0].text.c_str());
  return num_equal == prompts.size() ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "custom_policy: %s\n", error.what());
  return 1;
}
