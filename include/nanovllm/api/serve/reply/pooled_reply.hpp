#pragma once
/// Requests for vectors and scores: from a body to an exchange that the engine works on, and the
/// replies of /v1/embeddings, /score and /rerank, which come whole.

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/admission.hpp"
#include "nanovllm/api/serve/engine_exchange.hpp"
#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/api/serve/reply/generation.hpp"
#include "nanovllm/api/serve/reply/reply_writer.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/request/pooled_requests.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/pooling/pooled_calls.hpp"
#include "nanovllm/with/pooling/reranker.hpp"

namespace nanovllm::serve {

/// `bytes` in base64 (RFC 4648, section 4), with padding.
[[nodiscard]] inline std::string to_base64(std::span<const std::byte> bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = bytes.size() - i < 3 ? bytes.size() - i : 3;
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (k < count ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0);
    for (std::size_t k = 0; k < 4; ++k)
      out += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

/// A reply that is never a stream, and has no tokens of an answer.
class PooledReply : public ReplyWriter {
 public:
  void append_chunks(std::string&, std::size_t, const ChoiceUpdate&, const Usage&) final {}
  void append_end(std::string&, const Usage&) final {}
  [[nodiscard]] std::string_view finish_reason() const final { return "stop"; }

 protected:
  /// The usage of the prompts alone.
  [[nodiscard]] static Json usage_json(Usage usage) {
    usage.num_completion_tokens = 0;
    return usage.to_json();
  }
};

namespace detail {

static_assert(std::endian::native == std::endian::little, "vectors in base64 are little-endian");

/// A list of numbers, each with the fewest digits that read as the same float.
inline std::string numbers_json(std::span<const float> vector) {
  std::array<char, 32> digits;
  std::string out = "[";
  for (const float x : vector) {
    if (out.back() != '[') out += ',';
    out.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), x).ptr);
  }
  return out + ']';
}

}  // namespace detail

/// Writes vectors. The engine gives whole hidden states: they are cut and scaled here, on a thread
/// of the transport.
class EmbeddingReply final : public PooledReply {
 public:
  EmbeddingReply(ReplyFrame frame, bool base64, bool normalize,
                 std::optional<std::size_t> dimensions)
      : frame_(std::move(frame)),
        base64_(base64),
        dimensions_(dimensions),
        pooler_(normalize, dimensions) {}

  /// Throws ApiError: 400 if the model has fewer dimensions, 500 for a vector that is not finite.
  [[nodiscard]] std::string whole(const OutputUpdate& update, const Usage& usage) override {
    WholeFrame reply(frame_, "data");
    for (std::size_t i = 0; i < update.choices.size(); ++i) {
      const std::vector<float>& hidden = update.choices[i].pooled;
      if (dimensions_.value_or(0) > hidden.size())
        throw ApiError(400,
                       concat("dimensions must be at most ", hidden.size(), ", got ", *dimensions_),
                       "dimensions");
      const std::vector<float> vector = pooler_.pool(hidden);
      if (!std::ranges::all_of(vector, [](float x) { return std::isfinite(x); }))
        throw ApiError(500, concat("the vector of input ", i, " is not finite"));
      reply.add(concat(R"({"index": )", i, R"(, "object": "embedding", "embedding": )",
                       base64_ ? '"' + to_base64(std::as_bytes(std::span(vector))) + '"'
                               : detail::numbers_json(vector),
                       '}'));
    }
    return reply.end(Json::object({{"usage", usage_json(usage)}}));
  }

 private:
  const ReplyFrame frame_;
  const bool base64_;
  const std::optional<std::size_t> dimensions_;
  const LastTokenPooler pooler_;
};

/// Writes the scores of documents, in the request's order, or as a reranking: the best first, and
/// of equal ones those that came first.
class ScoreReply final : public PooledReply {
 public:
  ScoreReply(ReplyFrame frame, bool is_reranking, Reranker reranker, ScoreRequest request)
      : frame_(std::move(frame)),
        is_reranking_(is_reranking),
        reranker_(std::move(reranker)),
        request_(std::move(request)) {}

  [[nodiscard]] std::string whole(const OutputUpdate& update, const Usage& usage) override {
    std::vector<float> scores;
    for (const ChoiceUpdate& choice : update.choices) scores.push_back(reranker_.score_of(choice));
    if (is_reranking_) return reranking(scores, usage);
    WholeFrame reply(frame_, "data");
    for (std::size_t i = 0; i < scores.size(); ++i)
      reply.add(Json::object({{"index", i}, {"object", "score"}, {"score", scores[i]}}).dump());
    return reply.end(Json::object({{"usage", usage_json(usage)}}));
  }

 private:
  [[nodiscard]] std::string reranking(const std::vector<float>& scores, const Usage& usage) const {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order,
                             [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    order.resize(std::min(order.size(), request_.top_n.value_or(order.size())));
    Json results = Json::array();
    for (const std::size_t i : order) {
      Json result = Json::object({{"index", i}, {"relevance_score", scores[i]}});
      if (request_.return_documents)
        result["document"] = Json::object({{"text", request_.documents[i]}});
      results.push_back(std::move(result));
    }
    return Json::object({{"id", frame_.id},
                         {"model", frame_.model},
                         {"usage", usage_json(usage)},
                         {"results", std::move(results)}})
        .dump();
  }

  const ReplyFrame frame_;
  const bool is_reranking_;
  const Reranker reranker_;
  const ScoreRequest request_;
};

namespace detail {

/// Throws FieldError if vectors of the model have fewer dimensions, as far as that is known before
/// one is computed.
inline void check_dimensions(const AnyEngine& engine, std::optional<std::size_t> dimensions) {
  const auto most = engine.hidden_size();
  if (!dimensions || !most || *dimensions <= static_cast<std::size_t>(*most)) return;
  refuse_field("dimensions", concat("must be at most ", *most, ", got ", *dimensions));
}

}  // namespace detail

// Each encodes a request's texts and submits a request for each of them. Null if that takes
// longer than `effort` allows. Throws ApiError for a request that cannot be served, and whatever
// the engine throws.

/// The exchange of a request for embeddings.
[[nodiscard]] inline std::shared_ptr<Exchange> start_embedding(AnyEngine& engine,
                                                               Generation& generation,
                                                               EmbeddingRequest request,
                                                               const Effort& effort) {
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

/// That of a request to score documents, or to sort them by their scores.
/// @param defaults  what the request does not say.
[[nodiscard]] inline std::shared_ptr<Exchange> start_scoring(
    AnyEngine& engine, Generation& generation, const ScoreOptions& defaults, bool is_reranking,
    ScoreRequest request, const Effort& effort) {
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
