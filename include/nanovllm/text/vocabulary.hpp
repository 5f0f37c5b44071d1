#pragma once
/// The tokens of a tokenizer: names to ids, ids to names and bytes.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm {

/// The byte-level alphabet: GPT-2's bijection between the 256 bytes and 256 printable characters,
/// in which a tokenizer.json spells its tokens ("Ġworld" is " world").
namespace byte_level {

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

}  // namespace byte_level

/// A list of strings in one block of memory.
class StringList {
 public:
  void push_back(std::string_view text) {
    bytes_ += text;
    ends_.push_back(bytes_.size());
  }

  [[nodiscard]] std::size_t size() const { return ends_.size(); }

  /// Valid until the next push_back.
  [[nodiscard]] std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

/// One past the largest token id that is accepted. Real vocabularies end below 300,000; the bound
/// keeps a malformed file from asking for all memory.
inline constexpr TokenId kMaxTokenIds = TokenId{1} << 22;

/// A token's name, as tokenizer.json spells it, and its id.
struct NamedToken {
  std::string_view name;
  TokenId id;
};

/// Immutable and thread-safe.
class Vocabulary {
 public:
  Vocabulary() = default;

  /// Throws LoadError when two names share an id, a name has two ids, or an id is out of range.
  /// An entry may be repeated. A token without a name has no bytes and is as good as absent.
  explicit Vocabulary(const std::vector<NamedToken>& tokens)
      : index_(std::bit_ceil(2 * tokens.size() + 2), -1) {
    TokenId end = 0;
    for (const NamedToken& token : tokens) {
      check<LoadError>(token.id >= 0 && token.id < kMaxTokenIds, "token '", token.name,
                       "' has the id ", token.id, "; ids must be in [0, ", kMaxTokenIds, ")");
      end = std::max(end, token.id + 1);
    }
    std::vector<std::string_view> by_id(static_cast<std::size_t>(end));
    for (const NamedToken& token : tokens) {
      std::string_view& name = by_id[token.id];
      check<LoadError>(name.empty() || name == token.name, "tokens '", name, "' and '", token.name,
                       "' have the same id ", token.id);
      name = token.name;
    }
    std::string bytes;
    for (std::string_view name : by_id) {
      bytes.clear();
      byte_level::append_bytes(bytes, name);
      names_.push_back(name);
      bytes_.push_back(bytes);
    }
    for (TokenId id = 0; id < end; ++id) {
      if (by_id[id].empty()) continue;
      TokenId& slot = index_[locate(by_id[id])];
      check<LoadError>(slot < 0, "token '", by_id[id], "' has two ids, ", slot, " and ", id);
      slot = id;
    }
  }

  /// One past the largest id.
  [[nodiscard]] std::size_t size() const { return names_.size(); }

  /// The id of the token spelt `name`, constant time.
  [[nodiscard]] std::optional<TokenId> find(std::string_view name) const {
    const TokenId id = index_.empty() ? -1 : index_[locate(name)];
    return id < 0 ? std::nullopt : std::optional(id);
  }

  /// The spelling; empty for an id without token.
  [[nodiscard]] std::string_view name(TokenId id) const { return contains(id) ? names_[id] : ""; }

  /// The bytes that the token stands for; empty for an id without token.
  [[nodiscard]] std::string_view bytes(TokenId id) const { return contains(id) ? bytes_[id] : ""; }

 private:
  [[nodiscard]] bool contains(TokenId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < names_.size();
  }

  /// Place in index_ of the token spelt `name`, or the free place where it belongs.
  [[nodiscard]] std::size_t locate(std::string_view name) const {
    std::size_t i = std::hash<std::string_view>{}(name) & (index_.size() - 1);
    while (index_[i] >= 0 && names_[index_[i]] != name) i = (i + 1) & (index_.size() - 1);
    return i;
  }

  StringList names_;  // by id
  StringList bytes_;  // by id
  std::vector<TokenId> index_;
};

namespace detail {

/// The token of each byte. Throws LoadError naming a byte that has none.
inline std::array<TokenId, 256> byte_tokens(const Vocabulary& vocabulary) {
  std::array<TokenId, 256> tokens;
  for (int b = 0; b < 256; ++b) {
    std::string name;
    utf8::append(name, byte_level::kAlphabet[b]);
    const std::optional<TokenId> id = vocabulary.find(name);
    check<LoadError>(id.has_value(), "model.vocab has no token for the byte ", b, ", spelt '", name,
                     "'; a byte-level vocabulary needs all 256");
    tokens[b] = *id;
  }
  return tokens;
}

}  // namespace detail
}  // namespace nanovllm
