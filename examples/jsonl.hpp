#pragma once
/// Lines of the offline batch tool: requests in, results out.
///
/// An input line is a JSON object with
///   id                a string or a number, which the output line repeats
///   prompt            a text, or
///   prompt_token_ids  a list of token ids, or
///   messages          a conversation, with optional `tools` and `enable_thinking`
///   session           optional: a name; lines of the same name are turns of one conversation
///   sampling          optional: the fields of SamplingParams by their names
/// A field that is null counts as absent, and other fields are ignored, unless they are sampling
/// fields that have lost their way. Whatever is wrong with a line stays with that line.

#include <algorithm>
#include <array>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/chat/python_json.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm::examples {

/// One line of the input: a request, or what is wrong with it.
struct BatchLine {
  struct Request {
    Prompt prompt;
    SamplingParams sampling;
    std::string session{};  ///< whose turn it is; empty: it is none's
  };

  Json id = nullptr;               ///< as given; null when the line has no usable one
  std::optional<Request> request;  ///< absent when the line is bad
  std::string error;               ///< why it is
};

namespace detail {

/// A value as messages quote it: short, whatever it is.
inline std::string shown(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  const std::string text = python_json(value);
  if (text.size() <= 60) return text;
  return text.substr(0, utf8::complete_prefix(text.substr(0, 60))) + "...";
}

[[noreturn]] inline void refuse(std::string_view name, std::string_view wanted, const Json& got) {
  throw RequestError(concat(name, " must be ", wanted, ", got ", shown(got)));
}

// `assign` reads a value into a field and throws RequestError naming the field.

inline void assign(bool& field, const std::string& name, const Json& value) {
  if (!value.is_boolean()) refuse(name, "true or false", value);
  field = value.get<bool>();
}

inline void assign(float& field, const std::string& name, const Json& value) {
  const bool fits = value.is_number() && std::fabs(value.get<double>()) <= FLT_MAX;
  if (!fits) refuse(name, "a number in the range of a float", value);
  field = static_cast<float>(value.get<double>());
}

template <class Int>
void assign_integer(Int& field, const std::string& name, const Json& value) {
  const bool fits = value.is_number_unsigned() ? std::in_range<Int>(value.get<std::uint64_t>())
                    : value.is_number_integer()
                        ? std::in_range<Int>(value.get<std::int64_t>())
                        : false;  // an integer of more than 64 bits has another kind
  if (!fits) {
    using Limits = std::numeric_limits<Int>;
    refuse(name, concat("an integer in [", Limits::min(), ", ", Limits::max(), "]"), value);
  }
  field = value.get<Int>();
}
inline void assign(std::int32_t& field, const std::string& name, const Json& value) {
  assign_integer(field, name, value);
}
inline void assign(std::uint64_t& field, const std::string& name, const Json& value) {
  assign_integer(field, name, value);
}

inline void assign(std::string& field, const std::string& name, const Json& value) {
  if (!value.is_string()) refuse(name, "a string", value);
  field = value.get<std::string>();
}

inline void assign(std::vector<TokenId>& field, const std::string& name, const Json& value) {
  if (!value.is_array()) refuse(name, "a list of token ids", value);
  const std::string label = "a token id in " + name;
  field.clear();
  for (const Json& element : value) {
    assign(field.emplace_back(), label, element);
    if (field.back() < 0) refuse(label, "0 or more", element);
  }
}

/// One string, or a list of them.
inline void assign(std::vector<std::string>& field, const std::string& name, const Json& value) {
  field.clear();
  if (value.is_string()) {
    field.push_back(value.get<std::string>());
  } else if (value.is_array()) {
    for (const Json& element : value) assign(field.emplace_back(), "an entry of " + name, element);
  } else {
    refuse(name, "a string or a list of strings", value);
  }
}

/// An object from token ids to numbers, as in OpenAI's API.
inline void assign(std::vector<TokenBias>& field, const std::string& name, const Json& value) {
  if (!value.is_object()) refuse(name, "an object from token ids to numbers", value);
  field.clear();
  for (const auto& [key, bias] : value.items()) {
    TokenBias& one = field.emplace_back();
    const char* const end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, one.token);
    if (error != std::errc{} || stop != end || one.token < 0)
      refuse(concat("a token id in ", name), "an integer from 0 on", Json(key));
    assign(one.bias, concat(name, " of token ", key), bias);
  }
}

/// As in transformers.
inline void assign(EarlyStopping& field, const std::string& name, const Json& value) {
  if (value.is_boolean()) {
    field = value.get<bool>() ? EarlyStopping::yes : EarlyStopping::no;
  } else if (value.is_string() && value.get<std::string>() == "never") {
    field = EarlyStopping::never;
  } else {
    refuse(name, "true, false or \"never\"", value);
  }
}

template <class T>
void assign(std::optional<T>& field, const std::string& name, const Json& value) {
  assign(field.emplace(), name, value);
}

struct SamplingField {
  std::string_view name;
  void (*set)(SamplingParams&, const std::string& name, const Json&);
};

