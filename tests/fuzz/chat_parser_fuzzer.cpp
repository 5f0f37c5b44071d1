/// libFuzzer target: the events of any text are the same whole, in pieces and byte by byte, are in
/// order, and lose nothing. The first byte chooses options, the second the pieces; the text is
/// behind them. Build with clang++ -fsanitize=fuzzer,address,undefined.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "api/chat/chat_parser_laws.hpp"

namespace nv = nanovllm;
namespace laws = nanovllm_test;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const nv::Json& tools() {
  static const nv::Json list = nv::parse_json(R"([{"type": "function", "function": {"name": "f",
      "parameters": {"type": "object", "properties": {"s": {"type": "string"},
      "n": {"type": "integer"}, "b": {"type": ["boolean", "null"]}, "a": {},
      "l": {"type": "array", "items": {"$ref": "#/properties/n"}}, "o": {"type": "object"}}}}}])");
  return list;
}

nv::ChatParserOptions options_of(unsigned bits) {
  nv::ChatParserOptions options;
  options.reasoning = static_cast<nv::Reasoning>((bits & 3) % 3);
  options.tool_call_format = static_cast<nv::ToolCallFormat>(((bits >> 2) & 3) % 3);
  if (bits & 16) options.tools = tools();
  if (bits & 32) options.mode = nv::ToolCallMode::incremental;
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  nv::ChatParserOptions options = options_of(data[0]);
  const std::size_t step = 1 + data[1] % 16;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);

  const auto reason = data[0] & 64 ? nv::FinishReason::length : nv::FinishReason::stop;
  const laws::Events events = laws::parse({text}, options, reason);
  std::vector<std::string_view> bytes, pieces;
  for (std::size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
  for (std::size_t i = 0; i < text.size(); i += step) pieces.push_back(text.substr(i, step));
  require(laws::parse(bytes, options, reason) == events);
  require(laws::parse(pieces, options, reason) == events);

  const bool is_whole = options.mode == nv::ToolCallMode::whole;
  require(laws::is_well_formed(events, !is_whole));

  if (options.reasoning == nv::Reasoning::none) {
    const bool has_calls = std::any_of(events.begin(), events.end(), [](const auto& event) {
      return event.kind == laws::Kind::tool_call_begin;
    });
    if (!has_calls) require(laws::content_of(events) == text);
    // With tools, arguments may be repaired.
    if (is_whole && !(data[0] & 16) && options.tool_call_format != nv::ToolCallFormat::qwen3_coder)
      require(laws::says(text, events));
  }

  // Calls that a parser gives as they come, and that end well, are those that it gives as a whole.
  if (!is_whole && !(data[0] & 16) && laws::is_well_formed(events, false)) {
    options.mode = nv::ToolCallMode::whole;
    require(laws::parse({text}, options, reason) == events);
  }
  return 0;
}
