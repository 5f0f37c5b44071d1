#pragma once
/// Replies of /v1/embeddings, /score and /rerank, which come whole.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/pooling/score_request.hpp"
#include "nanovllm/api/serve/reply/reply_writer.hpp"
#include "nanovllm/api/serve/reply/usage.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/pooling/reranker.hpp"

namespace nanovllm::serve {

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
  [[nodiscard]] std::string whole(const OutputUpdate& update, const Usage& usage) override;

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

  [[nodiscard]] std::string whole(const OutputUpdate& update, const Usage& usage) override;

 private:
  [[nodiscard]] std::string reranking(const std::vector<float>& scores, const Usage& usage) const;

  const ReplyFrame frame_;
  const bool is_reranking_;
  const Reranker reranker_;
  const ScoreRequest request_;
};

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>
#include <span>

#include "nanovllm/api/serve/pooling/base64.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"

namespace nanovllm::serve {

namespace detail {

static_assert(std::endian::native == std::endian::little, "vectors in base64 are little-endian");

/// Appends a list of numbers, each with the fewest digits that read as the same float.
NANOVLLM_SERVE_INLINE void append_numbers(std::string& out, std::span<const float> vector) {
  std::array<char, 32> digits;
  out += '[';
  for (const float x : vector) {
    if (out.back() != '[') out += ',';
    out.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), x).ptr);
  }
  out += ']';
}

/// A reply of object "list" up to its data, each an object as JSON text.
NANOVLLM_SERVE_INLINE std::string list_reply(const ReplyFrame& frame, std::string_view data,
                                             const Json& usage) {
  std::string out = frame.to_json().dump();
  out.pop_back();  // the closing brace
  out += ", \"data\": [";
  out += data;
  out += "], \"usage\": ";
  return out + usage.dump() + "}";
}

}  // namespace detail

NANOVLLM_SERVE_INLINE std::string EmbeddingReply::whole(const OutputUpdate& update,
                                                        const Usage& usage) {
  std::string data;
  for (std::size_t i = 0; i < update.choices.size(); ++i) {
    const std::vector<float>& hidden = update.choices[i].pooled;
    if (dimensions_.value_or(0) > hidden.size())
      throw ApiError(400,
                     concat("dimensions must be at most ", hidden.size(), ", got ", *dimensions_),
                     "dimensions");
    const std::vector<float> vector = pooler_.pool(hidden);
    if (!std::ranges::all_of(vector, [](float x) { return std::isfinite(x); }))
      throw ApiError(500, concat("the vector of input ", i, " is not finite"));
    data += concat(i == 0 ? "" : ", ", R"({"index": )", i, R"(, "object": "embedding", )",
                   R"("embedding": )");
    if (base64_) {
      data += '"' + to_base64(std::as_bytes(std::span(vector))) + '"';
    } else {
      detail::append_numbers(data, vector);
    }
    data += '}';
  }
  return detail::list_reply(frame_, data, usage_json(usage));
}

NANOVLLM_SERVE_INLINE std::string ScoreReply::whole(const OutputUpdate& update,
                                                    const Usage& usage) {
  std::vector<float> scores;
  for (const ChoiceUpdate& choice : update.choices) scores.push_back(reranker_.score_of(choice));
  if (is_reranking_) return reranking(scores, usage);
  std::string data;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    data += i == 0 ? "" : ", ";
    data += Json::object({{"index", i}, {"object", "score"}, {"score", scores[i]}}).dump();
  }
  return detail::list_reply(frame_, data, usage_json(usage));
}

NANOVLLM_SERVE_INLINE std::string ScoreReply::reranking(const std::vector<float>& scores,
                                                        const Usage& usage) const {
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

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
