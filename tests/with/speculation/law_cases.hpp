#pragma once
/// The law for one combination of policies: what a request gives with drafts is what it gives
/// without, bit for bit, whatever the drafts are.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/laws/law_matrix.hpp"
#include "with/speculation/drafters.hpp"

namespace nanovllm::test {

/// Draws of all kinds with each of the drafters in a small pool and a large one, steps overlapped
/// and not.
template <class Base, template <int> class Cache, class PreemptionPolicy, class SchedulingPolicy>
void check_drafted() {
  EngineConfig config{
      .model = model_directory(kRandomModels[0]), .num_threads = 1, .max_model_len = 128};
  using Policy = MatrixPolicy<Drafted<Base>, Cache, PreemptionPolicy, SchedulingPolicy>;
  constexpr bool kSwaps = SwapsSequences<PreemptionPolicy>;
  const std::int64_t vocab = Qwen3Config::load(config.model).vocab_size;
  std::int64_t num_preemptions = 0;
  for (const Draws draws : {Draws::one, Draws::four, Draws::beams, Draws::edited}) {
    const MatrixWork work = matrix_work(draws, vocab);
    config.extras.set(SpeculativeConfig{.num_speculative_tokens = 0});
    const std::vector<Answer> alone = matrix_alone<Policy, AnyModel>(work, config);
    known_texts().clear();
    for (std::size_t i = 0; i < alone.size(); ++i) {
      for (const auto& answer : alone[i]) know(work.prompts[i], answer);
    }
    for (const char* method : kAllMethods) {
      CAPTURE(static_cast<int>(draws), method);
      config.extras.set(
          SpeculativeConfig{.method = method, .num_speculative_tokens = 4, .adaptive = false});
      const bool overlap = method[0] % 2 == 0;
      const EngineStats small = check_matrix<Policy, AnyModel>(work, alone, config, overlap, 7,
                                                               kSwaps ? (overlap ? 40 : 6) : 0);
      num_preemptions += small.num_preemptions;
      const EngineStats large =
          check_matrix<Policy, AnyModel>(work, alone, config, !overlap, 400, kSwaps ? 6 : 0);
      const auto stats = large.of<SpeculationStats>();
      const std::string name = method;
      const bool drafts = draws != Draws::beams && name != "empty" && name != "throwing";
      if (name != "ngram") CHECK((stats.num_drafted > 0) == drafts);
      if (drafts && name == "right" && draws == Draws::one)
        CHECK(stats.num_accepted == stats.num_drafted);
      if (name == "wrong" && draws == Draws::one) CHECK(stats.num_accepted == 0);
      if (name == "throwing" && draws != Draws::beams) CHECK(stats.num_failed > 0);
    }
  }
  CHECK(num_preemptions > 0);
}

}  // namespace nanovllm::test
