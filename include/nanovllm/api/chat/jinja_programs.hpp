#pragma once
/// The interpreter of chat templates, which chat.hpp brings. A header-only program without it
/// renders no conversation, and does not know an end token that a template alone names.

#include <memory>
#include <string>
#include <string_view>

#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/chat/jinja_template.hpp"
#include "nanovllm/core/door.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

#if NANOVLLM_BODIES

#include "nanovllm/api/chat/jinja/interpreter.hpp"
#include "nanovllm/api/chat/jinja/parser.hpp"
#include "nanovllm/api/chat/jinja/value.hpp"

namespace nanovllm {

namespace jinja {

NANOVLLM_INLINE std::shared_ptr<const Tree> read_program(std::string_view text) {
  return std::make_shared<const Tree>(Parser::parse(text));
}

NANOVLLM_INLINE std::string run_program(const Tree& program, const Json& variables) {
  const Value values = Value::from_json(variables);
  return Interpreter(program, values.dict()).render();
}

NANOVLLM_OPEN_DOOR(read_program);
NANOVLLM_OPEN_DOOR(run_program);

}  // namespace jinja

namespace detail {

NANOVLLM_OPEN_DOOR(read_chat_template);
NANOVLLM_OPEN_DOOR(turn_end_of);

}  // namespace detail

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
