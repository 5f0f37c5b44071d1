#pragma once
/// The Qwen templates, Qwen2.5's and plain ChatML in C++.
///
/// Each function renders what Jinja2 renders for the template it is named after, byte for byte, and
/// throws RequestError where Jinja2 raises. Names follow the templates', so that the two can be
/// read side by side.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

using Messages = std::span<const ChatMessage>;

/// How the prompt for the next answer treats thoughts.
enum class ThinkPrompt : std::uint8_t {
  none,      ///< says nothing about them
  optional,  ///< an empty thought when `enable_thinking` is false
  open,      ///< begins a thought
  empty,     ///< always an empty thought
};

/// What sets the templates of the Qwen3 family apart.
struct Qwen3Style {
  bool thoughts = true;         ///< messages of the assistant may hold thoughts
  bool lenient_content = true;  ///< content that is not a string counts as empty
  ThinkPrompt prompt = ThinkPrompt::optional;
};

/// The templates of the Qwen3 family.
[[nodiscard]] std::string render_qwen3(Messages messages, const ChatOptions& options,
                                       const Qwen3Style& style);

/// Qwen2.5's template: a default system message, and no thoughts.
[[nodiscard]] std::string render_qwen2_5(Messages messages, const ChatOptions& options);

/// Plain ChatML: every message in order, whatever its role.
[[nodiscard]] std::string render_chatml(Messages messages, const ChatOptions& options,
                                        ThinkPrompt prompt);

inline constexpr std::string_view kTurnEnd = "<|im_end|>\n";

/// The content of messages[index], which the template concatenates and which must be a string.
[[nodiscard]] const std::string& string_content(Messages messages, std::size_t index);

/// The tool calls of messages[index], an empty list where there are none.
[[nodiscard]] const Json& tool_calls_of(Messages messages, std::size_t index);

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

#include "nanovllm/chat/python_json.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::detail {

inline constexpr std::string_view kEmptyThought = "<think>\n\n</think>\n\n";

/// Python's str.lstrip('\n') and str.rstrip('\n').
NANOVLLM_INLINE std::string_view strip_left(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  return text;
}
NANOVLLM_INLINE std::string_view strip_right(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

/// What `{{ value }}` prints; nothing for an undefined value.
NANOVLLM_INLINE std::string printed(const Json* value) {
  return value ? python_str(*value) : std::string();
}

NANOVLLM_INLINE const std::string* string_field(const ChatMessage& message, std::string_view name) {
  const Json* value = message.find(name);
  return value && value->is_string() ? &value->string() : nullptr;
}

NANOVLLM_INLINE const std::string& string_content(Messages messages, std::size_t index) {
  const std::string* content = string_field(messages[index], "content");
  if (content == nullptr) {
    const Json* value = messages[index].find("content");
    throw RequestError(concat("messages[", index, "]: 'content' of role '", messages[index].role(),
                              "' must be a string for this chat template, got ",
                              value ? value->type_name() : std::string_view("none")));
  }
  return *content;
}

NANOVLLM_INLINE void check_not_empty(Messages messages) {
  check<RequestError>(!messages.empty(), "messages must not be empty for this chat template");
}

/// The tools to describe, or nullptr for none.
NANOVLLM_INLINE const Json* tools_of(const ChatOptions& options) {
  if (!python_truth(options.tools)) return nullptr;
  check<RequestError>(options.tools.is_array(), "tools must be a list, got ",
                      options.tools.type_name());
  return &options.tools;
}

NANOVLLM_INLINE const Json& tool_calls_of(Messages messages, std::size_t index) {
  static const Json none = Json::array();
  const Json* calls = messages[index].find("tool_calls");
  if (calls == nullptr || !python_truth(*calls)) return none;
  check<RequestError>(calls->is_array(), "messages[", index, "]: 'tool_calls' must be a list, got ",
                      calls->type_name());
  return *calls;
}

NANOVLLM_INLINE void append_turn(std::string& out, std::string_view role,
                                 std::string_view content) {
  ((((out += "<|im_start|>") += role) += '\n') += content) += kTurnEnd;
}

/// The rest of a system message, from "# Tools" on.
NANOVLLM_INLINE void append_tools(std::string& out, const Json& tools) {
  out +=
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
      "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
  for (const Json& tool : tools) (out += '\n') += python_json(tool);
  out +=
      "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
      "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
      "\"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";
}

/// `{{ call.name }}` and `{{ call.arguments | tojson }}` in their tags. Arguments that are a string
/// go in as they are when `verbatim_string`.
NANOVLLM_INLINE void append_tool_call(std::string& out, const Json& call, bool verbatim_string) {
  const Json* arguments = call.find("arguments");
  check<RequestError>(arguments != nullptr, "a tool call must have 'arguments'");
  ((out += "<tool_call>\n{\"name\": \"") += printed(call.find("name"))) += "\", \"arguments\": ";
  out += verbatim_string && arguments->is_string() ? arguments->string() : python_json(*arguments);
  out += "}\n</tool_call>";
}

/// One result of a tool; consecutive ones share a turn of the user.
NANOVLLM_INLINE void append_tool_response(std::string& out, Messages messages, std::size_t index,
                                          std::string_view content) {
  const auto is_tool = [&](std::size_t i) { return messages[i].role() == "tool"; };
  if (index == 0 || !is_tool(index - 1)) out += "<|im_start|>user";
  ((out += "\n<tool_response>\n") += content) += "\n</tool_response>";
  if (index + 1 == messages.size() || !is_tool(index + 1)) out += "<|im_end|>\n";
}

/// Index of the last message in which the user asks something rather than hands in a tool's result.
NANOVLLM_INLINE std::size_t last_query_index(Messages messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role() != "user") continue;
    const std::string* content = string_field(messages[i], "content");
    if (content &&
        !(content->starts_with("<tool_response>") && content->ends_with("</tool_response>")))
      return i;
  }
  return messages.size() - 1;
}

