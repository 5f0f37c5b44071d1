#pragma once
/// Chat templates: from messages to the text of a prompt.
///
/// A checkpoint states its template as a Jinja program. This library does not interpret Jinja: it
/// recognises the programs of the Qwen family, and plain ChatML, and renders them in C++. Anything
/// else is refused rather than rendered approximately, and the user passes a renderer of their own.

#include <array>
#include <cstddef>
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

class Checkpoint;

/// The templates that are rendered natively.
enum class ChatTemplateKind : std::uint8_t {
  qwen3,                ///< the hybrid models, with `enable_thinking`
  qwen3_release_day,    ///< the same as first published: stricter about content
  qwen3_instruct_2507,  ///< no thoughts at all
  qwen3_thinking_2507,  ///< always thinks; `enable_thinking` has no effect
  qwen3_nonthinking,    ///< Qwen's variant of the hybrid that never thinks
  qwen2_5,              ///< Qwen2.5 Instruct
  chatml,               ///< every message in order
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

/// What a checkpoint says of its chat template, not yet looked at.
struct ChatTemplateFiles {
  std::string checkpoint{};             ///< its name, for messages
  std::optional<std::string> jinja{};   ///< chat_template.jinja
  std::optional<std::string> config{};  ///< tokenizer_config.json, where there is no such file
  std::string config_path{};            ///< for messages

  [[nodiscard]] static ChatTemplateFiles read(const Checkpoint& checkpoint);
};

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

  /// The template of a checkpoint: the file chat_template.jinja if there is one, else
  /// `chat_template` in tokenizer_config.json, a string or a list of {name, template} of which the
  /// one called "default" counts. Throws LoadError when there is none or a file is malformed, and
  /// ConfigError for an unknown template, or when the list has another one for tools ("tool_use").
  [[nodiscard]] static ChatTemplate from_checkpoint(const Checkpoint& checkpoint);

  /// The same, when the files have been read.
  [[nodiscard]] static ChatTemplate from_files(const ChatTemplateFiles& files);

  /// The same of a folder.
  [[nodiscard]] static ChatTemplate from_directory(const std::filesystem::path& folder);

  [[nodiscard]] ChatTemplateKind kind() const { return kind_; }

