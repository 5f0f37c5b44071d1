#pragma once
/// Chat templates: from messages to the text of a prompt.
///
/// A checkpoint states its template as a Jinja program (chat/jinja_template.hpp), which a
/// header-only program reads if one of its files includes chat.hpp. docs/chat_templates.md says
/// where templates come from and what they are told.

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/chat/jinja_template.hpp"
#include "nanovllm/core/door.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

class Checkpoint;

/// What a checkpoint says of its chat template, not yet looked at.
struct ChatTemplateFiles {
  std::string checkpoint{};               ///< its name, for messages
  std::optional<std::string> jinja{};     ///< chat_template.jinja
  std::optional<std::string> json{};      ///< chat_template.json, of older processors
  std::optional<std::string> tool_use{};  ///< additional_chat_templates/tool_use.jinja
  std::optional<std::string> config{};    ///< tokenizer_config.json
  std::string config_path{};              ///< for messages

  [[nodiscard]] static ChatTemplateFiles read(const Checkpoint& checkpoint);

  /// Whether there is a template, by a glance at tokenizer_config.json.
  [[nodiscard]] bool state_one() const {
    return jinja || json || (config && config->find("\"chat_template\"") != config->npos);
  }
};

/// Renders conversations as one model expects them. Cheap to copy; const members may be called from
/// several threads at once.
class ChatTemplate {
 public:
  /// A renderer of the user's own. It may throw RequestError to refuse a conversation.
  using Renderer = std::function<std::string(std::span<const ChatMessage>, const ChatOptions&)>;
  [[nodiscard]] static ChatTemplate custom(Renderer renderer);

  /// A Jinja program. Throws ConfigError with line and column unless it can be read.
  /// @param for_tools  another one, for conversations with tools
  [[nodiscard]] static ChatTemplate from_text(std::string_view jinja,
                                              std::optional<std::string_view> for_tools = {});

  /// Plain ChatML: every message in order, and an empty thought if `enable_thinking` is false.
  [[nodiscard]] static ChatTemplate chatml();

  /// What `--chat-template` of vLLM takes: the path of a file, or a Jinja program, which has a '{'.
  /// Throws LoadError if there is no such file, and ConfigError as `from_text`.
  [[nodiscard]] static ChatTemplate from_argument(std::string_view file_or_text);

  /// The template of a checkpoint: the file chat_template.jinja if there is one, else
  /// chat_template.json, else `chat_template` in tokenizer_config.json, a string or a list of
  /// {name, template} of which the one called "default" counts. One called "tool_use", in that list
  /// or in additional_chat_templates/, is used for conversations with tools. Throws LoadError when
  /// there is none or a file is malformed, and ConfigError as `from_text`.
  [[nodiscard]] static ChatTemplate from_checkpoint(const Checkpoint& checkpoint);

  /// The same, when the files have been read.
  /// @param instead  used in place of their template, with their special tokens
  [[nodiscard]] static ChatTemplate from_files(const ChatTemplateFiles& files,
                                               std::optional<ChatTemplate> instead = {});

  /// The same of a folder.
  [[nodiscard]] static ChatTemplate from_directory(const std::filesystem::path& folder);

  /// This template, told the special tokens of a tokenizer_config.json, as `bos_token`. A custom
  /// renderer stays as it is.
  [[nodiscard]] ChatTemplate with_special_tokens(const Json& tokenizer_config) const;

  /// The prompt as text. Throws RequestError where the template refuses the conversation or fails,
  /// and if there is no message to continue. A custom renderer is not asked to leave that message
  /// open: its text is cut off after the last place where it has the content.
  [[nodiscard]] std::string render(std::span<const ChatMessage> messages,
                                   const ChatOptions& options = {}) const;

  [[nodiscard]] std::string render(std::initializer_list<ChatMessage> messages,
                                   const ChatOptions& options = {}) const {
    return render(std::span(messages.begin(), messages.size()), options);
  }

