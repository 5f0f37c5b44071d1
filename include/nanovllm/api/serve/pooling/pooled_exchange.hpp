#pragma once
/// Starts requests for vectors and scores: from a body to an exchange that the engine works on.

#include <memory>
#include <string_view>

#include "nanovllm/api/serve/effort.hpp"
#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/api/serve/reply/generation.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/with/pooling/pooled_calls.hpp"
#include "nanovllm/with/pooling/reranker.hpp"

namespace nanovllm::serve {

// Each parses a body, encodes its texts and submits a request for each of them. Null if that takes
// longer than `effort` allows. Throws ApiError for a request that cannot be served, and whatever
// the engine throws.

/// The exchange of a request for embeddings.
[[nodiscard]] std::shared_ptr<Exchange> start_embedding(AnyEngine& engine, Generation& generation,
                                                        std::string_view body,
                                                        const Effort& effort = {});

/// That of a request to score documents, or to sort them by their scores.
/// @param defaults  what the request does not say.
[[nodiscard]] std::shared_ptr<Exchange> start_scoring(AnyEngine& engine, Generation& generation,
                                                      const ScoreOptions& defaults,
                                                      bool is_reranking, std::string_view body,
                                                      const Effort& effort = {});

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/admission.hpp"
#include "nanovllm/api/serve/engine_exchange.hpp"
#include "nanovllm/api/serve/pooling/embedding_request.hpp"
#include "nanovllm/api/serve/pooling/pooled_reply.hpp"
#include "nanovllm/api/serve/pooling/score_request.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/with/pooling/embedding.hpp"

namespace nanovllm::serve {

namespace detail {

/// Throws FieldError if vectors of the model have fewer dimensions, as far as that is known before
/// one is computed.
NANOVLLM_SERVE_INLINE void check_dimensions(const AnyEngine& engine,
                                            std::optional<std::size_t> dimensions) {
  const auto most = engine.hidden_size();
  if (!dimensions || !most || *dimensions <= static_cast<std::size_t>(*most)) return;
  refuse_field("dimensions", concat("must be at most ", *most, ", got ", *dimensions));
}

}  // namespace detail

NANOVLLM_SERVE_INLINE std::shared_ptr<Exchange> start_embedding(AnyEngine& engine,
                                                                Generation& generation,
                                                                std::string_view body,
                                                                const Effort& effort) {
  auto request = EmbeddingRequest::parse(parse_request_body(body));
  ReplyFrame frame = generation.reply_frame(request.model, "embd-", "list");
  detail::check_dimensions(engine, request.dimensions);
  LoadShare share = generation.admit(static_cast<std::int64_t>(request.inputs.size()));
  const auto num_kept = num_kept_tokens(engine, request.truncation, 1);
  std::vector<std::vector<TokenId>> prompts;
  for (const Prompt& input : request.inputs) {
    effort.check_stop();
    prompts.push_back(
        prompt_tokens(engine, input, request.add_special_tokens, "input", num_kept, effort.stop));
  }
  // The reply cuts and scales.
  const SamplingParams params =
      embedding_params({.normalize = false, .priority = request.priority});
  check_token_ids(engine, prompts, params, "input");
  return std::make_shared<EngineExchange>(
      engine,
      EngineExchange::Setup{.kind = "embedding", .cache_salt = std::move(request.cache_salt)},
      prompts, params,
      std::make_unique<EmbeddingReply>(std::move(frame), request.base64, request.normalize,
                                       request.dimensions),
      share);
}

NANOVLLM_SERVE_INLINE std::shared_ptr<Exchange> start_scoring(
    AnyEngine& engine, Generation& generation, const ScoreOptions& defaults, bool is_reranking,
    std::string_view body, const Effort& effort) {
  const Json json = parse_request_body(body);
  auto request = is_reranking ? ScoreRequest::parse_rerank(json) : ScoreRequest::parse_score(json);
  if (effort.is_short && request.num_text_bytes() > kShortBytes) return nullptr;
  const char* const kind = is_reranking ? "rerank" : "score";
  ReplyFrame frame =
      generation.reply_frame(request.model, is_reranking ? "rerank-" : "score-", "list");
  ScoreOptions options = defaults;
  if (request.instruction) options.instruction = *request.instruction;
  options.priority = request.priority;
  if (request.max_tokens_per_doc) options.max_tokens_per_doc = request.max_tokens_per_doc;
  if (request.truncation)
    options.max_prompt_tokens = num_kept_tokens(engine, request.truncation, 1);
  Reranker reranker(tokenizer_of(engine), options, score_head(engine));
  const std::size_t least = reranker.min_prompt_tokens();
  if (options.max_prompt_tokens.value_or(least) < least)
    refuse_field("truncate_prompt_tokens",
                 concat("must be at least ", least, ", one more than the template has, got ",
                        *options.max_prompt_tokens));
  LoadShare share = generation.admit(static_cast<std::int64_t>(request.documents.size()));
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < request.documents.size(); ++i) {
    effort.check_stop();
    const std::string field = request.documents.size() == 1
                                  ? request.documents_field
                                  : element_path(request.documents_field, i);
    prompts.push_back(prompt_tokens(
        engine, reranker.prompt(request.query_of(i), request.documents[i], effort.stop), false,
        field, {}, effort.stop));
  }
  const EngineExchange::Setup setup{.kind = kind, .cache_salt = request.cache_salt};
  const SamplingParams params = reranker.params();
  return std::make_shared<EngineExchange>(
      engine, setup, prompts, params,
      std::make_unique<ScoreReply>(std::move(frame), is_reranking, std::move(reranker),
                                   std::move(request)),
      share);
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
