#pragma once
/// The byte-level alphabet: GPT-2's bijection between the 256 bytes and 256 printable characters,
/// in which a tokenizer.json spells its tokens ("Ġworld" is " world").

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nanovllm/core/utf8.hpp"

namespace nanovllm::byte_level {

/// The character of each byte: 33–126, 161–172 and 174–255 stand for themselves, the other 68 bytes
/// in ascending order for U+0100, U+0101, …
[[nodiscard]] constexpr std::array<char32_t, 256> alphabet() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    characters[b] = printable ? b : next++;
  }
  return characters;
}

inline constexpr std::array<char32_t, 256> kAlphabet = alphabet();

/// One past the largest character of the alphabet.
inline constexpr char32_t kAlphabetEnd = 0x144;

/// The byte of each character below kAlphabetEnd, -1 for those outside the alphabet.
inline constexpr auto kByteOf = [] {
  std::array<std::int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  for (std::int16_t b = 0; b < 256; ++b) bytes[kAlphabet[b]] = b;
  return bytes;
}();

/// Appends the bytes that `name`, valid UTF-8, stands for. A name with any character outside the
/// alphabet stands for its own UTF-8, as in the reference; most added tokens are of this kind.
inline void append_bytes(std::string& out, std::string_view name) {
  const std::size_t start = out.size();
  for (std::size_t pos = 0; pos < name.size();) {
    const utf8::Char c = utf8::decode(name, pos);
    if (c.code_point >= kAlphabetEnd || kByteOf[c.code_point] < 0) {
      out.resize(start);
      out += name;
      return;
    }
    out += static_cast<char>(kByteOf[c.code_point]);
    pos += c.size;
  }
}

/// Appends the spelling of `bytes`: what `append_bytes` undoes.
inline void append_name(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) utf8::append(out, kAlphabet[static_cast<unsigned char>(byte)]);
}

}  // namespace nanovllm::byte_level
