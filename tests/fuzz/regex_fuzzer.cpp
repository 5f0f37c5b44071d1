/// libFuzzer target: any pattern is refused or compiled, and what is compiled matches the text that
/// PCRE2 matches, where PCRE2 takes the pattern, too. The pattern ends at the first NUL; the text
/// is behind it. Build with clang++ -fsanitize=fuzzer,address,undefined.

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "api/grammar/regex/random_regex.hpp"
#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nv = nanovllm;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string pattern = input.substr(0, input.find('\0'));
  const std::string text = pattern.size() < size ? input.substr(pattern.size() + 1) : "";
  std::optional<nv::ByteDfa> dfa;
  try {
    dfa.emplace(nv::compile_regex(pattern, nv::CompileBudget(1 << 20)));  // a sanitizer is slow
  } catch (const nv::RequestError&) {
    return 0;
  }
  const auto state = dfa->next(nv::ByteDfa::kStart, text);
  const bool matches = state != nv::ByteDfa::kDead && dfa->accepts(state);
  const bool is_utf8 = nv::utf8::valid_prefix(text) == text.size();
  if (matches && !is_utf8) std::abort();
  if (pattern.find("\\v") != pattern.npos) return 0;  // one character here, a class in PCRE2
  const nanovllm_test::Pcre2Oracle oracle(pattern);
  if (!is_utf8 || !oracle.is_valid()) return 0;
  const std::optional<bool> expected = oracle.matches(text);
  if (expected && *expected != matches) std::abort();
  return 0;
}
