/// libFuzzer target: any text is read, or refused, as another parser does it; and a value that was
/// read is written and read again as itself. Build with clang++
/// -fsanitize=fuzzer,address,undefined.

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "nanovllm/io/json.hpp"

namespace nv = nanovllm;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

bool nests_too_deeply(std::string_view message) { return message.starts_with("nested more than"); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nv::Json value = nv::parse_json_value(text);
    require(nlohmann::json::accept(text));
    const std::string written = value.dump();
    require(nv::parse_json_value(written) == value);
    require(nv::parse_json_value(written).dump() == written);
  } catch (const nv::JsonError& error) {
    // nlohmann's lexer takes a NUL for the end.
    const bool comparable = text.find('\0') == text.npos && !nests_too_deeply(error.what());
    require(!comparable || !nlohmann::json::accept(text));
  }
  return 0;
}
