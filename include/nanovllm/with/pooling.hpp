#pragma once
/// Embeddings and scores: `embed`, `score`, `classify`, `Reranker`, and heads of checkpoints for
/// classification, which a header-only program can open if one of its files includes this.

#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/pooling/pooled_calls.hpp"
#include "nanovllm/with/pooling/reranker.hpp"
#include "nanovllm/with/pooling/score_head.hpp"
