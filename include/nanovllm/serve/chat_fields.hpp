#pragma once
/// What requests say of a conversation: its messages, and what else a chat template is told.

#include <cstddef>
#include <vector>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/serve/request_fields.hpp"

namespace nanovllm::serve {

/// Messages that a request may have.
inline constexpr std::size_t kMaxMessages = 16384;

/// Reads `messages`, ready to be rendered: the role 'developer' becomes 'system'; text parts are
/// joined, and content that is null, or that a message of the assistant lacks, is ""; the arguments
/// of tool calls become objects where they are the text of one, as templates want them; `reasoning`
/// is taken for `reasoning_content` where there is none. Other members stay as they are. Throws
/// ApiError, also for content that is not text.
[[nodiscard]] std::vector<ChatMessage> parse_chat_messages(const RequestFields& body);

/// Reads add_generation_prompt, continue_final_message and what says whether to think:
/// chat_template_kwargs.enable_thinking, else enable_thinking, else a reasoning_effort of 'none'.
/// Other kwargs are ignored. Throws ApiError, also for chat_template: a template is a program, and requests are not trusted with one.
[[nodiscard]] ChatOptions parse_chat_options(const RequestFields& body);

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/chat_fields.inc"
#endif
