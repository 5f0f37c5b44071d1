#pragma once
/// Messages to a prompt, and what a model answers to messages, reasoning and tool calls.

#include "nanovllm/chat/answer_form.hpp"
#include "nanovllm/chat/chat_event.hpp"
#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/chat/chat_parser.hpp"
#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/chat/jinja/jinja_template.hpp"
#include "nanovllm/chat/jinja_programs.hpp"
#include "nanovllm/chat/lazy_chat_template.hpp"
#include "nanovllm/chat/tool_call_format.hpp"
#include "nanovllm/chat/tool_calls/tool_schemas.hpp"
