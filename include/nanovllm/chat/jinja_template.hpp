#pragma once
/// Chat templates as programs: the part of Jinja2 that `apply_chat_template` of Hugging Face
/// transformers allows.

#include <memory>
#include <string>
#include <string_view>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

namespace jinja {

struct Tree;

// What a program that reads templates has: api/chat/jinja_programs.hpp.
[[nodiscard]] std::shared_ptr<const Tree> read_program(std::string_view text);
[[nodiscard]] std::string run_program(const Tree& program, const Json& variables);
NANOVLLM_DOOR(read_program);
NANOVLLM_DOOR(run_program);

}  // namespace jinja

/// A template that has been read. It renders what Jinja2 renders in transformers' environment, byte
/// for byte: ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks, loop controls and
/// `{% generation %}`. docs/chat_templates.md lists what it knows and what differs.
///
/// A template cannot do harm: it reads nothing but its variables and the clock, and it is bounded
/// in steps, in depth and in the length of its texts. Copies share the program; const members may
/// be called from several threads at once.
class JinjaTemplate {
 public:
  /// Reads it. Throws ConfigError that names the line, the column, what was expected and what came.
  explicit JinjaTemplate(std::string_view text);

  /// The text for these variables, the members of an object. Throws RequestError, with line and
  /// column, where Jinja2 raises, where the template calls `raise_exception`, and beyond the
  /// bounds.
  [[nodiscard]] std::string render(const Json& variables) const;

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::shared_ptr<const jinja::Tree> tree_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE JinjaTemplate::JinjaTemplate(std::string_view text)
    : text_(text),
      tree_(detail::through<ConfigError>(jinja::read_program_door, "nanovllm/chat.hpp",
                                         "a chat template")(text)) {}

NANOVLLM_INLINE std::string JinjaTemplate::render(const Json& variables) const {
  return jinja::run_program_door.load()(*tree_, variables);  // what it was read with
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
