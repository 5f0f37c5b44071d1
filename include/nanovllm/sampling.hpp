#pragma once
/// How tokens are drawn: parameters, logits processors, masks, stop rules.

#include "nanovllm/sampling/choice_source.hpp"
#include "nanovllm/sampling/logits_processor.hpp"
#include "nanovllm/sampling/resolve.hpp"
#include "nanovllm/sampling/sampling_json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/sampling/standard_processors.hpp"
#include "nanovllm/sampling/stop_matcher.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"
