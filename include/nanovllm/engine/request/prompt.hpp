#pragma once
/// What users hand to the engine: a text, token ids, or a conversation.

#include <concepts>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/chat/lazy_chat_template.hpp"
#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// A conversation to be rendered by the model's chat template.
struct ChatPrompt {
  std::vector<ChatMessage> messages;
  ChatOptions options{};
  /// Makes its text. The engine renders by this pointer alone: a program that makes no ChatPrompt
  /// has no code for chat templates.
  decltype(&render_chat) render = &render_chat;
};

/// Most bytes of a `Prompt::cache_salt`.
inline constexpr std::size_t kMaxCacheSaltBytes = 512;

/// A text, token ids, or a conversation.
struct Prompt : std::variant<std::string, std::vector<TokenId>, ChatPrompt> {
  Prompt(const char* text) : variant(std::string(text)) {}
  Prompt(std::string_view text) : variant(std::string(text)) {}
  Prompt(std::string text) : variant(std::move(text)) {}
  Prompt(std::vector<TokenId> token_ids) : variant(std::move(token_ids)) {}
  Prompt(std::vector<ChatMessage> messages) : variant(ChatPrompt{std::move(messages)}) {}
  Prompt(ChatPrompt chat) : variant(std::move(chat)) {}

  /// The prompt shares cached prefixes only with prompts that have the same salt. Up to
  /// kMaxCacheSaltBytes bytes; empty: it shares them with all prompts that have none.
  std::string cache_salt{};
};

/// Anything with a beginning and an end whose elements become `T`.
template <class Range, class T>
concept RangeOf = requires(const Range& range) {
  { *std::begin(range) } -> std::convertible_to<T>;
  std::end(range);
};

}  // namespace nanovllm
