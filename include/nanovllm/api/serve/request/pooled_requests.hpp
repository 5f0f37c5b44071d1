#pragma once
/// The bodies of POST /v1/embeddings, and of /score and /rerank. The rules for fields are those of
/// text_requests.hpp.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// Most inputs of a request for embeddings, as OpenAI has it, and most documents to be scored.
inline constexpr std::size_t kMaxPooledInputs = 2048;

/// A request for the embeddings of one or more texts.
struct EmbeddingRequest : PromptRequest {
  std::vector<Prompt> inputs{};             ///< texts or token ids, none of them empty
  bool base64 = false;                      ///< else the vectors are lists of numbers
  std::optional<std::size_t> dimensions{};  ///< 1 or more
  bool normalize = true;
  bool add_special_tokens = true;  ///< those that the tokeniser adds to a text
  std::int32_t priority = 0;       ///< as SamplingParams has it

  /// Throws RequestError.
  [[nodiscard]] static EmbeddingRequest parse(const Json& body);
};

/// A request to score documents. Document i answers query i, or the only one.
struct ScoreRequest : PromptRequest {
  std::vector<std::string> queries{}, documents{};
  std::string documents_field{};             ///< the field that has them
  std::optional<std::string> instruction{};  ///< unset: the service's
  std::int32_t priority = 0;                 ///< as SamplingParams has it

  // Of a reranking, whose reply is sorted:
  std::optional<std::size_t> top_n{};               ///< as many of the best; unset: all
  bool return_documents = true;                     ///< their texts, too
  std::optional<std::size_t> max_tokens_per_doc{};  ///< of a longer document the end is cut off

  /// `text_1` and `text_2`, or `queries` and `documents`: texts or lists of texts, one with many,
  /// or two lists of one length. Throws RequestError.
  [[nodiscard]] static ScoreRequest parse_score(const Json& body);

  /// `query`, a text, and `documents`, texts or objects with a `text`. Throws RequestError.
  [[nodiscard]] static ScoreRequest parse_rerank(const Json& body);

  [[nodiscard]] const std::string& query_of(std::size_t document) const {
    return queries[queries.size() == 1 ? 0 : document];
  }

  /// Of all prompts together, each of which has its query.
  [[nodiscard]] std::size_t num_text_bytes() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < documents.size(); ++i)
      count += documents[i].size() + query_of(i).size() + instruction.value_or("").size();
    return count;
  }
};

inline EmbeddingRequest EmbeddingRequest::parse(const Json& json) {
  const RequestFields body(json);
  EmbeddingRequest request;
  request.model = body.string("model").value_or("");
  request.inputs = parse_prompts(body, "input", kMaxPooledInputs);
  const std::string format = body.string("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    refuse_field("encoding_format", concat("must be 'float' or 'base64', got '", format, "'"));
  request.base64 = format == "base64";
  if (const auto dimensions = body.integer("dimensions", 1, kMaxCount))
    request.dimensions = static_cast<std::size_t>(*dimensions);
  request.normalize = body.flag("normalize", body.flag("use_activation", true));
  refuse_unserved(body, kUnservedOfEmbeddings);
  request.add_special_tokens = body.flag("add_special_tokens", true);
  request.read_prompt_fields(body);
  request.priority = parse_priority(body);
  return request;
}

namespace detail {

/// A text, or a list of texts; where `has_objects`, also {"text": a text}.
inline std::vector<std::string> read_texts(const RequestFields& body, const std::string& key,
                                           bool has_objects) {
  const Json& value = body.required(key);
  if (value.is_string()) return {value.string()};
  if (!value.is_array()) wrong_field(key, "a string or a list of strings", value);
  if (value.empty()) refuse_field(key, "must not be empty");
  if (value.size() > kMaxPooledInputs)
    refuse_field(key, concat("must have at most ", kMaxPooledInputs, " texts, got ", value.size()));
  std::vector<std::string> texts;
  for (const Json& element : value) {
    const std::string path = element_path(key, texts.size());
    const bool is_object = has_objects && element.is_object();
    texts.push_back(is_object
                        ? string_at(RequestFields(element, path).required("text"), path + ".text")
                        : string_at(element, path));
  }
  return texts;
}

inline void read_common_fields(const RequestFields& body, ScoreRequest& request) {
  request.model = body.string("model").value_or("");
  refuse_unserved(body, kUnservedOfScores);
  request.instruction = body.string("instruction");
  request.read_prompt_fields(body);
  request.priority = parse_priority(body);
}

}  // namespace detail

inline ScoreRequest ScoreRequest::parse_score(const Json& json) {
  const RequestFields body(json);
  ScoreRequest request;
  detail::read_common_fields(body, request);
  const bool is_named = body.has("queries") || body.has("documents");
  request.documents_field = is_named ? "documents" : "text_2";
  request.queries = detail::read_texts(body, is_named ? "queries" : "text_1", false);
  request.documents = detail::read_texts(body, request.documents_field, false);
  const std::size_t count = request.queries.size();
  if (request.documents.size() == 1) request.documents.resize(count, request.documents[0]);
  if (count != 1 && count != request.documents.size())
    refuse_field(request.documents_field,
                 concat("must have one text or ", count, ", as many as there are queries, got ",
                        request.documents.size()));
  return request;
}

inline ScoreRequest ScoreRequest::parse_rerank(const Json& json) {
  const RequestFields body(json);
  ScoreRequest request;
  detail::read_common_fields(body, request);
  request.documents_field = "documents";
  request.queries = {string_at(body.required("query"), "query")};
  request.documents = detail::read_texts(body, "documents", true);
  const auto top_n = body.integer("top_n", 0, kMaxCount);
  if (top_n.value_or(0) > 0) request.top_n = static_cast<std::size_t>(*top_n);  // vLLM's 0 is all
  request.return_documents = body.flag("return_documents", true);
  const auto most = body.integer("max_tokens_per_doc", 0, kMaxCount);
  if (most.value_or(0) > 0) request.max_tokens_per_doc = static_cast<std::size_t>(*most);
  return request;
}

}  // namespace nanovllm::serve
