#pragma once
/// How a request is sampled once the checkpoint's defaults have filled what it left unset.

#include <cstdint>

#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {
/// How a request is sampled once the checkpoint's defaults have filled what it left unset.
[[nodiscard]] inline SamplingRow resolve_sampling(const SamplingParams& params,
                                                  const GenerationConfig& defaults,
                                                  std::uint64_t engine_seed) {
  const auto pick = [](const auto& own, const auto& theirs, auto neutral) {
    return own ? *own : theirs ? *theirs : neutral;
  };
  return {.temperature = pick(params.temperature, defaults.temperature, 1.f),
          .top_k = pick(params.top_k, defaults.top_k, std::int32_t{0}),
          .top_p = pick(params.top_p, defaults.top_p, 1.f),
          .min_p = pick(params.min_p, defaults.min_p, 0.f),
          .seed = params.seed.value_or(engine_seed),
          .position = 0,
          .num_logprobs = params.logprobs.value_or(-1)};
}

}  // namespace nanovllm
