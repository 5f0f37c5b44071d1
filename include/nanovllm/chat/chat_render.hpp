#pragma once
/// The Qwen templates, Qwen2.5's and plain ChatML in C++.
///
/// Each function renders what Jinja2 renders for the template it is named after, byte for byte, and
/// throws RequestError where Jinja2 raises. Names follow the templates', so that the two can be
/// read side by side.

#include <cstdint>
#include <span>
#include <string>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/prebuilt.hpp"

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

/// Plain ChatML: every message in turn, whatever its role.
[[nodiscard]] std::string render_chatml(Messages messages, const ChatOptions& options,
                                        ThinkPrompt prompt);

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES
#include "nanovllm/chat/chat_render.inc"
#endif
