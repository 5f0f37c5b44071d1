#pragma once
/// The description of a service's routes in OpenAPI 3.1, made of the table that it follows.

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/request/chat_fields.hpp"
#include "nanovllm/api/serve/request/generation_fields.hpp"
#include "nanovllm/api/serve/request/pooled_requests.hpp"
#include "nanovllm/api/serve/request/translated_chat.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/version.hpp"

namespace nanovllm::serve {

/// What a request's body is.
enum class BodyKind : std::uint8_t {
  none,
  chat,
  completion,
  embedding,
  score,
  rerank,
  tokenize,
  detokenize,
  messages,
  count_tokens,
  responses
};

/// A route, as far as clients see it.
struct RouteInfo {
  std::string_view path;  ///< one that ends in '/' is followed by a name
  std::string_view method, kind, summary;
  BodyKind body = BodyKind::none;
  std::string_view reply_type = "application/json";
  std::string_view after_name{};  ///< what follows that name
};

namespace detail {

/// Fields that several bodies share, beside `model`, which all have.
enum class SharedFields : std::uint8_t {
  none,
  prompts,     ///< kPromptProperties, and `priority`
  sampling,    ///< also `stream`, and the fields of sampling that copy_shared_fields takes
  generation,  ///< also kGenerationProperties, and those of sampling
};

/// A body's own fields, which go before those it shares. JSON.
struct BodySchema {
  BodyKind kind;
  std::string_view name;
  std::string_view fields;    ///< "properties"
  std::string_view required;  ///< a list of names
  SharedFields shared = SharedFields::none;
};

inline constexpr std::string_view kPromptProperties = R"({
  "truncate_prompt_tokens": {"type": "integer", "minimum": -1},
  "cache_salt": {"type": "string", "minLength": 1, "maxLength": 512}})";

inline constexpr std::string_view kGenerationProperties = R"({
  "stream": {"type": "boolean"},
  "add_special_tokens": {"type": "boolean"},
  "stream_options": {"$ref": "#/components/schemas/StreamOptions"},
  "response_format": {"$ref": "#/components/schemas/ResponseFormat"},
  "return_token_ids": {"type": "boolean"},
  "return_tokens_as_token_ids": {"type": "boolean"},
  "guided_json": {"anyOf": [{"type": "object"}, {"type": "string"}]},
  "guided_regex": {"type": "string", "minLength": 1},
  "guided_choice": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}})";

inline constexpr std::string_view kChatProperties = R"({
  "messages": {"type": "array", "minItems": 1, "items": {
    "type": "object", "required": ["role"], "properties": {
      "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
      "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {
        "type": "object", "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}}]}}}},
  "logprobs": {"type": "boolean"},
  "tools": {"type": "array", "items": {"type": "object"}},
  "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]},
  "parallel_tool_calls": {"type": "boolean"},
  "chat_template_kwargs": {"type": "object"},
  "continue_final_message": {"type": "boolean"}})";

inline constexpr std::string_view kCompletionProperties = R"({
  "prompt": {"$ref": "#/components/schemas/Prompt"},
  "echo": {"type": "boolean"},
  "use_beam_search": {"type": "boolean"}})";

inline constexpr std::string_view kScoreProperties = R"({
  "text_1": {"$ref": "#/components/schemas/Texts"},
  "text_2": {"$ref": "#/components/schemas/Texts"},
  "queries": {"$ref": "#/components/schemas/Texts"},
  "documents": {"$ref": "#/components/schemas/Texts"},
  "instruction": {"type": "string"}})";

inline constexpr std::string_view kRerankProperties = R"({
  "query": {"type": "string"},
  "documents": {"type": "array", "minItems": 1, "items": {"anyOf": [
    {"type": "string"},
    {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}]}},
  "top_n": {"type": "integer", "minimum": 0},
  "return_documents": {"type": "boolean"},
  "max_tokens_per_doc": {"type": "integer", "minimum": 0},
  "instruction": {"type": "string"}})";

inline constexpr std::string_view kEmbeddingProperties = R"({
  "input": {"$ref": "#/components/schemas/Prompt"},
  "encoding_format": {"enum": ["float", "base64"]},
  "dimensions": {"type": "integer", "minimum": 1},
  "normalize": {"type": "boolean"},
  "add_special_tokens": {"type": "boolean"}})";

