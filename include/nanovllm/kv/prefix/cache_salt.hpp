#pragma once
/// What keeps the cached prefixes of one user apart from those of others.

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// The salt of a request's blocks: two salts never share a block, in any part of the prefix cache.
/// It is the SHA-256 digest of a text, so that a client cannot make two texts with one salt. Blocks
/// without a salt are shared by all requests without one.
class CacheSalt {
 public:
  static constexpr std::size_t kNumBytes = 32;

  /// No salt.
  constexpr CacheSalt() = default;

  /// That of `text`; none if it is empty.
  [[nodiscard]] static CacheSalt of(std::string_view text);

  /// Whether there is one.
  [[nodiscard]] constexpr explicit operator bool() const { return *this != CacheSalt(); }

  // Written out: what nvcc makes of defaulted ones in the host's part of a program has no body.
  friend constexpr bool operator==(const CacheSalt& a, const CacheSalt& b) {
    std::uint64_t differs = 0;
    for (std::size_t i = 0; i < a.words_.size(); ++i) differs |= a.words_[i] ^ b.words_[i];
    return differs == 0;
  }
  /// Any total order.
  friend constexpr std::strong_ordering operator<=>(const CacheSalt& a, const CacheSalt& b) {
    for (std::size_t i = 0; i < a.words_.size(); ++i) {
      if (a.words_[i] != b.words_[i]) return a.words_[i] <=> b.words_[i];
    }
    return std::strong_ordering::equal;
  }

  /// `seed` without a salt; with one another number, which is secret if `seed` is.
  [[nodiscard]] constexpr std::uint64_t mixed_with(std::uint64_t seed) const {
    return seed ^ words_[0];
  }

  /// The digest; zeros for none.
  [[nodiscard]] std::span<const std::byte, kNumBytes> bytes() const {
    return std::as_bytes(std::span(words_));
  }
  /// The reverse. Nothing unless there are kNumBytes.
  [[nodiscard]] static std::optional<CacheSalt> from_bytes(std::span<const std::byte> bytes);

  /// 64 hexadecimal digits; empty for none.
  [[nodiscard]] std::string hex() const;
  /// The reverse. Nothing unless it is the text of one.
  [[nodiscard]] static std::optional<CacheSalt> from_hex(std::string_view text);

 private:
  std::array<std::uint64_t, kNumBytes / sizeof(std::uint64_t)> words_{};
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <charconv>
#include <cstring>
#include <system_error>

#include "nanovllm/core/sha256.hpp"

namespace nanovllm {

NANOVLLM_INLINE CacheSalt CacheSalt::of(std::string_view text) {
  if (text.empty()) return {};
  return *from_bytes(sha256(text));
}

NANOVLLM_INLINE std::optional<CacheSalt> CacheSalt::from_bytes(std::span<const std::byte> bytes) {
  if (bytes.size() != kNumBytes) return std::nullopt;
  CacheSalt salt;
  std::memcpy(salt.words_.data(), bytes.data(), kNumBytes);
  return salt;
}

NANOVLLM_INLINE std::string CacheSalt::hex() const {
  std::string out;
  if (!*this) return out;
  for (const std::byte byte : bytes()) {
    out += "0123456789abcdef"[std::to_integer<unsigned>(byte >> 4)];
    out += "0123456789abcdef"[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return out;
}

NANOVLLM_INLINE std::optional<CacheSalt> CacheSalt::from_hex(std::string_view text) {
  std::array<std::byte, kNumBytes> bytes{};
  if (text.empty()) return CacheSalt();
  if (text.size() != 2 * kNumBytes) return std::nullopt;
  for (std::size_t i = 0; i < kNumBytes; ++i) {
    const char* const digits = text.data() + 2 * i;
    unsigned value = 0;
    const auto [stop, error] = std::from_chars(digits, digits + 2, value, 16);
    if (error != std::errc() || stop != digits + 2) return std::nullopt;
    bytes[i] = static_cast<std::byte>(value);
  }
  const std::optional<CacheSalt> salt = from_bytes(bytes);
  return *salt && salt->hex() == text ? salt : std::nullopt;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
