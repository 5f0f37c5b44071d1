#pragma once
/// Embeddings and scores: `embed`, `Reranker`, heads of checkpoints for classification, and what a
/// pooler of your own derives from.

#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/pooling/pooled_calls.hpp"
#include "nanovllm/with/pooling/pooler.hpp"
#include "nanovllm/with/pooling/pooling_options.hpp"
#include "nanovllm/with/pooling/reranker.hpp"
#include "nanovllm/with/pooling/score_head.hpp"