/// An assistant's message in two parts; views into the message.
struct Thought {
  std::string_view reasoning;
  std::string_view content;
  bool truthy = false;    ///< `reasoning` in Python's sense
  bool is_string = true;  ///< else it cannot be printed
};

NANOVLLM_INLINE Thought split_thought(const ChatMessage& message, std::string_view content,
                                      bool lenient_content) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  if (const std::string* reasoning = string_field(message, "reasoning_content"))
    return {*reasoning, content, !reasoning->empty()};
  // The release-day template takes any value here and fails only where it comes to print it.
  const Json* other = message.find("reasoning_content");
  if (!lenient_content && other != nullptr && !other->is_null())
    return {{}, content, python_truth(*other), false};
  const std::size_t close = content.find(kClose);
  if (close == content.npos) return {{}, content};
  std::string_view reasoning = strip_right(content.substr(0, close));
  if (const std::size_t open = reasoning.rfind(kOpen); open != reasoning.npos)
    reasoning.remove_prefix(open + kOpen.size());
  reasoning = strip_left(reasoning);
  content = strip_left(content.substr(content.rfind(kClose) + kClose.size()));
  return {reasoning, content, !reasoning.empty()};
}

/// Appends the head and the content of an assistant's turn and returns the content as later parts
/// of the turn see it.
NANOVLLM_INLINE std::string_view append_assistant_text(std::string& out, Messages messages,
                                                       std::size_t index, std::size_t last_query,
                                                       std::string_view content,
                                                       const Qwen3Style& style) {
  out += "<|im_start|>assistant\n";
  if (!style.thoughts) {
    out += content;
    return content;
  }
  const Thought thought = split_thought(messages[index], content, style.lenient_content);
  const bool is_last = index + 1 == messages.size();
  if (index > last_query && (is_last || thought.truthy)) {
    check<RequestError>(thought.is_string, "messages[", index,
                        "]: 'reasoning_content' must be a string for this chat template");
    ((out += "<think>\n") += strip_right(strip_left(thought.reasoning))) += "\n</think>\n\n";
    out += strip_left(thought.content);
  } else {
    out += thought.content;
  }
  return thought.content;
}

