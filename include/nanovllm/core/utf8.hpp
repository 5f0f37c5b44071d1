#pragma once
/// UTF-8, one code point at a time, and the lossy reading of bytes that are not UTF-8.
///
/// "Invalid" follows the Unicode Standard (table 3-7): no overlong forms, no surrogates, nothing
/// above U+10FFFF. A *maximal invalid subpart* is the longest prefix of a valid sequence, or else
/// one byte; each becomes one U+FFFD, as in WHATWG's decoder and Rust's `from_utf8_lossy`.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace nanovllm::utf8 {

inline constexpr char32_t kReplacement = 0xFFFD;
inline constexpr std::string_view kReplacementBytes = "\xEF\xBF\xBD";

enum class Status : std::uint8_t {
  kValid,
  kInvalid,    ///< cannot become valid, whatever follows
  kTruncated,  ///< valid so far, but the text ends inside the sequence
};

/// One code point, or one maximal invalid subpart with U+FFFD for a code point.
struct Char {
  char32_t code_point;
  std::uint8_t size;  ///< bytes read, ≥ 1
  Status status;
};

/// Reads at `pos`, which must be < text.size().
[[nodiscard]] inline Char decode(std::string_view text, std::size_t pos) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(pos);
  if (lead < 0x80) return {lead, 1, Status::kValid};
  const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return {kReplacement, 1, Status::kInvalid};
  // The second byte's range keeps out overlong forms, surrogates and values above U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t code_point = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    if (pos + i == text.size())
      return {kReplacement, static_cast<std::uint8_t>(i), Status::kTruncated};
    const unsigned char next = byte(pos + i);
    if (next < (i == 1 ? low : 0x80) || next > (i == 1 ? high : 0xBF))
      return {kReplacement, static_cast<std::uint8_t>(i), Status::kInvalid};
    code_point = code_point << 6 | (next & 0x3Fu);
  }
  return {code_point, static_cast<std::uint8_t>(length), Status::kValid};
}

/// Start of the code point that ends just before `pos`; `text` must be valid UTF-8 and pos > 0.
[[nodiscard]] inline std::size_t previous(std::string_view text, std::size_t pos) {
  do {
    --pos;
  } while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80);
  return pos;
}

/// Appends a code point; `code_point` must be a Unicode scalar value.
inline void append(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t value) { out += static_cast<char>(value); };
  if (code_point < 0x80) return put(code_point);
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | code_point >> 12);
    } else {
      put(0xF0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3F));
    }
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

/// First position ≥ pos that is not the start of an eight-byte run of ASCII; a fast way past text
/// that needs no look.
[[nodiscard]] inline std::size_t skip_ascii(std::string_view text, std::size_t pos) {
  for (; pos + 8 <= text.size(); pos += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + pos, 8);
    if (word & 0x8080808080808080u) break;
  }
  return pos;
}

/// Whether all of it is ASCII, which is valid UTF-8.
[[nodiscard]] inline bool is_ascii(std::string_view text) {
  unsigned bits = 0;
  for (std::size_t pos = skip_ascii(text, 0); pos < text.size(); ++pos)
    bits |= static_cast<unsigned char>(text[pos]);
  return bits < 0x80;
}

/// Length of the longest prefix that is valid UTF-8; text.size() when all of it is.
[[nodiscard]] inline std::size_t valid_prefix(std::string_view text) {
  std::size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      const std::size_t next = skip_ascii(text, pos);
      pos = next == pos ? pos + 1 : next;
      continue;
    }
    const Char c = decode(text, pos);
    if (c.status != Status::kValid) break;
    pos += c.size;
  }
  return pos;
}

/// Appends `bytes` to `out`, every maximal invalid subpart as U+FFFD.
inline void append_lossy(std::string& out, std::string_view bytes) {
  while (true) {
    const std::size_t valid = valid_prefix(bytes);
    out += bytes.substr(0, valid);
    if (valid == bytes.size()) return;
    out += kReplacementBytes;
    bytes.remove_prefix(valid + decode(bytes, valid).size);
  }
}

/// Length of the longest prefix that does not end inside a sequence that may yet become valid. The
/// rest, at most three bytes, must wait for more.
[[nodiscard]] inline std::size_t complete_prefix(std::string_view bytes) {
  const std::size_t size = bytes.size();
  for (std::size_t back = 1; back <= 3 && back <= size; ++back) {
    const auto byte = static_cast<unsigned char>(bytes[size - back]);
    if ((byte & 0xC0) == 0x80) continue;  // a continuation byte: its lead is further back
    return decode(bytes, size - back).status == Status::kTruncated ? size - back : size;
  }
  return size;
}

}  // namespace nanovllm::utf8