template <auto kMember>
constexpr SamplingField sampling_field(std::string_view name) {
  return {name, [](SamplingParams& params, const std::string& label, const Json& value) {
            assign(params.*kMember, label, value);
          }};
}

/// Every field of SamplingParams but those that are about the program's own types:
/// token_masks and functor_argument.
inline constexpr std::array kSamplingFields = {
    sampling_field<&SamplingParams::temperature>("temperature"),
    sampling_field<&SamplingParams::top_k>("top_k"),
    sampling_field<&SamplingParams::top_p>("top_p"),
    sampling_field<&SamplingParams::min_p>("min_p"),
    sampling_field<&SamplingParams::seed>("seed"),
    sampling_field<&SamplingParams::n>("n"),
    sampling_field<&SamplingParams::best_of>("best_of"),
    sampling_field<&SamplingParams::max_tokens>("max_tokens"),
    sampling_field<&SamplingParams::min_tokens>("min_tokens"),
    sampling_field<&SamplingParams::ignore_eos>("ignore_eos"),
    sampling_field<&SamplingParams::stop_token_ids>("stop_token_ids"),
    sampling_field<&SamplingParams::stop>("stop"),
    sampling_field<&SamplingParams::include_stop_str_in_output>("include_stop_str_in_output"),
    sampling_field<&SamplingParams::skip_special_tokens>("skip_special_tokens"),
    sampling_field<&SamplingParams::logprobs>("logprobs"),
    sampling_field<&SamplingParams::priority>("priority"),
    sampling_field<&SamplingParams::beam_width>("beam_width"),
    sampling_field<&SamplingParams::length_penalty>("length_penalty"),
    sampling_field<&SamplingParams::early_stopping>("early_stopping"),
    sampling_field<&SamplingParams::repetition_penalty>("repetition_penalty"),
    sampling_field<&SamplingParams::frequency_penalty>("frequency_penalty"),
    sampling_field<&SamplingParams::presence_penalty>("presence_penalty"),
    sampling_field<&SamplingParams::logit_bias>("logit_bias"),
    sampling_field<&SamplingParams::allowed_token_ids>("allowed_token_ids"),
    sampling_field<&SamplingParams::bad_words>("bad_words"),
    sampling_field<&SamplingParams::logprob_token_ids>("logprob_token_ids"),
    sampling_field<&SamplingParams::prompt_logprobs>("prompt_logprobs"),
};

inline const SamplingField* find_sampling_field(std::string_view name) {
  const auto found = std::find_if(kSamplingFields.begin(), kSamplingFields.end(),
                                  [&](const SamplingField& field) { return field.name == name; });
  return found == kSamplingFields.end() ? nullptr : &*found;
}

inline SamplingParams read_sampling(const Json& object) {
  if (!object.is_object()) refuse("sampling", "an object", object);
  SamplingParams params;
  for (const auto& [key, value] : object.items()) {
    const SamplingField* field = find_sampling_field(key);
    if (field == nullptr) {
      std::string known;
      for (const SamplingField& one : kSamplingFields)
        (known += known.empty() ? "" : ", ") += one.name;
      throw RequestError(concat("sampling has no field ", shown(key), "; its fields are ", known));
    }
    if (!value.is_null()) field->set(params, key, value);
  }
  validate(params);
  return params;
}

