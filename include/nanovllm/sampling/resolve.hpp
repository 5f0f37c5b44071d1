#pragma once
/// How a request is sampled once the checkpoint's defaults have filled what it left unset.

#include <cstdint>
#include <optional>

#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// `params` with the checkpoint's defaults for what it leaves unset, and `engine_seed` for a seed.
/// A beam search takes nothing from the checkpoint; where `honours_edits` is false, the repetition
/// penalty stays unset.
[[nodiscard]] inline SamplingParams with_defaults(SamplingParams params,
                                                  const GenerationConfig& defaults,
                                                  std::uint64_t engine_seed, bool honours_edits) {
  const auto fill = [](auto& own, const auto& theirs) {
    if (!own) own = theirs;
  };
  if (!params.seed) params.seed = engine_seed;
  if (params.beam_width) return params;
  fill(params.temperature, defaults.temperature);
  fill(params.top_k, defaults.top_k);
  fill(params.top_p, defaults.top_p);
  fill(params.min_p, defaults.min_p);
  if (honours_edits) fill(params.repetition_penalty, defaults.repetition_penalty);
  return params;
}

/// How a row of logits is drawn from by `params`; what is unset there is neutral. A top_p of 0 is
/// greedy: it keeps the most likely token alone.
[[nodiscard]] inline SamplingRow sampling_row(const SamplingParams& params) {
  const bool keeps_one = params.top_p == 0.f;
  return {.temperature = keeps_one ? 0 : params.temperature.value_or(1),
          .top_k = params.top_k.value_or(0),
          .top_p = keeps_one ? 1 : params.top_p.value_or(1),
          .min_p = params.min_p.value_or(0),
          .seed = params.seed.value_or(0),
          .position = 0,
          .num_logprobs = params.logprobs.value_or(-1)};
}

[[nodiscard]] inline bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty.value_or(1) != 1 || params.frequency_penalty != 0 ||
         params.presence_penalty != 0;
}

}  // namespace nanovllm
