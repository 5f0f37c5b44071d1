#pragma once
/// Reads the fields of a request's body: those of any type, those that the bodies of several
/// endpoints have, and those that are refused by name. The first wrong one is thrown as a
/// FieldError that names the field, what was expected and what came; the service answers it with
/// status 400.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/number_range.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/io/json_values.hpp"

namespace nanovllm::serve {

/// The greatest number of things that a field counts.
inline constexpr std::int32_t kMaxCount = std::numeric_limits<std::int32_t>::max();

/// The fields of one object. One that is null counts as absent.
class RequestFields {
 public:
  /// `path` is where the object lies in the body: empty for the body itself. Throws
  /// RequestError unless `object` is one; it must outlive this.
  explicit RequestFields(const Json& object, std::string path = {})
      : object_(object), path_(std::move(path)) {
    if (object.is_object()) return;
    if (!path_.empty()) wrong_field(path_, "an object", object);
    throw RequestError(
        concat("the body must be a JSON object, got ", nanovllm::detail::shown(object)));
  }

  /// The field, or null when it is absent.
  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* found = object_.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }

  /// Throws FieldError if the field is there: to ignore it would give a wrong answer.
  void refuse(std::string_view key, std::string_view reason) const {
    if (has(key)) refuse_field(path(key), reason);
  }

  /// "response_format.type": the path of a field.
  [[nodiscard]] std::string path(std::string_view key) const {
    return path_.empty() ? std::string(key) : concat(path_, '.', key);
  }

  /// The field. Throws FieldError when it is absent.
  [[nodiscard]] const Json& required(std::string_view key) const {
    const Json* found = find(key);
    if (found == nullptr) refuse_field(path(key), "is missing");
    return *found;
  }

  // Typed: nothing when absent, FieldError for another type or range.
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_boolean()) wrong_field(path(key), "true or false", *value);
    return value->boolean();
  }
  [[nodiscard]] bool flag(std::string_view key, bool fallback = false) const {
    return boolean(key).value_or(fallback);
  }
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t low,
                                                    std::int64_t high) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    return integer_at(*value, path(key), low, high);
  }
  [[nodiscard]] std::optional<float> number(std::string_view key, NumberRange range) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    return number_at(*value, path(key), range);
  }
  [[nodiscard]] std::optional<std::string> string(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    return string_at(*value, path(key));
  }
  /// A list, or null when absent.
  [[nodiscard]] const Json* list(std::string_view key, std::size_t max_size) const {
    const Json* value = find(key);
    if (value == nullptr) return nullptr;
    if (!value->is_array()) wrong_field(path(key), "a list", *value);
    if (value->size() > max_size)
      refuse_field(path(key),
                   concat("must have at most ", max_size, " elements, got ", value->size()));
    return value;
  }

 private:
  const Json& object_;
  std::string path_;
};

/// Parses a body, which must be one JSON object. Throws RequestError that says where it is wrong.
[[nodiscard]] inline Json parse_request_body(std::string_view body) {
  Json json = parse_json(body, "the body");
  check<RequestError>(json.is_object(), "the body must be a JSON object, got ",
                      nanovllm::detail::shown(json));
  return json;
}

/// A request's prompts are cut at their beginning where they are too long.
struct PromptTruncation {
  /// Tokens that are kept, 1 or more. Unset: as many as leave room for `max_tokens` in the model's
  /// context.
  std::optional<std::int32_t> num_tokens{};
};

/// What every request with prompts says of them.
struct PromptRequest {
  std::string model{};  ///< empty where the request names none
  /// vLLM's field `truncate_prompt_tokens`: -1, for as many tokens as fit, or 1 or more. Unset: a
  /// prompt that is too long is refused.
  std::optional<PromptTruncation> truncation{};
  /// vLLM's field `cache_salt`, as Prompt has it: whose part of the prefix cache a request uses.
  /// One that is empty or too long is refused: a client that asks for its own part of the cache
  /// must not get another.
  std::string cache_salt{};

  /// Reads `truncation` and `cache_salt`. Throws FieldError.
  void read_prompt_fields(const RequestFields& body) {
    if (const auto kept = body.integer("truncate_prompt_tokens", -1, kMaxCount)) {
      if (*kept == 0)
        refuse_field(body.path("truncate_prompt_tokens"), "must be -1 or >= 1, got 0");
      truncation.emplace();
      if (*kept != -1) truncation->num_tokens = static_cast<std::int32_t>(*kept);
    }
    const std::optional<std::string> salt = body.string("cache_salt");
    if (!salt) return;
    if (salt->empty()) refuse_field(body.path("cache_salt"), "must not be empty");
    if (salt->size() > kMaxCacheSaltBytes)
      refuse_field(body.path("cache_salt"),
                   concat("must have at most ", kMaxCacheSaltBytes, " bytes, got ", salt->size()));
    cache_salt = *salt;
  }
};

