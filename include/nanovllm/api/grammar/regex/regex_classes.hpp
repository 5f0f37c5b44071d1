#pragma once
/// The sets of characters that escapes of regular expressions stand for.

#include "nanovllm/api/grammar/bytes/code_point_set.hpp"

namespace nanovllm::regex_class {

[[nodiscard]] inline CodePointSet digits() {
  CodePointSet set;
  set.add('0', '9');
  return set;
}

[[nodiscard]] inline CodePointSet word_characters() {
  CodePointSet set = digits();
  set.add('A', 'Z');
  set.add('a', 'z');
  set.add('_', '_');
  return set;
}

/// ASCII's, or all that Unicode or any dialect counts as such.
[[nodiscard]] inline CodePointSet white_space(bool is_unicode) {
  CodePointSet set(' ');
  set.add('\t', '\r');
  if (!is_unicode) return set;
  set.add(0x1C, 0x1F);
  for (const char32_t c : {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF})
    set.add(c, c);
  set.add(0x2000, 0x200A);
  return set;
}

/// What `.` does not match: a line feed, or all line terminators of ECMAScript.
[[nodiscard]] inline CodePointSet line_ends(bool ecmascript) {
  CodePointSet set('\n');
  if (!ecmascript) return set;
  set.add('\r', '\r');
  set.add(0x2028, 0x2029);
  return set;
}

}  // namespace nanovllm::regex_class
