#pragma once
/// Where a token of a step comes from.

#include <cstdint>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// A token that is known, or the one that sample i of the step launched just before draws. A value
/// of 4 bytes, the same on host and device.
class TokenSource {
 public:
  /// Token 0.
  TokenSource() = default;

  [[nodiscard]] NANOVLLM_HD static constexpr TokenSource known(TokenId id) {
    return TokenSource(id);
  }
  [[nodiscard]] NANOVLLM_HD static constexpr TokenSource sampled(std::int32_t sample) {
    return TokenSource(~sample);
  }

  [[nodiscard]] NANOVLLM_HD constexpr bool is_known() const { return code_ >= 0; }
  /// The token; only where it is known.
  [[nodiscard]] NANOVLLM_HD constexpr TokenId token() const { return code_; }
  /// The sample of the step before; only where the token is not known.
  [[nodiscard]] NANOVLLM_HD constexpr std::int32_t sample() const { return ~code_; }

  friend constexpr bool operator==(TokenSource, TokenSource) = default;

 private:
  NANOVLLM_HD constexpr explicit TokenSource(std::int32_t code) : code_(code) {}

  std::int32_t code_ = 0;  // a token, or the complement of a sample
};

static_assert(sizeof(TokenSource) == 4);

}  // namespace nanovllm
