#pragma once
/// Messages to a prompt, and what a model answers to messages, reasoning and tool calls.

#include "nanovllm/api/chat/answer_form.hpp"
#include "nanovllm/api/chat/chat_parser.hpp"
#include "nanovllm/api/chat/jinja_programs.hpp"
#include "nanovllm/api/chat/tool_call_parser.hpp"
#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/chat/jinja_template.hpp"
#include "nanovllm/chat/lazy_chat_template.hpp"