/// The field `priority`, as SamplingParams has it; 0 if it is absent. Throws RequestError.
[[nodiscard]] inline std::int32_t parse_priority(const RequestFields& body) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
  return static_cast<std::int32_t>(body.integer("priority", kLeast, kMaxCount).value_or(0));
}

/// A field of vLLM or OpenAI that would change an answer and is not served. It is refused by name,
/// but for values that ask for nothing. docs/serving.md lists those that are ignored because they
/// have no effect here.
struct UnservedField {
  std::string_view name;
  std::string_view idle;    ///< the values that ask for nothing: a list in JSON
  std::string_view reason;  ///< what an error says after the name
};

/// Of every body with prompts.
inline constexpr UnservedField kUnservedOfPrompts[] = {
    {"truncation_side", R"(["left"])", "can only be 'left': the last tokens of a prompt are kept"},
    {"padding", R"(["do_not_pad"])", "can only be 'do_not_pad'"},
};

/// Of chats and completions.
inline constexpr UnservedField kUnservedOfGeneration[] = {
    {"audio", "[]", "is not supported: this model answers in text"},
    {"modalities", R"([["text"]])", "can only be ['text']: this model answers in text"},
    {"web_search_options", "[]", "is not supported"},
    {"prompt_embeds", "[]", "is not supported: a prompt is a text or token ids"},
    {"include_reasoning", "[true]", "can only be true: thoughts are a part of the answer"},
    {"thinking_token_budget", "[-1]", "is not supported; max_tokens counts thoughts, too"},
    {"logprob_token_ids", "[[]]",
     "is not supported; ask for the log-probabilities of the likeliest"},
    {"logits_processors", "[[]]", "is not supported in requests"},
    {"vllm_xargs", "[{}]", "is not supported: this server has no extensions"},
    {"kv_transfer_params", "[{}]",
     "is not supported: prompts are computed where they are answered"},
    {"ec_transfer_params", "[{}]",
     "is not supported: prompts are computed where they are answered"},
    {"repetition_detection", "[]", "is not supported"},
    {"watermarking", "[false]", "is not supported"},
    {"return_prompt_text", "[false]", "is not supported; return_token_ids has the prompt's tokens"},
    {"guided_whitespace_pattern", "[]",
     "is not supported; structured_outputs.disable_any_whitespace says what white space JSON has"},
};

/// Of embeddings.
inline constexpr UnservedField kUnservedOfEmbeddings[] = {
    {"embed_dtype", R"(["float32"])", "must be 'float32'"},
    {"endianness", R"(["native", "little"])", "must be 'little'"},
};

/// Of scores and rerankings.
inline constexpr UnservedField kUnservedOfScores[] = {
    {"use_activation", "[true]", "can only be true: a score is a probability"},
};

namespace detail {

/// A text or token ids, either not empty.
inline Prompt read_prompt(const Json& value, const std::string& path) {
  if (value.empty() || (value.is_string() && value.string().empty()))
    refuse_field(path, "must not be empty");
  if (value.is_string()) return value.string();
  return token_ids_at(value, path);
}

}  // namespace detail

/// One or more prompts, as `prompt` of completions and `input` of embeddings have them: a text, a
/// list of texts, token ids, or a list of those; none of them is empty. Throws RequestError for
/// anything else, and for more than `max_prompts`.
[[nodiscard]] inline std::vector<Prompt> parse_prompts(const RequestFields& body,
                                                       const std::string& key,
                                                       std::size_t max_prompts) {
  const Json& value = body.required(key);
  if (!value.is_string() && !value.is_array())
    wrong_field(key, "a string, a list of token ids, or a list of those", value);
  const bool is_list =
      value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
  std::vector<Prompt> prompts;
  if (!is_list) {
    prompts.push_back(detail::read_prompt(value, key));
    return prompts;
  }
  if (value.size() > max_prompts)
    refuse_field(key, concat("must have at most ", max_prompts, " prompts, got ", value.size()));
  for (const Json& element : value) {
    const std::string path = element_path(key, prompts.size());
    if (element.kind() != value[0].kind())
      wrong_field(path, "of the same type as the first prompt", element);
    prompts.push_back(detail::read_prompt(element, path));
  }
  return prompts;
}

/// Throws FieldError for the first field, of kUnservedOfPrompts and then of `fields`, that the body
/// has with a value that is not idle.
inline void refuse_unserved(const RequestFields& body, std::span<const UnservedField> fields) {
  const auto refuse = [&](const UnservedField& field) {
    const Json* value = body.find(field.name);
    if (value == nullptr) return;
    const Json idle = parse_json(field.idle);
    if (std::find(idle.begin(), idle.end(), *value) == idle.end())
      refuse_field(body.path(field.name), field.reason);
  };
  std::ranges::for_each(kUnservedOfPrompts, refuse);
  std::ranges::for_each(fields, refuse);
}

}  // namespace nanovllm::serve
