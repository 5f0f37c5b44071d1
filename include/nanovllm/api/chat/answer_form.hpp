#pragma once
/// What the answers of a model look like, as far as its chat template shows.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/api/chat/reasoning_parser.hpp"
#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/chat/jinja_template.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// How an assistant's text writes its tool calls.
enum class ToolCallFormat : std::uint8_t {
  none,    ///< there are none in it
  hermes,  ///< <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>
  /// <tool_call>\n<function=…>\n<parameter=…>\n…\n</parameter>\n</function>\n</tool_call>
  qwen3_coder,
};

/// By default of a template that is not known: no thoughts, no calls.
struct AnswerForm {
  /// What a prompt for an answer has of a thought, where `enable_thinking` is not given, false and
  /// true.
  std::array<Reasoning, 3> reasoning{};
  /// Whether the template prints thoughts of earlier messages. A model whose template does not
  /// thinks only if `enable_thinking` asks for it.
  bool shows_thoughts = false;
  /// The form of calls that the template describes; none where it knows no tools, or another form.
  ToolCallFormat tool_call_format = ToolCallFormat::none;

  [[nodiscard]] Reasoning reasoning_of(std::optional<bool> enable_thinking) const {
    return reasoning[enable_thinking ? (*enable_thinking ? 2u : 1u) : 0u];
  }
};

namespace detail {

inline AnswerForm form_of(const JinjaTemplate& program) {
  const auto has = [&](std::string_view what) {
    return program.text().find(what) != std::string::npos;
  };
  AnswerForm out;
  const bool thinks = has("<think>") || has("</think>");
  for (std::size_t i = 0; thinks && i < out.reasoning.size(); ++i) {
    out.reasoning[i] = Reasoning::optional;
    Json variables = Json::object(
        {{"messages", Json::array({Json::object({{"role", "user"}, {"content", "Hello"}})})},
         {"tools", nullptr},
         {"add_generation_prompt", true}});
    if (i > 0) variables["enable_thinking"] = i == 2;
    try {
      std::string prompt = program.render(variables);
      prompt.resize(prompt.find_last_not_of(" \n") + 1);
      if (prompt.ends_with("<think>")) out.reasoning[i] = Reasoning::open;
      if (prompt.ends_with("</think>")) out.reasoning[i] = Reasoning::none;
    } catch (const RequestError&) {
      // It wants another conversation, or more variables.
    }
  }
  out.shows_thoughts = has("reasoning_content") || has("('</think>')") || has("(\"</think>\")");
  if (has("<tool_call>") && has("tools") && !has("<arg_key>"))
    out.tool_call_format = has("<function=") ? ToolCallFormat::qwen3_coder : ToolCallFormat::hermes;
  return out;
}

}  // namespace detail

/// Reads it off a template: its text, and the ends of prompts that it renders. A prompt that ends
/// with "<think>" begins a thought, and one that ends with "</think>" has an empty one; after
/// others a model may think if the template mentions these tags. The default of a custom renderer.
[[nodiscard]] inline AnswerForm answer_form(const ChatTemplate& chat_template) {
  const auto find = [](const ChatTemplate& of) -> std::shared_ptr<const void> {
    const auto* const plain = of.program(false);
    if (plain == nullptr) return std::make_shared<const AnswerForm>();
    AnswerForm out = detail::form_of(*plain);
    const auto* const for_tools = of.program(true);
    if (for_tools != plain) out.tool_call_format = detail::form_of(*for_tools).tool_call_format;
    return std::make_shared<const AnswerForm>(out);
  };
  return *static_cast<const AnswerForm*>(chat_template.found_by(find).get());
}

}  // namespace nanovllm
