#pragma once
/// What requests for text say of how it is sampled, by OpenAI's names and vLLM's, and of its form:
/// OpenAI's response_format, vLLM's structured_outputs and guided_*.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/sampling/sampling_json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm::serve {

/// The field that asks for a beam search, if one does.
[[nodiscard]] inline const char* beam_field_of(const RequestFields& body) {
  return body.has("beam_width") ? "beam_width" : "use_beam_search";
}

namespace detail {

/// Fields of a search with beams, which only completions have.
inline constexpr std::string_view kBeamFields[] = {"best_of", "beam_width", "length_penalty",
                                                   "early_stopping"};
/// Fields that chats and completions read in ways of their own, and one that they do not have.
inline constexpr std::string_view kOwnFields[] = {"max_tokens", "logprobs", "prompt_logprobs"};
inline constexpr std::string_view kAbsentField = "logprob_token_ids";

inline bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

inline void read_field(const SamplingField& field, const RequestFields& body,
                       SamplingParams& params) {
  if (const Json* value = body.find(field.name))
    read_sampling_field(field, *value, body.path(field.name), params);
}

}  // namespace detail

/// Whether bodies have the field of SamplingParams of that name: those of completions, or chats'.
[[nodiscard]] inline bool is_sampling_field_of(std::string_view name, bool is_chat) {
  return name != detail::kAbsentField && !(is_chat && detail::is_one_of(detail::kBeamFields, name));
}

/// The fields that chat completions and completions share: those of SamplingParams by their names,
/// but for max_tokens, log-probabilities and beam search. Throws FieldError.
[[nodiscard]] inline SamplingParams parse_sampling(const RequestFields& body) {
  SamplingParams params;
  for (const SamplingField& field : kSamplingFields) {
    if (is_sampling_field_of(field.name, true) &&
        !detail::is_one_of(detail::kOwnFields, field.name))
      detail::read_field(field, body, params);
  }
  if (body.has("allowed_token_ids") && params.allowed_token_ids.empty())
    refuse_field(body.path("allowed_token_ids"), "must not be empty");
  return params;
}

/// The fields that only completions have: best_of, use_beam_search, beam_width, length_penalty,
/// early_stopping. With use_beam_search the beams are beam_width, else best_of, else n. Throws
/// FieldError.
inline void parse_beam_search(const RequestFields& body, SamplingParams& params) {
  for (const std::string_view name : detail::kBeamFields)
    detail::read_field(*find_sampling_field(name), body, params);
  if (!body.flag("use_beam_search")) return;
  if (!params.beam_width && params.best_of && *params.best_of < params.n)
    refuse_field(body.path("best_of"),
                 concat("must be at least n = ", params.n, ", got ", *params.best_of));
  if (!params.beam_width) params.beam_width = params.best_of.value_or(params.n);
  params.best_of.reset();
}

/// Throws RequestError for fields that cannot be combined; the rules are those of validate().
inline void check_sampling(const RequestFields& body, const SamplingParams& params) {
  try {
    validate(params);
  } catch (const RequestError& error) {
    // The message begins with the name of a field, which need not be the one that was sent.
    const std::string message = in_own_name(error.what(), "beam_width", beam_field_of(body));
    std::string_view name = std::string_view(message).substr(0, message.find_first_of(" :"));
    if (!body.has(name) && name == "length_penalty") name = "early_stopping";
    if (!body.has(name)) throw RequestError(message);
    throw FieldError(message, body.path(name));
  }
}

/// Answers that a choice may have.
inline constexpr std::size_t kMaxChoices = 1024;

/// The form that a request states, and where it does.
struct OutputFormat {
  OutputConstraint constraint{};
  std::string field{};  ///< path of the field that states it; empty for Kind::none
};

namespace detail {

using FormatKind = OutputConstraint::Kind;

/// A JSON Schema: an object, or where vLLM takes one, its text.
inline OutputConstraint json_format(const Json& value, const std::string& path) {
  if (value.is_object()) return {.kind = FormatKind::json_schema, .text = value.dump()};
  if (!value.is_string()) wrong_field(path, "a JSON Schema, an object or its text", value);
  Json schema;
  try {
    schema = parse_json_value(value.string());
  } catch (const JsonError& error) {
    refuse_field(path, concat("is a text that is ", error.what()));
  }
  if (!schema.is_object()) wrong_field(path, "the text of a JSON Schema, an object", schema);
  return {.kind = FormatKind::json_schema, .text = schema.dump()};
}

/// A regular expression or a grammar.
inline OutputConstraint text_format(FormatKind kind, const Json& value, const std::string& path) {
  const std::string& text = string_at(value, path);
  if (text.empty()) refuse_field(path, "must not be empty");
  return {.kind = kind, .text = text};
}

inline OutputConstraint regex_format(const Json& value, const std::string& path) {
  return text_format(FormatKind::regex, value, path);
}

inline OutputConstraint grammar_format(const Json& value, const std::string& path) {
  return text_format(FormatKind::grammar, value, path);
}

inline OutputConstraint choice_format(const Json& value, const std::string& path) {
  if (!value.is_array() || value.empty() || value.size() > kMaxChoices)
    wrong_field(path, concat("a list of 1 to ", kMaxChoices, " strings"), value);
  OutputConstraint constraint{.kind = FormatKind::choice};
  for (const Json& choice : value) {
    const std::string element = element_path(path, constraint.choices.size());
    if (string_at(choice, element).empty()) refuse_field(element, "must not be empty");
    constraint.choices.push_back(choice.string());
  }
  return constraint;
}

/// A field that states a form by being there.
struct FormatField {
  const char* name;    ///< in structured_outputs
  const char* guided;  ///< in the body
  OutputConstraint (*read)(const Json& value, const std::string& path);
};

inline constexpr FormatField kFormatFields[] = {
    {"json", "guided_json", json_format},
    {"regex", "guided_regex", regex_format},
    {"choice", "guided_choice", choice_format},
    {"grammar", "guided_grammar", grammar_format},
};

/// Takes forms as they are found and refuses a second one.
class OneFormat {
 public:
  void state(OutputConstraint constraint, const std::string& path) {
    if (!found_.field.empty())
      refuse_field(
          path, concat("cannot be combined with ", found_.field, ", for an answer has one form"));
    found_ = {std::move(constraint), path};
  }
  [[nodiscard]] OutputFormat take() { return std::move(found_); }