NANOVLLM_INLINE void append_qwen3_assistant(std::string& out, Messages messages, std::size_t index,
                                            std::size_t last_query, std::string_view content,
                                            const Qwen3Style& style) {
  content = append_assistant_text(out, messages, index, last_query, content, style);
  bool first = true;
  for (const Json& call : tool_calls_of(messages, index)) {
    if (!first || !content.empty()) out += '\n';
    const Json* function = call.find("function");
    append_tool_call(out, function && python_truth(*function) ? *function : call, true);
    first = false;
  }
  out += kTurnEnd;
}

NANOVLLM_INLINE void append_prompt(std::string& out, const ChatOptions& options,
                                   ThinkPrompt prompt) {
  if (!options.add_generation_prompt) return;
  out += "<|im_start|>assistant\n";
  if (prompt == ThinkPrompt::open) out += "<think>\n";
  if (prompt == ThinkPrompt::empty ||
      (prompt == ThinkPrompt::optional && options.enable_thinking == false))
    out += kEmptyThought;
}

NANOVLLM_INLINE std::string render_qwen3(Messages messages, const ChatOptions& options,
                                         const Qwen3Style& style) {
  check_not_empty(messages);
  const bool has_system = messages[0].role() == "system";
  std::string out;
  if (const Json* tools = tools_of(options)) {
    out += "<|im_start|>system\n";
    if (has_system) (out += string_content(messages, 0)) += "\n\n";
    append_tools(out, *tools);
  } else if (has_system) {
    append_turn(out, "system", string_content(messages, 0));
  }
  const std::size_t last_query = last_query_index(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role();
    const auto content = [&]() -> std::string_view {
      if (!style.lenient_content) return string_content(messages, i);
      const std::string* text = string_field(messages[i], "content");
      return text ? std::string_view(*text) : std::string_view();
    };
    if (role == "user" || (role == "system" && i > 0)) {
      append_turn(out, role, content());
    } else if (role == "assistant") {
      append_qwen3_assistant(out, messages, i, last_query, content(), style);
    } else if (role == "tool") {
      if (style.lenient_content)
        append_tool_response(out, messages, i, content());
      else
        append_tool_response(out, messages, i, printed(messages[i].find("content")));
    }
  }
  append_prompt(out, options, style.prompt);
  return out;
}

NANOVLLM_INLINE std::string render_qwen2_5(Messages messages, const ChatOptions& options) {
  constexpr std::string_view kSystem =
      "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
  check_not_empty(messages);
  const bool has_system = messages[0].role() == "system";
  std::string out;
  if (const Json* tools = tools_of(options)) {
    out += "<|im_start|>system\n";
    out += has_system ? printed(messages[0].find("content")) : std::string(kSystem);
    append_tools(out += "\n\n", *tools);
  } else {
    append_turn(out, "system",
                has_system ? std::string_view(string_content(messages, 0)) : kSystem);
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role();
    const Json* content = messages[i].find("content");
    if (role == "assistant" && !tool_calls_of(messages, i).empty()) {
      out += "<|im_start|>assistant";
      if (content && python_truth(*content)) (out += '\n') += string_content(messages, i);
      for (const Json& call : tool_calls_of(messages, i)) {
        const Json* function = call.find("function");
        append_tool_call(out += '\n', function ? *function : call, false);
      }
      out += "<|im_end|>\n";
    } else if (role == "user" || role == "assistant" || (role == "system" && i > 0)) {
      append_turn(out, role, string_content(messages, i));
    } else if (role == "tool") {
      append_tool_response(out, messages, i, printed(content));
    }
  }
  append_prompt(out, options, ThinkPrompt::none);
  return out;
}

NANOVLLM_INLINE std::string render_chatml(Messages messages, const ChatOptions& options,
                                          ThinkPrompt prompt) {
  std::string out;
  for (std::size_t i = 0; i < messages.size(); ++i)
    append_turn(out, messages[i].role(), string_content(messages, i));
  append_prompt(out, options, prompt);
  return out;
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