  /// The prompt as text. Throws RequestError where the template refuses the conversation, as for
  /// an empty one or content that is not a string, and if there is no message to continue. A
  /// custom renderer is not asked to leave that message open: its text is cut off after the last
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

#include <utility>

#include "nanovllm/chat/chat_render.hpp"
#include "nanovllm/chat/jinja_fingerprint.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

namespace detail {

struct KnownTemplate {
  std::uint64_t fingerprint;
  ChatTemplateKind kind;
};

/// Fingerprints of the published templates. A template found here means exactly what the renderer
/// of its kind does; one that was edited, if only in a word, is not found.
inline constexpr KnownTemplate kKnownTemplates[] = {
    {0xfb6d0f1bf2af3aa7, ChatTemplateKind::qwen3},
    {0x3d3f40bd908fb2cf, ChatTemplateKind::qwen3_release_day},
    {0x913fbf59fd9fef81, ChatTemplateKind::qwen3_instruct_2507},
    {0x2eb3d7d4ed55e4bf, ChatTemplateKind::qwen3_thinking_2507},
    {0x5677bf3c2ba4a8b3, ChatTemplateKind::qwen3_nonthinking},
    {0x0a2563945ee5bff9, ChatTemplateKind::qwen2_5},
    {0x6bca832974b522e8, ChatTemplateKind::chatml},
    {0x5a091f33a37e5286, ChatTemplateKind::chatml},
    {0x4009b1f4af258bea, ChatTemplateKind::chatml_hybrid},
};

}  // namespace detail

NANOVLLM_INLINE std::optional<ChatTemplateKind> recognise_chat_template(std::string_view jinja) {
  const std::uint64_t fingerprint = jinja_fingerprint(jinja);
  for (const detail::KnownTemplate& known : detail::kKnownTemplates)
    if (known.fingerprint == fingerprint) return known.kind;
  return std::nullopt;
}

NANOVLLM_INLINE ChatTemplate::ChatTemplate(ChatTemplateKind kind) : kind_(kind) {
  check<ConfigError>(kind != ChatTemplateKind::custom,
                     "a custom chat template is made with ChatTemplate::custom(renderer)");
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::custom(Renderer renderer) {
  check<ConfigError>(renderer != nullptr, "ChatTemplate::custom needs a renderer, got none");
  ChatTemplate out;
  out.renderer_ = std::move(renderer);
  return out;
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::from_text(std::string_view jinja) {
  const auto kind = recognise_chat_template(jinja);
  if (!kind) {
    std::string known;
    for (int i = 0; i < static_cast<int>(ChatTemplateKind::custom); ++i)
      (known += i ? ", " : "") += name(static_cast<ChatTemplateKind>(i));
    throw ConfigError(
        concat("the checkpoint's chat template (", jinja.size(),
               " bytes of Jinja) is not one that is rendered natively, which are: ", known,
               ". If it means the same as one of these, use ChatTemplate(ChatTemplateKind::...); "
               "otherwise pass a renderer of your own with ChatTemplate::custom(function of "
               "(std::span<const ChatMessage>, const ChatOptions&) that returns std::string)"));
  }
  return ChatTemplate(*kind);
}

NANOVLLM_INLINE std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                                 const ChatOptions& options) const {
  using detail::ThinkPrompt;
  if (options.continue_final_message) return render_open(messages, options);
  switch (kind_) {
    case ChatTemplateKind::qwen3: return detail::render_qwen3(messages, options, {});
    case ChatTemplateKind::qwen3_release_day:
      return detail::render_qwen3(messages, options, {.lenient_content = false});
    case ChatTemplateKind::qwen3_instruct_2507:
      return detail::render_qwen3(messages, options,
                                  {.thoughts = false, .prompt = ThinkPrompt::none});
    case ChatTemplateKind::qwen3_thinking_2507:
      return detail::render_qwen3(messages, options, {.prompt = ThinkPrompt::open});
    case ChatTemplateKind::qwen3_nonthinking:
      return detail::render_qwen3(messages, options, {.prompt = ThinkPrompt::empty});
    case ChatTemplateKind::qwen2_5: return detail::render_qwen2_5(messages, options);
    case ChatTemplateKind::chatml:
      return detail::render_chatml(messages, options, ThinkPrompt::none);
    case ChatTemplateKind::chatml_hybrid:
      return detail::render_chatml(messages, options, ThinkPrompt::optional);
    case ChatTemplateKind::custom: break;
  }
  return renderer_(messages, options);
}

NANOVLLM_INLINE std::string ChatTemplate::render_open(std::span<const ChatMessage> messages,
                                                      ChatOptions options) const {
  check<RequestError>(!messages.empty() && messages.back().role() == "assistant",
                      "continue_final_message: the last message must be the assistant's");
  check<RequestError>(detail::tool_calls_of(messages, messages.size() - 1).empty(),
                      "continue_final_message: the last message must have no tool calls");
  const std::string& content = detail::string_content(messages, messages.size() - 1);
  options.continue_final_message = options.add_generation_prompt = false;
  std::string text = render(messages, options);
  if (kind_ != ChatTemplateKind::custom) {
    text.resize(text.size() - detail::kTurnEnd.size());
    return text;
  }
  const std::size_t begin = text.rfind(content);
  check<RequestError>(!content.empty() && begin != text.npos,
                      "continue_final_message: the chat template does not print the content of the "
                      "last message as it is");
  text.resize(begin + content.size());
  return text;
}

namespace detail {

/// The program called `wanted` in a list of {name, template}, or nothing.
NANOVLLM_INLINE std::optional<std::string> named_template(const Json& list,
                                                          std::string_view wanted) {
  for (const Json& entry : list) {
    const Json* entry_name = entry.find("name");
    const Json* text = entry.find("template");
    check<LoadError>(entry_name && entry_name->is_string() && text && text->is_string(),
                     "tokenizer_config.json: an entry of 'chat_template' must have a string 'name' "
                     "and a string 'template'");
    if (entry_name->string() == wanted) return text->string();
  }
  return std::nullopt;
}

NANOVLLM_INLINE ChatTemplate template_of_config(const Json& config, const std::string& path) {
  check<LoadError>(config.is_object(), path, " must hold an object, got ", config.type_name());
  const Json* value = config.find("chat_template");
  check<LoadError>(value != nullptr && !value->is_null(), "no chat template: there is neither a ",
                   "chat_template.jinja nor a 'chat_template' in ", path);
  if (value->is_string()) return ChatTemplate::from_text(value->string());
  check<LoadError>(value->is_array(), path, ": 'chat_template' must be a string or a list, got ",
                   value->type_name());
  const auto text = named_template(*value, "default");
  check<LoadError>(text.has_value(), path, ": 'chat_template' has no entry called 'default'");
  const ChatTemplate chosen = ChatTemplate::from_text(*text);
  if (const auto for_tools = named_template(*value, "tool_use")) {
    check<ConfigError>(recognise_chat_template(*for_tools) == chosen.kind(), path,
                       ": 'chat_template' has another template for conversations with tools, "
                       "which is not supported; pass a renderer with ChatTemplate::custom");
  }
  return chosen;
}

}  // namespace detail

NANOVLLM_INLINE ChatTemplateFiles ChatTemplateFiles::read(const Checkpoint& checkpoint) {
  constexpr const char* kConfig = "tokenizer_config.json";
  ChatTemplateFiles out{.checkpoint = checkpoint.name(),
                        .jinja = checkpoint.text("chat_template.jinja"),
                        .config_path = checkpoint.path_of(kConfig)};
  if (!out.jinja) out.config = checkpoint.text(kConfig);
  return out;
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::from_checkpoint(const Checkpoint& checkpoint) {
  return from_files(ChatTemplateFiles::read(checkpoint));
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::from_files(const ChatTemplateFiles& files) {
  if (files.jinja) return from_text(*files.jinja);
  check<LoadError>(files.config.has_value(), "no chat template: '", files.checkpoint,
                   "' has neither a chat_template.jinja nor a tokenizer_config.json");
  return detail::template_of_config(parse_json<LoadError>(*files.config, files.config_path),
                                    files.config_path);
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::from_directory(const std::filesystem::path& folder) {
  return from_checkpoint(folder);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
