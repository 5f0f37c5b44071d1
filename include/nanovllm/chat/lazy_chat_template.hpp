#pragma once
/// A chat template that is looked at when somebody chats.

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/chat/jinja_template.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// A ChatTemplate, or the reason why there is none; used like a std::optional. That of a
/// checkpoint is read when this is first asked whether it has one: a program that never asks has no
/// code for it. Copies share what was found; const members may be called from several
/// threads at once.
class LazyChatTemplate {
 public:
  /// There is none.
  explicit LazyChatTemplate(std::string why_none = {}) : state_(std::make_shared<State>()) {
    state_->why_none = std::move(why_none);
  }

  LazyChatTemplate(ChatTemplate chat_template)  // NOLINT(google-explicit-constructor): it is one
      : state_(std::make_shared<State>()) {
    state_->found = std::move(chat_template);
  }

  /// That of a checkpoint. One that is missing or malformed is none.
  /// @param instead  used in its place, with the checkpoint's special tokens
  [[nodiscard]] static LazyChatTemplate from_files(ChatTemplateFiles files,
                                                   std::optional<ChatTemplate> instead = {}) {
    LazyChatTemplate out;
    out.state_->is_unreadable =
        !instead && files.state_one() && jinja::read_program_door.load() == nullptr;
    out.state_->files = std::move(files);
    out.state_->instead = std::move(instead);
    return out;
  }

  [[nodiscard]] bool has_value() const { return find().found.has_value(); }
  explicit operator bool() const { return has_value(); }

  /// There must be one.
  [[nodiscard]] const ChatTemplate& operator*() const { return *find().found; }
  const ChatTemplate* operator->() const { return &**this; }

  /// Whether the checkpoint states one, and the program cannot read it: it is header-only, without
  /// chat.hpp.
  [[nodiscard]] bool is_unreadable() const { return state_->is_unreadable; }

  /// Why there is none; empty if there is one.
  [[nodiscard]] const std::string& why_none() const { return find().why_none; }

 private:
  struct State {
    std::once_flag once{};
    std::optional<ChatTemplateFiles> files{};  ///< to be looked at
    std::optional<ChatTemplate> instead{}, found{};
    std::string why_none{};
    bool is_unreadable = false;
  };

  const State& find() const;

  std::shared_ptr<State> state_;
};

/// The conversation as text. Throws RequestError where there is no template, and as
/// `ChatTemplate::render`.
[[nodiscard]] std::string render_chat(const LazyChatTemplate& chat_template,
                                      std::span<const ChatMessage> messages,
                                      const ChatOptions& options);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE const LazyChatTemplate::State& LazyChatTemplate::find() const {
  std::call_once(state_->once, [&] {
    if (!state_->files) return;
    try {
      state_->found = detail::through<ConfigError>(detail::read_chat_template_door,
                                                   "nanovllm/chat.hpp", "a chat template")(
          *state_->files, std::move(state_->instead));
    } catch (const Error& error) {
      state_->why_none = error.what();
    }
    state_->files.reset();
  });
  return *state_;
}

NANOVLLM_INLINE std::string render_chat(const LazyChatTemplate& chat_template,
                                        std::span<const ChatMessage> messages,
                                        const ChatOptions& options) {
  check<RequestError>(chat_template.has_value(),
                      "messages need a chat template: ", chat_template.why_none());
  return chat_template->render(messages, options);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
