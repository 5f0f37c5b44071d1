/// libFuzzer target: any text is read as a chat template, or refused, and rendered, or refused,
/// within its bounds; twice the same. What is ahead of a NUL, if it is an object of JSON, are the
/// variables.
/// Build with clang++ -fsanitize=fuzzer,address,undefined.

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/chat/jinja_programs.hpp"
#include "nanovllm/chat/jinja_template.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nv = nanovllm;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::optional<std::string> render(const nv::JinjaTemplate& program, const nv::Json& variables) {
  try {
    return program.render(variables);
  } catch (const nv::RequestError& error) {
    require(std::string_view(error.what()).find("chat template") != std::string_view::npos);
    return std::nullopt;
  }
}

const nv::Json& default_variables() {
  static const nv::Json variables = nv::parse_json(R"({
      "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé"},
                   {"role": "assistant", "content": null, "tool_calls": [{"function": {
                       "name": "f", "arguments": {"a": [1, 2.5, "x"], "b": {}}}}]}],
      "tools": [{"name": "f"}], "add_generation_prompt": true, "bos_token": "<s>", "n": 7})");
  return variables;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  nv::Json variables = default_variables();
  if (const std::size_t end = text.find('\0'); end != text.npos) {
    try {
      nv::Json given = nv::parse_json_value(text.substr(0, end));
      if (given.is_object()) variables = std::move(given);
    } catch (const nv::Error&) {
      // Not JSON.
    }
    text.remove_prefix(end + 1);
  }
  try {
    const nv::JinjaTemplate program(text);
    const bool uses_clock = text.find("strftime_now") != text.npos;
    const std::optional<std::string> once = render(program, variables);
    require(uses_clock || once == render(program, variables));
  } catch (const nv::ConfigError& error) {
    require(std::string_view(error.what()).starts_with("chat template, line "));
  }
  return 0;
}
