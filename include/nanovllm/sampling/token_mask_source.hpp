#pragma once
/// Constraints on what a sequence may become, as masks of the tokens that may come next: a list of
/// choices, a regular expression, a grammar.

#include <cstdint>
#include <memory>
#include <span>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// One sequence's way through a constraint. Forked with the sequence, and used by one thread at a
/// time.
class TokenMatcher {
 public:
  virtual ~TokenMatcher() = default;
  /// A matcher in the same state that goes on by itself.
  [[nodiscard]] virtual std::unique_ptr<TokenMatcher> clone() const = 0;
  /// Takes a token that was drawn. Returns false, and stays as it is, for one that does not fit.
  [[nodiscard]] virtual bool accept(TokenId token) = 0;
  /// Sets the bits of the tokens that may come next; stop tokens where the text may end here.
  /// @param bits  [ceil(vocab_size / 32)], all zero: token i is bit i % 32 of word i / 32.
  virtual void fill(std::span<std::uint32_t> bits) const = 0;
  /// Whether nothing but a stop token may follow.
  [[nodiscard]] virtual bool is_finished() const = 0;
};

/// A constraint, compiled once, for any number of requests and threads.
class TokenMaskSource {
 public:
  virtual ~TokenMaskSource() = default;
  /// One at the beginning.
  [[nodiscard]] virtual std::unique_ptr<TokenMatcher> matcher() const = 0;
  /// Of the vocabulary that it was made for. A model may have more tokens, which are never allowed.
  [[nodiscard]] virtual int vocab_size() const = 0;
};

}  // namespace nanovllm
