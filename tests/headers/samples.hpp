#pragma once
/// What the samples in the headers' comments take as given; see check_samples.sh.

#include <nanovllm/nanovllm.hpp>

namespace nvllm = nanovllm;
using namespace nanovllm;

using Policy = DefaultPolicy;
using Backend = Policy::Backend;

extern Engine<Qwen3<shapes::fairytale>> engine;
extern Scheduler<ContinuousBatching, BlockManager<16, HashPrefixCache<16>>, RecomputePreemption>
    scheduler;
extern const std::vector<StepOutcome> outcomes;
void run_server(AnyEngine& engine);
