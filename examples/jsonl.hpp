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

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/io/json_values.hpp"
#include "nanovllm/sampling/sampling_json.hpp"

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

/// The member of a line, or nullptr when it is absent or null.
inline const Json* present(const Json& line, const char* name) {
  const Json* found = line.find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

inline ChatPrompt read_chat(const Json& line) {
  ChatPrompt chat{parse_messages(line["messages"])};
  join_text_parts(chat.messages);
  if (const Json* tools = present(line, "tools")) chat.options.tools = parse_tools(*tools);
  if (const Json* thinking = present(line, "enable_thinking")) {
    if (!thinking->is_boolean()) wrong_field("enable_thinking", "true or false", *thinking);
    chat.options.enable_thinking = thinking->boolean();
  }
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
    std::string prompt = string_at(*text, "prompt");
    check<RequestError>(!prompt.empty(), "prompt must not be empty");
    return prompt;
  }
  std::vector<TokenId> prompt = token_ids_at(*token_ids, "prompt_token_ids");
  check<RequestError>(!prompt.empty(), "prompt_token_ids must not be empty");
  return prompt;
}

/// Empty when the line is no turn of a session.
inline std::string read_session(const Json& line) {
  std::string session;
  if (const Json* name = present(line, "session")) {
    session = string_at(*name, "session");
    check<RequestError>(!session.empty(), "session must not be empty");
  }
  return session;
}

inline Json read_id(const Json& line) {
  const Json* id = present(line, "id");
  check<RequestError>(id != nullptr, "a line must have an 'id'");
  if (!id->is_string() && !id->is_number() && !id->is_big_integer())
    wrong_field("id", "a string or a number", *id);
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
    if (!line.is_object()) wrong_field("a line", "an object", line);
    out.id = detail::read_id(line);
    for (const auto& [key, value] : line.items()) {
      check<RequestError>(!find_sampling_field(key), "'", key,
                          "' is a sampling setting and goes into 'sampling'");
    }
    const Json* sampling = detail::present(line, "sampling");
    Prompt prompt = detail::read_prompt(line);
    // Not in the initialiser below, which nvcc 13.0 crashes on.
    SamplingParams params;
    if (sampling != nullptr) params = parse_sampling_params(*sampling);
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
  return line.dump() + '\n';
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
  return line.dump() + '\n';
}

}  // namespace nanovllm::examples
