#pragma once
/// Normalisation to NFC (composed form) as the reference does it: Unicode 9.0, see
/// text/unicode.hpp.
///
/// Nearly all text is in NFC already, and this is found out at the speed of a scan. Only the
/// clusters around a combining or decomposable character go through utf8proc's tables.

#include <utf8proc.h>
#include <cstddef>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/sort.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/text/check_stop.hpp"
#include "nanovllm/text/unicode.hpp"

namespace nanovllm {

/// Which code points may change, move or merge with what stands before them under NFC ("active").
/// All others are starters that normalise to themselves: text can be cut before them, and text of
/// nothing else is in NFC.
class NfcClasses {
 public:
  /// The table for this process, built on first use (a few milliseconds). Thread-safe.
  [[nodiscard]] static const NfcClasses& get() {
    static const NfcClasses classes;
    return classes;
  }

  [[nodiscard]] bool is_active(char32_t c) const {
    return c < kEnd && (active_[c / 64] >> (c % 64) & 1) != 0;
  }

 private:
  /// No character from here on combines or decomposes.
  static constexpr char32_t kEnd = 0x30000;

  NfcClasses() {
    std::array<utf8proc_int32_t, 32> parts;
    constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (char32_t c = 0; c < kEnd; ++c) {
      const auto code_point = static_cast<utf8proc_int32_t>(c);
      if (utf8proc_get_property(code_point)->combining_class != 0) mark(c);
      int boundary = 0;
      const auto n = utf8proc_decompose_char(code_point, parts.data(), parts.size(),
                                             UTF8PROC_DECOMPOSE, &boundary);
      if (n < 1 || (n == 1 && parts[0] == code_point)) continue;
      const std::array<utf8proc_int32_t, 32> decomposed = parts;
      if (utf8proc_normalize_utf32(parts.data(), n, options) != 1 || parts[0] != code_point) {
        mark(c);  // does not come back from its decomposition
      } else {
        for (int i = 1; i < n; ++i)
          mark(static_cast<char32_t>(decomposed[i]));  // composes leftward
      }
    }
  }

  void mark(char32_t c) {
    if (c < kEnd && !unicode::contains(unicode::kInertIn9, c)) active_[c / 64] |= 1ull << (c % 64);
  }

  std::vector<std::uint64_t> active_ = std::vector<std::uint64_t>(kEnd / 64);
};

namespace detail {

/// First position ≥ pos of a character from U+0300 on. Below it nothing is active, and it is the
/// first whose lead byte is 0xCC or more; no continuation byte is that large.
[[nodiscard]] inline std::size_t skip_below_u0300(std::string_view text, std::size_t pos) {
  for (; pos + 8 <= text.size(); pos += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + pos, 8);
    const std::uint64_t low_bits = word & 0x7F7F7F7F7F7F7F7Fu;  // + 0x34 carries from 0x4C on
    if ((low_bits + 0x3434343434343434u) & word & 0x8080808080808080u) break;
  }
  while (pos < text.size() && static_cast<unsigned char>(text[pos]) < 0xCC) ++pos;
  return pos;
}

/// The canonical combining class, below 256. 0: no mark.
[[nodiscard]] inline std::size_t mark_class(utf8proc_int32_t code_point) {
  return static_cast<std::size_t>(utf8proc_get_property(code_point)->combining_class) & 255;
}

/// Orders marks by class, those of a class as they stand. In linear time, where utf8proc's own
/// ordering takes quadratic time on a long run.
inline void order_marks(std::span<utf8proc_int32_t> marks) {
  if (marks.size() < 64) {
    return sort_stably(marks, [](auto a, auto b) { return mark_class(a) < mark_class(b); });
  }
  std::array<std::size_t, 257> begins{};  // of each class in the order
  for (const auto c : marks) ++begins[mark_class(c) + 1];
  for (std::size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
  const std::vector<utf8proc_int32_t> given(marks.begin(), marks.end());
  for (const auto c : given) marks[begins[mark_class(c)]++] = c;
}

/// Appends the NFC of a cluster: decompose, order marks by class, compose.
inline void append_nfc_cluster(std::string& out, std::string_view cluster,
                               const std::stop_token& stop) {
  std::vector<utf8proc_int32_t> points;
  for (std::size_t pos = 0; pos < cluster.size();) {
    check_stop(stop);
    const utf8::Char c = utf8::decode(cluster, pos);
    std::array<utf8proc_int32_t, 32> parts;
    int boundary = 0;
    const auto n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code_point), parts.data(),
                                parts.size(), UTF8PROC_DECOMPOSE, &boundary);
    points.insert(points.end(), parts.begin(), parts.begin() + n);
    pos += c.size;
  }
  for (auto run = points.begin(); run != points.end();) {
    run = std::find_if(run, points.end(), mark_class);
    const auto end = std::find_if_not(run, points.end(), mark_class);
    order_marks(std::span(run, end));
    run = end;
  }
  const auto n =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    check_stop(stop);
    utf8::append(out, static_cast<char32_t>(points[i]));
  }
}

}  // namespace detail

/// The NFC of `text`, which must be valid UTF-8. Returns `text` itself when it is in NFC or holds
/// no active character, else a view of `storage`, whose content is replaced. Takes time linear in
/// the text. Throws Cancelled if a stop is requested meanwhile.
[[nodiscard]] inline std::string_view nfc(std::string_view text, std::string& storage,
                                          const std::stop_token& stop = {}) {
  const NfcClasses& classes = NfcClasses::get();
  std::size_t copied = 0;  // text[0, copied) is in storage, normalised
  for (std::size_t pos = 0;;) {
    pos = detail::skip_below_u0300(text, pos);
    if (pos == text.size()) break;
    utf8::Char c = utf8::decode(text, pos);
    if (!classes.is_active(c.code_point)) {
      pos += c.size;
      continue;
    }
    check_stop(stop);
    // A cluster: the starter before, unless Unicode 9.0 does not know it, and all that is active.
    std::size_t begin = pos;
    if (pos > copied) {
      begin = utf8::previous(text, pos);
      if (unicode::contains(unicode::kInertIn9, utf8::decode(text, begin).code_point)) begin = pos;
    }
    while (classes.is_active(c.code_point)) {
      pos += c.size;
      if (pos == text.size()) break;
      c = utf8::decode(text, pos);
    }
    if (copied == 0) storage.clear();
    storage += text.substr(copied, begin - copied);
    detail::append_nfc_cluster(storage, text.substr(begin, pos - begin), stop);
    copied = pos;
  }
  if (copied == 0) return text;
  storage += text.substr(copied);
  return storage;
}

}  // namespace nanovllm
