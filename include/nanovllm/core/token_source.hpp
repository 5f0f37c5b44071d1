#pragma once
/// Where a step's input token comes from: it is known, or the step before draws it.

#include <cstdint>
#include <type_traits>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// One input token of a step: a token id, or "what sample i of the step launched just before
/// draws". A value of four bytes for host and device; how it is encoded is its own business.
class TokenSource {
 public:
  /// The known token 0.
  TokenSource() = default;

  /// @param token  ≥ 0.
  [[nodiscard]] NANOVLLM_HD static constexpr TokenSource known(TokenId token) {
    return TokenSource(token);
  }
  /// @param sample  ≥ 0, an index into the samples of the step launched just before.
  [[nodiscard]] NANOVLLM_HD static constexpr TokenSource sampled(std::int32_t sample) {
    return TokenSource(~sample);
  }

  [[nodiscard]] NANOVLLM_HD constexpr bool is_known() const { return code_ >= 0; }
  /// The token; only if it is known.
  [[nodiscard]] NANOVLLM_HD constexpr TokenId token() const { return code_; }
  /// The sample that draws it; only if it is not known.
  [[nodiscard]] NANOVLLM_HD constexpr std::int32_t sample() const { return ~code_; }

  [[nodiscard]] NANOVLLM_HD friend constexpr bool operator==(TokenSource a, TokenSource b) {
    return a.code_ == b.code_;
  }

 private:
  NANOVLLM_HD explicit constexpr TokenSource(std::int32_t code) : code_(code) {}

  std::int32_t code_ = 0;  // a token, or the complement of a sample
};

static_assert(sizeof(TokenSource) == 4 && std::is_trivially_copyable_v<TokenSource>);

}  // namespace nanovllm