/// The member of a line, or nullptr when it is absent or null.
inline const Json* present(const Json& line, const char* name) {
  const Json* found = line.find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

inline ChatPrompt read_chat(const Json& line) {
  ChatPrompt chat{parse_messages(line["messages"])};
  join_text_parts(chat.messages);
  if (const Json* tools = present(line, "tools")) chat.options.tools = parse_tools(*tools);
  if (const Json* thinking = present(line, "enable_thinking"))
    assign(chat.options.enable_thinking, "enable_thinking", *thinking);
  return chat;
}

inline Prompt read_prompt(const Json& line) {
  const Json* text = present(line, "prompt");
  const Json* token_ids = present(line, "prompt_token_ids");
  const Json* messages = present(line, "messages");
  const int given = (text != nullptr) + (token_ids != nullptr) + (messages != nullptr);
  check<RequestError>(given == 1, "a line must have exactly one of 'prompt', 'prompt_token_ids' ",
                      "and 'messages', got ", given);
  if (messages) return read_chat(line);
  for (const char* name : {"tools", "enable_thinking"})
    check<RequestError>(!present(line, name), "'", name, "' can only go with 'messages'");
  if (text) {
    std::string prompt;
    assign(prompt, "prompt", *text);
    check<RequestError>(!prompt.empty(), "prompt must not be empty");
    return prompt;
  }
  std::vector<TokenId> prompt;
  assign(prompt, "prompt_token_ids", *token_ids);
  check<RequestError>(!prompt.empty(), "prompt_token_ids must not be empty");
  return prompt;
}

/// Empty when the line is no turn of a session.
inline std::string read_session(const Json& line) {
  std::string session;
  if (const Json* name = present(line, "session")) {
    assign(session, "session", *name);
    check<RequestError>(!session.empty(), "session must not be empty");
  }
  return session;
}

inline Json read_id(const Json& line) {
  const Json* id = present(line, "id");
  check<RequestError>(id != nullptr, "a line must have an 'id'");
  if (!id->is_string() && !id->is_number() && !id->is_big_integer())
    refuse("id", "a string or a number", *id);
  return *id;
}

/// The nearest double that prints as briefly as `value` does. Minus infinity and NaN, for which
/// JSON has no word, become -9999, as in vLLM.
inline double printable(float value) {
  if (!std::isfinite(value)) return -9999.0;
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  double out = 0;
  std::from_chars(digits, end, out);
  return out;
}

/// Text as a JSON value; what is not UTF-8 becomes U+FFFD.
inline Json text_value(std::string_view text) {
  std::string valid;
  utf8::append_lossy(valid, text);
  return valid;
}

inline Json logprobs_value(const TokenLogprobs& logprobs) {
  Json top = Json::array();
  for (const auto& [id, logprob] : logprobs.top)
    top.push_back(Json::array({id, printable(logprob)}));
  Json entry;
  entry["token_id"] = logprobs.token_id;
  entry["logprob"] = printable(logprobs.logprob);
  entry["top"] = std::move(top);
  if (!logprobs.chosen.empty()) {
    Json chosen = Json::array();
    for (const auto& [id, logprob] : logprobs.chosen)
      chosen.push_back(Json::array({id, printable(logprob)}));
    entry["chosen"] = std::move(chosen);
  }
  return entry;
}

inline Json logprobs_value(const std::vector<TokenLogprobs>& logprobs) {
  Json list = Json::array();
  for (const TokenLogprobs& one : logprobs) list.push_back(logprobs_value(one));
  return list;
}

/// null for tokens that have none.
inline Json logprobs_value(const std::vector<std::optional<TokenLogprobs>>& logprobs) {
  Json list = Json::array();
  for (const auto& one : logprobs) list.push_back(one ? logprobs_value(*one) : Json(nullptr));
  return list;
}

inline void write_completion(Json& to, const Completion& completion) {
  to["text"] = text_value(completion.text);
  to["token_ids"] = completion.token_ids;
  to["finish_reason"] = name(completion.finish_reason);
  if (completion.beam_score) to["beam_score"] = printable(*completion.beam_score);
}

}  // namespace detail

/// Reads one line, without its line end. Nothing for a blank line; otherwise never throws for what
/// the line holds.
[[nodiscard]] inline std::optional<BatchLine> parse_batch_line(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) return std::nullopt;
  BatchLine out;
  try {
    const Json line = parse_json(text, "the line");
    if (!line.is_object()) detail::refuse("a line", "an object", line);
    out.id = detail::read_id(line);
    for (const auto& [key, value] : line.items()) {
      check<RequestError>(!detail::find_sampling_field(key), "'", key,
                          "' is a sampling setting and goes into 'sampling'");
    }
    const Json* sampling = detail::present(line, "sampling");
    Prompt prompt = detail::read_prompt(line);
    // Not in the initialiser below, which nvcc 13.0 crashes on.
    SamplingParams params;
    if (sampling != nullptr) params = detail::read_sampling(*sampling);
    std::string session = detail::read_session(line);
    check<RequestError>(session.empty() || num_samples(params) == 1,
                        "a turn of a session has one sample, got n = ", params.n);
    out.request = BatchLine::Request{std::move(prompt), std::move(params), std::move(session)};
  } catch (const RequestError& error) {
    out.error = error.what();
  }
  return out;
}

/// The output line of a request that failed, with its line end: {"id", "error"}.
[[nodiscard]] inline std::string error_line(const Json& id, std::string_view message) {
  Json line;
  line["id"] = id;
  line["error"] = detail::text_value(message);
  return python_json(line) + '\n';
}

/// The output line of a finished request, with its line end. It is valid JSON whatever bytes
/// the text holds. Log-probabilities of what was generated are left out unless `with_logprobs`.
[[nodiscard]] inline std::string result_line(const Json& id, const Output& output,
                                             bool with_logprobs) {
  if (!output.error.empty()) return error_line(id, output.error);
  Json line;
  line["id"] = id;
  detail::write_completion(line, output);
  line["num_prompt_tokens"] = output.num_prompt_tokens;
  line["num_cached_tokens"] = output.num_cached_tokens;
  if (with_logprobs) line["logprobs"] = detail::logprobs_value(output.logprobs);
  if (!output.prompt_logprobs.empty())
    line["prompt_logprobs"] = detail::logprobs_value(output.prompt_logprobs);
  if (!output.alternatives.empty()) {
    Json list = Json::array();
    for (const Completion& completion : output.alternatives) {
      Json entry;
      detail::write_completion(entry, completion);
      if (with_logprobs) entry["logprobs"] = detail::logprobs_value(completion.logprobs);
      list.push_back(std::move(entry));
    }
    line["alternatives"] = std::move(list);
  }
  return python_json(line) + '\n';
}

}  // namespace nanovllm::examples