inline constexpr std::string_view kTokenizeProperties = R"({
  "prompt": {"type": "string"},
  "messages": {"type": "array", "items": {"type": "object"}},
  "add_special_tokens": {"type": "boolean"},
  "return_token_strs": {"type": "boolean"}})";

inline constexpr std::string_view kMessagesProperties = R"({
  "max_tokens": {"type": "integer", "minimum": 1},
  "messages": {"type": "array", "minItems": 1, "items": {
    "type": "object", "required": ["role", "content"], "properties": {
      "role": {"enum": ["user", "assistant", "system"]},
      "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}}}},
  "system": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
  "stop_sequences": {"type": "array", "items": {"type": "string", "minLength": 1}},
  "tools": {"type": "array", "items": {"type": "object", "required": ["name", "input_schema"]}},
  "tool_choice": {"type": "object"}, "thinking": {"type": "object"},
  "output_config": {"type": "object"}})";

inline constexpr std::string_view kResponsesProperties = R"({
  "input": {"anyOf": [{"type": "string"},
                      {"type": "array", "minItems": 1, "items": {"type": "object"}}]},
  "instructions": {"type": "string"},
  "max_output_tokens": {"type": "integer", "minimum": 1},
  "tools": {"type": "array", "items": {"type": "object", "required": ["type", "name"]}},
  "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]},
  "parallel_tool_calls": {"type": "boolean"}, "reasoning": {"type": "object"},
  "text": {"type": "object"}, "include": {"type": "array", "items": {"type": "string"}},
  "previous_response_id": {"type": "string"}, "store": {"type": "boolean"},
  "truncation": {"enum": ["auto", "disabled"]}})";

inline constexpr std::string_view kDetokenizeProperties = R"({
  "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
  "skip_special_tokens": {"type": "boolean"}})";

inline constexpr BodySchema kBodySchemas[] = {
    {BodyKind::chat, "ChatCompletionRequest", kChatProperties, R"(["messages"])",
     SharedFields::generation},
    {BodyKind::completion, "CompletionRequest", kCompletionProperties, R"(["prompt"])",
     SharedFields::generation},
    {BodyKind::embedding, "EmbeddingRequest", kEmbeddingProperties, R"(["input"])",
     SharedFields::prompts},
    {BodyKind::score, "ScoreRequest", kScoreProperties, "[]", SharedFields::prompts},
    {BodyKind::rerank, "RerankRequest", kRerankProperties, R"(["query", "documents"])",
     SharedFields::prompts},
    {BodyKind::tokenize, "TokenizeRequest", kTokenizeProperties, "[]"},
    {BodyKind::detokenize, "DetokenizeRequest", kDetokenizeProperties, R"(["tokens"])"},
    {BodyKind::messages, "MessagesRequest", kMessagesProperties, R"(["max_tokens", "messages"])",
     SharedFields::sampling},
    {BodyKind::count_tokens, "CountTokensRequest", kMessagesProperties, R"(["messages"])"},
    {BodyKind::responses, "ResponsesRequest", kResponsesProperties, R"(["input"])",
     SharedFields::sampling},
};

/// Lists that may have so many elements.
struct ListLimit {
  BodyKind kind;
  std::string_view field;
  std::size_t most;
};

inline constexpr ListLimit kListLimits[] = {
    {BodyKind::chat, "messages", kMaxMessages},
    {BodyKind::chat, "tools", kMaxTools},
    {BodyKind::chat, "guided_choice", kMaxChoices},
    {BodyKind::completion, "guided_choice", kMaxChoices},
    {BodyKind::rerank, "documents", kMaxPooledInputs},
    {BodyKind::messages, "messages", kMaxMessages},
    {BodyKind::messages, "tools", kMaxTools},
    {BodyKind::messages, "stop_sequences", kMaxStopStrings},
    {BodyKind::responses, "tools", kMaxTools},
};

