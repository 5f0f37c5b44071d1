#pragma once
/// Chat templates: from messages to the text of a prompt.
///
/// A checkpoint states its template as a Jinja program. This library does not interpret Jinja: it
/// recognises the programs of the Qwen family, and plain ChatML, and renders them in C++. Anything
/// else is refused rather than rendered approximately, and the user passes a renderer of their own.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm {

/// The templates that are rendered natively.
enum class ChatTemplateKind : std::uint8_t {
  qwen3,                ///< the hybrid models, with `enable_thinking`
  qwen3_release_day,    ///< the same as first published: stricter about content
  qwen3_instruct_2507,  ///< no thoughts at all
  qwen3_thinking_2507,  ///< always thinks; `enable_thinking` has no effect
  qwen3_nonthinking,    ///< Qwen's variant of the hybrid that never thinks
  qwen2_5,              ///< Qwen2.5 Instruct
  chatml,               ///< every message in turn
  chatml_hybrid,        ///< ChatML with `enable_thinking`
  custom,               ///< the user's renderer
};

/// "qwen3", "qwen3_release_day", …
[[nodiscard]] constexpr std::string_view name(ChatTemplateKind kind) {
  constexpr std::array<std::string_view, 9> kNames = {"qwen3",
                                                      "qwen3_release_day",
                                                      "qwen3_instruct_2507",
                                                      "qwen3_thinking_2507",
                                                      "qwen3_nonthinking",
                                                      "qwen2_5",
                                                      "chatml",
                                                      "chatml_hybrid",
                                                      "custom"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// The template whose program this is, however it is laid out; nothing for an unknown program.
[[nodiscard]] std::optional<ChatTemplateKind> recognise_chat_template(std::string_view jinja);

/// Renders conversations as one model expects them. Cheap to copy; const members may be called from
/// several threads at once.
class ChatTemplate {
 public:
  /// A renderer of the user's own. It may throw RequestError to refuse a conversation.
  using Renderer = std::function<std::string(std::span<const ChatMessage>, const ChatOptions&)>;

  /// One of the native templates.
  explicit ChatTemplate(ChatTemplateKind kind);

  [[nodiscard]] static ChatTemplate custom(Renderer renderer);

  /// The template a checkpoint states. Throws ConfigError unless it is a known one.
  [[nodiscard]] static ChatTemplate from_text(std::string_view jinja);

  /// The template of a checkpoint's folder: the file chat_template.jinja if there is one, else
  /// `chat_template` in tokenizer_config.json, a string or a list of {name, template} of which the
  /// one called "default" counts. Throws LoadError when there is none or a file is malformed, and
  /// ConfigError for an unknown template, or when the list has another one for tools ("tool_use").
  [[nodiscard]] static ChatTemplate from_directory(const std::filesystem::path& folder);

  [[nodiscard]] ChatTemplateKind kind() const { return kind_; }

  /// The prompt as text. Throws RequestError where the template refuses the conversation, as for
  /// an empty one or content that is not a string, and where there is no message to go on with. A
  /// custom renderer is not asked to leave that message open: its text is cut off behind the last
  /// place where it has the content.
  [[nodiscard]] std::string render(std::span<const ChatMessage> messages,
                                   const ChatOptions& options = {}) const;

  [[nodiscard]] std::string render(std::initializer_list<ChatMessage> messages,
                                   const ChatOptions& options = {}) const {
    return render(std::span(messages.begin(), messages.size()), options);
  }

 private:
  ChatTemplate() = default;

  /// For ChatOptions::continue_final_message.
  [[nodiscard]] std::string render_open(std::span<const ChatMessage> messages,
                                        ChatOptions options) const;

  ChatTemplateKind kind_ = ChatTemplateKind::custom;
  Renderer renderer_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/chat/chat_template.inc"
#endif
