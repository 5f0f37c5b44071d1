#pragma once
/// Sets of Unicode code points, as character classes of regular expressions name them, and the sets
/// that escapes stand for.

#include <algorithm>
#include <vector>

namespace nanovllm {

/// Code points as sorted ranges that neither overlap nor touch. Only scalar values are in a set:
/// the surrogates U+D800…DFFF, which UTF-8 cannot spell, are left out of what is added.
class CodePointSet {
 public:
  /// first…last, both included.
  struct Range {
    char32_t first, last;

    friend bool operator==(const Range&, const Range&) = default;
  };

  static constexpr char32_t kMax = 0x10FFFF;

  CodePointSet() = default;
  explicit CodePointSet(char32_t code_point) { add(code_point, code_point); }

  /// Every code point.
  [[nodiscard]] static CodePointSet all() {
    CodePointSet set;
    set.add(0, kMax);
    return set;
  }

  /// Adds first…last; first <= last <= kMax. O(ranges).
  void add(char32_t first, char32_t last) {
    constexpr char32_t kSurrogates = 0xD800, kBehindSurrogates = 0xE000;
    if (first < kSurrogates) insert(first, std::min<char32_t>(last, kSurrogates - 1));
    if (last >= kBehindSurrogates) insert(std::max(first, kBehindSurrogates), last);
  }

  void add(const CodePointSet& other) {
    for (const Range& range : other.ranges_) insert(range.first, range.last);
  }

  /// All code points that are not in this set.
  [[nodiscard]] CodePointSet complement() const {
    CodePointSet rest;
    char32_t next = 0;
    for (const Range& range : ranges_) {
      if (next < range.first) rest.add(next, range.first - 1);
      next = range.last + 1;
    }
    if (next <= kMax) rest.add(next, kMax);
    return rest;
  }

  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }

 private:
  void insert(char32_t first, char32_t last) {
    const auto begin = std::find_if(ranges_.begin(), ranges_.end(),
                                    [&](const Range& range) { return range.last + 1 >= first; });
    auto end = begin;
    for (; end != ranges_.end() && end->first <= last + 1; ++end) {
      first = std::min(first, end->first);
      last = std::max(last, end->last);
    }
    ranges_.insert(ranges_.erase(begin, end), {first, last});
  }

  std::vector<Range> ranges_;
};

namespace regex_class {

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

}  // namespace regex_class

}  // namespace nanovllm
