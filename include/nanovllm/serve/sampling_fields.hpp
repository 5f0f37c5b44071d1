#pragma once
/// What requests say of sampling, under OpenAI's names and vLLM's.

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/serve/request_fields.hpp"

namespace nanovllm::serve {

/// The fields that chat completions and completions share: temperature, top_p, top_k, min_p,
/// repetition_penalty, frequency_penalty, presence_penalty, logit_bias, allowed_token_ids,
/// bad_words, seed, n, min_tokens, ignore_eos, stop, stop_token_ids, include_stop_str_in_output,
/// skip_special_tokens and priority. Throws ApiError.
[[nodiscard]] SamplingParams parse_sampling(const RequestFields& body);

/// Of completions alone: best_of, use_beam_search, beam_width, length_penalty, early_stopping.
/// With use_beam_search the beams are beam_width, else best_of, else n. Throws ApiError.
void parse_beam_search(const RequestFields& body, SamplingParams& params);

/// Throws ApiError for fields that do not go together, as SamplingParams has it.
void check_sampling(const RequestFields& body, const SamplingParams& params);

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/sampling_fields.inc"
#endif
