#pragma once
/// What a model has after its last norm: a head for tokens, one for labels, or none.

#include <cstdint>

namespace nanovllm {

enum class ModelHead : std::uint8_t {
  tokens,  ///< lm_head, or the embedding in its place: logits of tokens
  labels,  ///< `score.weight`: logits of labels, as classifiers and rerankers have it
  none,    ///< an embedding model: hidden states alone
};

/// `config.head`, or that there is one for tokens.
template <class Config>
[[nodiscard]] constexpr ModelHead head_of(const Config& config) {
  if constexpr (requires { ModelHead{config.head}; }) return config.head;
  return ModelHead::tokens;
}

}  // namespace nanovllm