 private:
  OutputFormat found_;
};

inline void read_response_format(const Json& value, OneFormat& format) {
  const RequestFields fields(value, "response_format");
  const std::string& type = string_at(fields.required("type"), fields.path("type"));
  if (type == "text") return;
  if (type == "json_object") {  // with a schema as llama.cpp takes it
    const Json* schema = fields.find("schema");
    if (!schema) return format.state({.kind = FormatKind::json_object}, "response_format");
    if (!schema->is_object())
      wrong_field(fields.path("schema"), "a JSON Schema, an object", *schema);
    return format.state(json_format(*schema, fields.path("schema")), "response_format");
  }
  if (type != "json_schema")
    wrong_field(fields.path("type"), "'text', 'json_object' or 'json_schema'", type);
  const RequestFields inner(fields.required("json_schema"), fields.path("json_schema"));
  (void)inner.string("name");
  (void)inner.boolean("strict");
  const Json& schema = inner.required("schema");
  if (!schema.is_object()) wrong_field(inner.path("schema"), "a JSON Schema, an object", schema);
  format.state(json_format(schema, inner.path("schema")), "response_format");
}

inline void read_structured_outputs(const Json& value, OneFormat& format) {
  const RequestFields fields(value, "structured_outputs");
  for (const char* name : {"structural_tag", "whitespace_pattern"})
    if (fields.has(name)) refuse_field(fields.path(name), "is not supported");
  if (fields.flag("disable_additional_properties"))
    refuse_field(fields.path("disable_additional_properties"),
                 "is not supported; write 'additionalProperties': false into the schema");
  const auto no_space = fields.boolean("disable_any_whitespace");
  const JsonSpace space = !no_space   ? JsonSpace::tidy
                          : *no_space ? JsonSpace::none
                                      : JsonSpace::any;
  bool is_stated = false;
  const auto state = [&](OutputConstraint constraint, const char* name) {
    is_stated = true;
    constraint.json_space = space;
    format.state(std::move(constraint), fields.path(name));
  };
  for (const FormatField& field : kFormatFields) {
    if (const Json* found = fields.find(field.name))
      state(field.read(*found, fields.path(field.name)), field.name);
  }
  if (fields.flag("json_object")) state({.kind = FormatKind::json_object}, "json_object");
  if (!is_stated)
    refuse_field("structured_outputs",
                 "must have one of 'json', 'regex', 'choice', 'grammar' and 'json_object'");
}

}  // namespace detail

/// Reads response_format, structured_outputs, guided_json, guided_regex, guided_choice and
/// guided_grammar, of which at most one may be given. Schemas are checked to be JSON
/// objects and nothing more. structured_outputs.disable_any_whitespace sets
/// OutputConstraint::json_space: true is `none`, false is `any`. Throws RequestError.
[[nodiscard]] inline OutputFormat parse_output_format(const RequestFields& body) {
  detail::OneFormat format;
  if (const Json* value = body.find("response_format"))
    detail::read_response_format(*value, format);
  if (const Json* value = body.find("structured_outputs"))
    detail::read_structured_outputs(*value, format);
  for (const detail::FormatField& field : detail::kFormatFields) {
    if (const Json* value = body.find(field.guided))
      format.state(field.read(*value, field.guided), field.guided);
  }
  return format.take();
}

/// A request for text: what chats and completions have in common.
struct GenerationRequest : PromptRequest {
  /// Its ranges are checked.
  SamplingParams sampling{};
  /// Of response_format, structured_outputs, guided_* or a chat's tools. tool_call_format and
  /// after_reasoning, which depend on the model, are as a constraint has them at first.
  OutputConstraint constraint{};
  std::string constraint_field{};   ///< path of the field that states it; empty for Kind::none
  std::string beam_field{};         ///< the field that asks for a beam search
  bool add_special_tokens = false;  ///< those that the tokeniser adds to a text, or a template's
  /// Only the prompt's log-probabilities are wanted. `sampling.max_tokens` is 1, the least that the
  /// engine takes, and the generated token is left out of the reply.
  bool prompt_only = false;
  bool stream = false;                  ///< never of samples that are chosen from, nor of beams
  bool include_usage = false;           ///< of a stream: a last chunk with the usage
  bool continuous_usage_stats = false;  ///< usage in every chunk; only with include_usage
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;  ///< log-probabilities name tokens "token_id:ID"

  /// Reads what is said of the reply: the last five. Throws RequestError, also for stream_options
  /// of a request that is not streamed.
  void read_reply_fields(const RequestFields& body) {
    stream = body.flag("stream");
    if (const Json* value = body.find("stream_options")) {
      const RequestFields fields(*value, "stream_options");
      if (!stream) refuse_field("stream_options", "can only be given with 'stream': true");
      include_usage = fields.flag("include_usage");
      continuous_usage_stats = fields.flag("continuous_usage_stats") && include_usage;
    }
    return_token_ids = body.flag("return_token_ids");
    return_tokens_as_token_ids = body.flag("return_tokens_as_token_ids");
  }
};

}  // namespace nanovllm::serve
