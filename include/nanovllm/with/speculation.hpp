#pragma once
/// Speculative decoding: `Guesses = DraftedBy<…>` in a policy. Drafters guess the tokens that come
/// next, a step checks several at once, and every request gets the tokens that it gets without.

#include "nanovllm/with/speculation/config.hpp"
#include "nanovllm/with/speculation/draft_length.hpp"
#include "nanovllm/with/speculation/drafted_by.hpp"
#include "nanovllm/with/speculation/drafter.hpp"
#include "nanovllm/with/speculation/drafting_observer.hpp"
#include "nanovllm/with/speculation/drafts_on_demand.hpp"
#include "nanovllm/with/speculation/eagle3/chains.hpp"
#include "nanovllm/with/speculation/eagle3/part.hpp"
#include "nanovllm/with/speculation/eagle3_drafter.hpp"
#include "nanovllm/with/speculation/model_drafter.hpp"
#include "nanovllm/with/speculation/ngram_drafter.hpp"
