#pragma once
/// What a request may say: which tokens may come next, step by step.
///
/// A TokenMaskSource is a constraint (a list of choices, a regular expression, a JSON Schema, one
/// of the user's own), compiled once. Every sequence under it has a TokenMatcher, which is asked
/// for the tokens that may come next before each draw and told what was drawn.
/// docs/structured_output.md has the sources that there are, and one written by hand.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// Words of a mask: bit i % 32 of word i / 32 is token i.
[[nodiscard]] constexpr std::size_t num_mask_words(std::size_t vocab_size) {
  return (vocab_size + 31) / 32;
}

/// Sets the bit of `token`, which must be one of the mask's.
constexpr void allow_token(std::span<std::uint32_t> bits, TokenId token) {
  const auto i = static_cast<std::uint32_t>(token);
  bits[i / 32] |= std::uint32_t{1} << (i % 32);
}

/// Whether the bit of `token` is set. False for a token that the mask has no bit for.
[[nodiscard]] constexpr bool is_allowed(std::span<const std::uint32_t> bits, TokenId token) {
  const auto i = static_cast<std::uint32_t>(token);
  return i / 32 < bits.size() && (bits[i / 32] >> (i % 32) & 1) != 0;
}

/// One sequence's way through a constraint: what may come next. It is used by one thread at a time,
/// and may outlive its source. The sequence that it belongs to is forked with a clone of it.
class TokenMatcher {
 public:
  virtual ~TokenMatcher() = default;

  /// A matcher in the same state that continues separately: for a sample, a beam, a preempted
  /// sequence.
  [[nodiscard]] virtual std::unique_ptr<TokenMatcher> clone() const = 0;

  /// Takes one token that was drawn. False if the token does not fit: the state is unchanged then,
  /// and the caller ends the request with an error.
  [[nodiscard]] virtual bool accept(TokenId token) = 0;

  /// Sets the bits of the tokens that may come next, those that `accept` takes; stop tokens are
  /// among them where the text may end here. At least one is set.
  /// @param bits num_mask_words(vocab_size) words or more, all zero when called.
  virtual void fill(std::span<std::uint32_t> bits) const = 0;

  /// Whether nothing but a stop token may follow.
  [[nodiscard]] virtual bool is_finished() const = 0;
};

/// A constraint, compiled once and shared by any number of requests and threads.
class TokenMaskSource {
 public:
  virtual ~TokenMaskSource() = default;

  /// A matcher at the beginning of a text.
  [[nodiscard]] virtual std::unique_ptr<TokenMatcher> matcher() const = 0;

  /// The vocabulary that it was made for has the tokens [0, vocab_size). It may be smaller than the
  /// model's; tokens beyond it are not allowed.
  [[nodiscard]] virtual int vocab_size() const = 0;
};

}  // namespace nanovllm
