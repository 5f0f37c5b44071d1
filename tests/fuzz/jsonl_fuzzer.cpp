/// Feeds bytes to the reader of batch lines. Whatever comes in, a line yields a request or an
/// error, never an exception, and the line that answers it is valid JSON with the same id.

#include "../../examples/jsonl.hpp"

#include <nanovllm/chat.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

namespace nv = nanovllm;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_answer(const std::string& line, const nv::Json& id) {
  require(line.ends_with('\n') && line.find('\n') + 1 == line.size());
  const nv::Json answer = nv::parse_json(line);
  require(answer.is_object() && answer["id"].dump() == id.dump());
}

void check_chat(const nv::ChatPrompt& chat) {
  static const nv::ChatTemplate chat_template = nv::ChatTemplate::chatml();
  try {
    const std::string text = chat_template.render(chat.messages, chat.options);
    require(nv::utf8::valid_prefix(text) == text.size());
  } catch (const nv::RequestError&) {
    // The template refuses this conversation.
  }
}

void check_line(std::string_view text) {
  const auto line = nv::examples::parse_batch_line(text);
  if (!line) return;
  require(line->request.has_value() == line->error.empty());
  check_answer(nv::examples::error_line(line->id, line->error), line->id);
  nv::Output output;
  output.text = text;
  for (const char c : text.substr(0, 8)) {
    output.token_ids.push_back(c);
    output.logprobs.push_back({c, 1.f / static_cast<float>(c), {{c, static_cast<float>(c) / 7}}});
  }
  check_answer(nv::examples::result_line(line->id, output, true), line->id);
  if (!line->request) return;
  nv::validate(line->request->sampling);
  if (const auto* chat = std::get_if<nv::ChatPrompt>(&line->request->prompt)) check_chat(*chat);
}

/// What Python would write is read back as the same value.
void check_round_trip(std::string_view text) {
  try {
    const std::string once = nv::parse_json(text).dump();
    require(nv::parse_json(once).dump() == once);
  } catch (const nv::RequestError&) {
    // Not JSON.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  check_round_trip(rest);
  for (int num_lines = 0; !rest.empty() && num_lines < 8; ++num_lines) {
    const std::size_t end = rest.find('\n');
    check_line(rest.substr(0, end));
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
  }
  return 0;
}