/// What bodies and replies have in common.
inline constexpr std::string_view kSharedSchemas = R"({
  "Error": {"type": "object", "required": ["error"], "properties": {"error": {
    "type": "object", "required": ["message", "type", "param", "code"], "properties": {
      "message": {"type": "string"}, "type": {"type": "string"},
      "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}},
  "AnthropicError": {"type": "object", "required": ["type", "error"], "properties": {
    "type": {"const": "error"}, "error": {
      "type": "object", "required": ["type", "message"], "properties": {
        "type": {"type": "string"}, "message": {"type": "string"}}}}},
  "Prompt": {"anyOf": [
    {"type": "string"},
    {"type": "array", "minItems": 1, "items": {"type": "string"}},
    {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
    {"type": "array", "minItems": 1,
     "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}}]},
  "Texts": {"anyOf": [{"type": "string"},
                      {"type": "array", "minItems": 1, "items": {"type": "string"}}]},
  "StreamOptions": {"type": "object", "properties": {
    "include_usage": {"type": "boolean"}, "continuous_usage_stats": {"type": "boolean"}}},
  "ResponseFormat": {"type": "object", "required": ["type"], "properties": {
    "type": {"enum": ["text", "json_object", "json_schema"]},
    "json_schema": {"type": "object"}}}})";

/// The schema of a field of SamplingParams.
inline Json sampling_schema(const SamplingField& field) {
  const auto number = [&](const char* type, bool is_whole) {
    Json out = Json::object({{"type", type}});
    const auto bound = [&](const char* name, double value) {
      if (value <= -FLT_MAX || value >= FLT_MAX) return;
      out[name] = is_whole ? Json(static_cast<std::int64_t>(value)) : Json(value);
    };
    bound(field.range.excludes_low ? "exclusiveMinimum" : "minimum", field.range.low);
    bound("maximum", field.range.high);
    return out;
  };
  const auto list = [&](Json items) {
    Json out = Json::object({{"type", "array"}, {"items", std::move(items)}});
    if (field.max_size != std::numeric_limits<std::size_t>::max()) out["maxItems"] = field.max_size;
    return out;
  };
  const auto schema_of = [&]<class T>(T SamplingParams::*) -> Json {
    if constexpr (std::is_same_v<T, bool>) {
      return Json::object({{"type", "boolean"}});
    } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, std::optional<float>>) {
      return number("number", false);
    } else if constexpr (std::is_same_v<T, std::int32_t> ||
                         std::is_same_v<T, std::optional<std::int32_t>>) {
      return number("integer", true);
    } else if constexpr (std::is_same_v<T, std::optional<std::uint64_t>>) {
      return Json::object({{"type", "integer"}, {"minimum", 0}});
    } else if constexpr (std::is_same_v<T, std::vector<TokenId>>) {
      return list(Json::object({{"type", "integer"}, {"minimum", 0}}));
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      return list(Json::object({{"type", "string"}, {"minLength", 1}}));
    } else if constexpr (std::is_same_v<T, std::vector<TokenBias>>) {
      return Json::object({{"type", "object"}, {"additionalProperties", number("number", false)}});
    } else {
      return Json::object({{"enum", Json::array({true, false, "never"})}});  // early_stopping
    }
  };
  return std::visit(schema_of, field.member);
}

inline Json sampling_schema(std::string_view name) {
  return sampling_schema(*find_sampling_field(name));
}

/// A name that is served.
inline Json model_schema(std::span<const std::string> models) {
  Json names = Json::array();
  for (const std::string& name : models) names.push_back(name);
  return Json::object({{"enum", std::move(names)}});
}

inline Json body_schema(const BodySchema& body, std::span<const std::string> models) {
  Json properties = Json::object({{"model", model_schema(models)}});
  const auto add = [&](std::string_view name, Json schema) {
    if (properties.find(name) == nullptr) properties[std::string(name)] = std::move(schema);
  };
  const auto add_all = [&](std::string_view fields) {
    const Json parsed = parse_json(fields);
    for (const auto& [name, schema] : parsed.items()) add(name, schema);
  };
  add_all(body.fields);
  if (body.shared != SharedFields::none) {
    add_all(kPromptProperties);
    add("priority", sampling_schema("priority"));
  }
  const bool is_translated = body.shared == SharedFields::sampling;
  if (is_translated) add("stream", Json::object({{"type", "boolean"}}));
  if (body.shared == SharedFields::generation) add_all(kGenerationProperties);
  if (is_translated || body.shared == SharedFields::generation) {
    for (const SamplingField& field : kSamplingFields) {
      if (is_translated ? is_shared_field(field.name)
                        : is_sampling_field_of(field.name, body.kind == BodyKind::chat))
        add(field.name, sampling_schema(field));
    }
  }
  if (body.kind == BodyKind::chat) add("max_completion_tokens", sampling_schema("max_tokens"));
  if (body.kind == BodyKind::chat || body.kind == BodyKind::responses)
    add("top_logprobs", sampling_schema("logprobs"));
  for (const ListLimit& limit : kListLimits)
    if (limit.kind == body.kind) properties[std::string(limit.field)]["maxItems"] = limit.most;
  return Json::object({{"type", "object"},
                       {"required", parse_json(body.required)},
                       {"properties", std::move(properties)}});
}

inline Json content_of(std::string_view type, Json schema) {
  return Json::object({{std::string(type), Json::object({{"schema", std::move(schema)}})}});
}

inline Json reference_to(std::string_view name) {
  return Json::object({{"$ref", concat("#/components/schemas/", name)}});
}

/// What follows a path that ends in '/'.
inline std::string_view name_in(const RouteInfo& route) {
  return route.kind == "models" ? "model" : "id";
}

inline Json operation(const RouteInfo& route, std::span<const std::string> models) {
  Json replies = content_of(route.reply_type, Json::object({}));
  const bool may_stream = route.body == BodyKind::chat || route.body == BodyKind::completion ||
                          route.body == BodyKind::messages || route.body == BodyKind::responses;
  if (may_stream) replies["text/event-stream"] = Json::object({{"schema", Json::object({})}});
  Json out = Json::object({{"summary", route.summary}, {"tags", Json::array({route.kind})}});
  if (route.path.ends_with('/')) {
    const std::string_view name = name_in(route);
    Json schema = name == "model" ? model_schema(models) : Json::object({{"type", "string"}});
    out["parameters"] = Json::array({Json::object(
        {{"name", name}, {"in", "path"}, {"required", true}, {"schema", std::move(schema)}})});
  }
  for (const BodySchema& body : kBodySchemas) {
    if (body.kind != route.body) continue;
    out["requestBody"] = Json::object(
        {{"required", true}, {"content", content_of("application/json", reference_to(body.name))}});
  }
  const bool is_anthropic = error_form_of(route.path) == ErrorForm::anthropic;
  Json error = route.kind == "health" ? Json::object({})
                                      : reference_to(is_anthropic ? "AnthropicError" : "Error");
  out["responses"] = Json::object(
      {{"200", Json::object({{"description", "the answer"}, {"content", std::move(replies)}})},
       {"default", Json::object({{"description", "an error"},
                                 {"content", content_of("application/json", std::move(error))}})}});
  return out;
}

}  // namespace detail

/// The document. Bodies have the fields that the service reads; those of sampling are those of
/// kSamplingFields, with their ranges.
/// @param models  the names that are served.
[[nodiscard]] inline Json openapi_document(std::span<const RouteInfo> routes,
                                           std::span<const std::string> models) {
  Json paths = Json::object({});
  for (const RouteInfo& route : routes) {
    std::string path(route.path);
    if (path.ends_with('/')) path += concat("{", detail::name_in(route), "}", route.after_name);
    std::string method;
    for (const char c : route.method) method += static_cast<char>(c - 'A' + 'a');
    if (paths.find(path) == nullptr) paths[path] = Json::object({});
    paths[path][method] = detail::operation(route, models);
  }
  Json schemas = parse_json(detail::kSharedSchemas);
  for (const detail::BodySchema& body : detail::kBodySchemas)
    schemas[std::string(body.name)] = detail::body_schema(body, models);
  const std::string version =
      concat(NANOVLLM_VERSION_MAJOR, '.', NANOVLLM_VERSION_MINOR, '.', NANOVLLM_VERSION_PATCH);
  return Json::object({{"openapi", "3.1.0"},
                       {"info", Json::object({{"title", "nanovllm"}, {"version", version}})},
                       {"paths", std::move(paths)},
                       {"components", Json::object({{"schemas", std::move(schemas)}})}});
}

}  // namespace nanovllm::serve
