#pragma once
/// Sizes of one rank's share of a decoder.

#include <cstdint>

namespace nanovllm {

/// Heads of one rank.
struct AttentionHeads {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;

  /// Columns of q, k and v, side by side.
  [[nodiscard]] std::int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

struct DecoderSizes {
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t vocab_size = 0;
  std::int64_t intermediate_size = 0;  ///< this rank's
  AttentionHeads heads{};              ///< this rank's
};

}  // namespace nanovllm