  /// The program for conversations with tools, or without; null for a custom renderer.
  [[nodiscard]] const JinjaTemplate* program(bool with_tools) const;

  /// What `find(*this)` returns: what somebody wants to know of the template. Copies share it, and
  /// `find` is called once for all of them, but for a custom renderer.
  using Find = std::shared_ptr<const void> (*)(const ChatTemplate&);
  [[nodiscard]] std::shared_ptr<const void> found_by(Find find) const;

  /// The text that ends a message of the assistant, without white space at its ends: "<|im_end|>"
  /// for instance. It is what the template prints after the last message. Empty if it prints
  /// nothing there or cannot be asked.
  [[nodiscard]] std::string turn_end() const;

 private:
  ChatTemplate() = default;
  struct Programs;

  [[nodiscard]] std::string render_jinja(std::span<const ChatMessage> messages,
                                         const ChatOptions& options) const;
  /// For ChatOptions::continue_final_message.
  [[nodiscard]] std::string render_open(std::span<const ChatMessage> messages,
                                        ChatOptions options) const;

  std::shared_ptr<const Programs> programs_;
  Json special_tokens_ = Json::object();
  Renderer renderer_;
};

namespace detail {

// What an engine asks of templates; a program that has none has no code for it.
[[nodiscard]] ChatTemplate read_chat_template(const ChatTemplateFiles& files,
                                              std::optional<ChatTemplate> instead);
[[nodiscard]] std::string turn_end_of(const ChatTemplate& chat_template);
NANOVLLM_DOOR(read_chat_template);
NANOVLLM_DOOR(turn_end_of);

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nanovllm {

struct ChatTemplate::Programs {
  explicit Programs(std::string_view text) : plain(text) {}
  JinjaTemplate plain;
  std::optional<JinjaTemplate> for_tools{};
  bool needs_parts = false;  ///< content must be a list of parts; a string is printed as nothing
  mutable std::mutex mutex{};
  mutable std::map<Find, std::shared_ptr<const void>> found{};
};

namespace detail {

/// The variables of a template for these messages.
NANOVLLM_INLINE Json chat_variables(std::span<const ChatMessage> messages,
                                    const ChatOptions& options, Json variables) {
  check<RequestError>(options.tools.is_array() || options.tools.is_null(),
                      "tools must be a list, got ", options.tools.type_name());
  Json list = Json::array();
  for (const ChatMessage& message : messages) list.push_back(message.fields());
  for (const auto& [name, value] : options.template_kwargs.items()) variables[name] = value;
  if (options.enable_thinking) variables["enable_thinking"] = *options.enable_thinking;
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"}) {
    check<RequestError>(!options.template_kwargs.contains(name), "chat_template_kwargs.", name,
                        ": a template gets this from the field of that name");
  }
  variables["messages"] = std::move(list);
  variables["tools"] = options.tools.empty() ? Json() : options.tools;
  variables["documents"] = options.documents;
  variables["add_generation_prompt"] = options.add_generation_prompt;
  return variables;
}

/// Whether the template prints content that is a list of parts, and not if it is a string.
NANOVLLM_INLINE bool prints_only_parts(const JinjaTemplate& program) {
  constexpr const char* kMark = "needle";
  const auto prints = [&](Json content) {
    const ChatMessage message("user", std::move(content));
    try {
      return program.render(chat_variables(std::span(&message, 1), {}, Json::object()))
                 .find(kMark) != std::string::npos;
    } catch (const RequestError&) {
      return false;
    }
  };
  return !prints(kMark) && prints(Json::array({Json::object({{"type", "text"}, {"text", kMark}})}));
}

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

/// The template that `config`, a tokenizer_config.json or chat_template.json, states.
NANOVLLM_INLINE ChatTemplate template_of_config(const Json& config, const ChatTemplateFiles& files,
                                                const std::string& path) {
  const Json* value = config.find("chat_template");
  check<LoadError>(value != nullptr && !value->is_null(), "no chat template: there is neither a ",
                   "chat_template.jinja nor a 'chat_template' in ", path);
  if (value->is_string()) return ChatTemplate::from_text(value->string(), files.tool_use);
  check<LoadError>(value->is_array(), path, ": 'chat_template' must be a string or a list, got ",
                   value->type_name());
  const auto text = named_template(*value, "default");
  check<LoadError>(text.has_value(), path, ": 'chat_template' has no entry called 'default'");
  return ChatTemplate::from_text(*text, named_template(*value, "tool_use"));
}

}  // namespace detail

NANOVLLM_INLINE ChatTemplate ChatTemplate::custom(Renderer renderer) {
  check<ConfigError>(renderer != nullptr, "ChatTemplate::custom needs a renderer, got none");
  detail::read_chat_template_door = &detail::read_chat_template;  // not by chat.hpp alone
  detail::turn_end_of_door = &detail::turn_end_of;
  ChatTemplate out;
  out.renderer_ = std::move(renderer);
  return out;
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::from_text(std::string_view jinja,
                                                     std::optional<std::string_view> for_tools) {
  const auto programs = std::make_shared<Programs>(jinja);
  if (for_tools) programs->for_tools = JinjaTemplate(*for_tools);
  programs->needs_parts = detail::prints_only_parts(programs->plain);
  ChatTemplate out;
  out.programs_ = programs;
  return out;
}

NANOVLLM_INLINE const JinjaTemplate* ChatTemplate::program(bool with_tools) const {
  if (programs_ == nullptr) return nullptr;
  return with_tools && programs_->for_tools ? &*programs_->for_tools : &programs_->plain;
}

NANOVLLM_INLINE std::shared_ptr<const void> ChatTemplate::found_by(Find find) const {
  if (programs_ == nullptr) return find(*this);
  const std::lock_guard lock(programs_->mutex);
  std::shared_ptr<const void>& found = programs_->found[find];
  if (found == nullptr) found = find(*this);
  return found;
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::chatml() {
  return from_text(
      "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + "
      "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
      "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}");
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::from_argument(std::string_view file_or_text) {
  if (file_or_text.find('{') != file_or_text.npos) return from_text(file_or_text);
  return from_text(MappedFile(std::filesystem::path(file_or_text)).text());
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::with_special_tokens(const Json& config) const {
  ChatTemplate out = *this;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const Json* token = config.find(name);
    if (token != nullptr && token->is_object()) token = token->find("content");
    if (token != nullptr && token->is_string()) out.special_tokens_[name] = *token;
  }
  return out;
}

NANOVLLM_INLINE std::string ChatTemplate::render_jinja(std::span<const ChatMessage> messages,
                                                       const ChatOptions& options) const {
  Json variables = detail::chat_variables(messages, options, special_tokens_);
  if (programs_->needs_parts) {
    Json& list = variables["messages"];
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Json* content = messages[i].find("content");
      if (content == nullptr || !content->is_string()) continue;
      list[i]["content"] = Json::array({Json::object({{"type", "text"}, {"text", *content}})});
    }
  }
  return program(!options.tools.empty())->render(variables);
}

NANOVLLM_INLINE std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                                 const ChatOptions& options) const {
  if (options.continue_final_message) return render_open(messages, options);
  return renderer_ ? renderer_(messages, options) : render_jinja(messages, options);
}

NANOVLLM_INLINE std::string ChatTemplate::render_open(std::span<const ChatMessage> messages,
                                                      ChatOptions options) const {
  check<RequestError>(!messages.empty() && messages.back().role() == "assistant",
                      "continue_final_message: the last message must be the assistant's");
  const Json* calls = messages.back().find("tool_calls");
  check<RequestError>(calls == nullptr || calls->empty(),
                      "continue_final_message: the last message must have no tool calls");
  const Json* content = messages.back().find("content");
  check<RequestError>(content != nullptr && content->is_string(),
                      "continue_final_message: the content of the last message must be a string");
  options.continue_final_message = options.add_generation_prompt = false;
  constexpr std::string_view kUnprinted =
      "continue_final_message: the chat template does not print the content of the last message";
  if (renderer_) {
    std::string text = renderer_(messages, options);
    const std::size_t begin = text.rfind(content->string());
    check<RequestError>(!content->string().empty() && begin != text.npos, kUnprinted, " as it is");
    text.resize(begin + content->string().size());
    return text;
  }
  // A mark after the content shows where it ends, as in transformers. A template that trims the
  // content takes the mark's blank, and would have taken that of the content.
  constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_HERE ";
  std::vector<ChatMessage> marked(messages.begin(), messages.end());
  marked.back().set("content", concat(content->string(), kMark));
  std::string text = render_jinja(marked, options);
  const std::size_t end = text.rfind(kMark.substr(0, kMark.size() - 1));
  check<RequestError>(end != text.npos, kUnprinted);
  const bool trimmed = !std::string_view(text).substr(end).starts_with(kMark);
  text.resize(end);
  if (trimmed) text.resize(text.find_last_not_of(" \t\r\n\f\v") + 1);
  return text;
}

NANOVLLM_INLINE std::string ChatTemplate::turn_end() const {
  constexpr std::string_view kMark = "needle";
  try {
    const ChatMessage messages[] = {{"user", "Hello"}, {"assistant", kMark}};
    const std::string text = render(messages, {.add_generation_prompt = false});
    const std::size_t mark = text.rfind(kMark);
    if (mark == text.npos) return {};
    const std::string_view rest = std::string_view(text).substr(mark + kMark.size());
    const std::size_t begin = rest.find_first_not_of(" \t\r\n");
    if (begin == rest.npos) return {};
    return std::string(rest.substr(begin, rest.find_last_not_of(" \t\r\n") + 1 - begin));
  } catch (const RequestError&) {
    return {};
  }
}

NANOVLLM_INLINE ChatTemplateFiles ChatTemplateFiles::read(const Checkpoint& checkpoint) {
  constexpr const char* kConfig = "tokenizer_config.json";
  return {.checkpoint = checkpoint.name(),
          .jinja = checkpoint.text("chat_template.jinja"),
          .json = checkpoint.text("chat_template.json"),
          .tool_use = checkpoint.text("additional_chat_templates/tool_use.jinja"),
          .config = checkpoint.text(kConfig),
          .config_path = checkpoint.path_of(kConfig)};
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::from_checkpoint(const Checkpoint& checkpoint) {
  return from_files(ChatTemplateFiles::read(checkpoint));
}

NANOVLLM_INLINE ChatTemplate ChatTemplate::from_files(const ChatTemplateFiles& files,
                                                      std::optional<ChatTemplate> instead) {
  const auto object = [](const std::string& text, const std::string& path) {
    Json out = parse_json<LoadError>(text, path);
    check<LoadError>(out.is_object(), path, " must hold an object, got ", out.type_name());
    return out;
  };
  check<LoadError>(instead || files.jinja || files.json || files.config, "no chat template: '",
                   files.checkpoint,
                   "' has neither a chat_template.jinja nor a tokenizer_config.json");
  const Json config = files.config ? object(*files.config, files.config_path) : Json::object();
  const auto stated = [&] {
    if (files.jinja) return from_text(*files.jinja, files.tool_use);
    if (!files.json) return detail::template_of_config(config, files, files.config_path);
    const char* path = "chat_template.json";
    return detail::template_of_config(object(*files.json, path), files, path);
  };
  return (instead ? *instead : stated()).with_special_tokens(config);
}

NANOVLLM_INLINE ChatTemplate detail::read_chat_template(const ChatTemplateFiles& files,
                                                        std::optional<ChatTemplate> instead) {
  return ChatTemplate::from_files(files, std::move(instead));
}
NANOVLLM_INLINE std::string detail::turn_end_of(const ChatTemplate& chat_template) {
  return chat_template.turn_end();
}
NANOVLLM_INLINE ChatTemplate ChatTemplate::from_directory(const std::filesystem::path& folder) {
  return from_checkpoint(folder);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
