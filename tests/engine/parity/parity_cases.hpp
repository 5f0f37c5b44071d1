#pragma once
/// The engine against Hugging Face transformers, on any backend: expected log-probabilities and
/// greedy tokens made by tests/oracle/make_parity_fixtures.py. Who includes this defines
/// `BackendFloat32` and `BackendBfloat16`, the policies, and `backend_present()` before.

#include <algorithm>
#include <cmath>

#include "engine/parity/parity.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

TEST_CASE("float32 log-probabilities of every position are those of transformers", "[parity]") {
  if (!backend_present()) return;
  const std::string model = GENERATE(as<std::string>{}, "group4_untied_sharded", "group1_tied_yarn",
                                     "group8_untied_yarn_4x", "fairytale");
  Difference full, likely;
  compare_prefixes<AnyModel, BackendFloat32>(model_directory(model), 128,
                                             Reference(model, "float32"), full, likely);
  INFO(model << ": largest difference " << full.largest << ", mean " << full.mean());
  CHECK(full.largest < 1e-4);
  CHECK(likely.largest < 1e-4);
}

TEST_CASE("float32 greedy tokens and their log-probabilities are those of transformers",
          "[parity]") {
  if (!backend_present()) return;
  const std::string model = GENERATE(as<std::string>{}, "group4_untied_sharded", "group1_tied_yarn",
                                     "group8_untied_yarn_4x", "fairytale");
  const Reference reference(model, "float32");
  Engine<AnyModel, BackendFloat32> engine(
      {.model = model_directory(model), .num_threads = 2, .max_model_len = 128});
  INFO(model);
  compare_greedy(engine, reference);
}

TEST_CASE("bfloat16 log-probabilities are near those of transformers", "[parity]") {
  if (!backend_present()) return;
  const std::string model = GENERATE(as<std::string>{}, "group4_untied_sharded", "group1_tied_yarn",
                                     "group8_untied_yarn_4x", "fairytale");
  const Reference reference(model, "bfloat16");
  Difference full, likely;
  compare_prefixes<AnyModel, BackendBfloat16>(model_directory(model), 128, reference, full, likely);
  INFO(model << ": mean difference " << full.mean() << ", of likely tokens " << likely.mean());
  // The fairytale model has logits so large that transformers' own bfloat16 is 3e-2 from its float32;
  // there, two roundings that do not depend on each other are the bound. docs/numerics.md has more.
  const double bound = std::max(2e-2, std::sqrt(2.0) * reference.own_rounding());
  CHECK((model == "fairytale") == (bound > 2e-2));
  CHECK(full.mean() < bound);
  CHECK(likely.mean() < bound);
}

TEST_CASE("bfloat16 greedy tokens part from transformers' only at near ties", "[parity]") {
  if (!backend_present()) return;
  const std::string model = GENERATE(as<std::string>{}, "group4_untied_sharded", "group1_tied_yarn",
                                     "group8_untied_yarn_4x", "fairytale");
  const Reference reference(model, "bfloat16");
  Engine<AnyModel, BackendBfloat16> engine(
      {.model = model_directory(model), .num_threads = 2, .max_model_len = 128});
  const Mismatches found = greedy_mismatches(engine, reference);
  INFO(model << ": " << found.count << " of " << found.num_steps << " differ, the widest gap is "
             << found.widest_gap);
  CHECK(found.widest_gap < std::max(2e-2, reference.own_largest_disagreement()));
  CHECK(found.count < found.num_steps / 10);
}
