#pragma once
/// What a step draws, and the memory for it.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// What a step's sampled rows got, in host memory: those of a sequence behind each other, in the
/// plan's order. Valid until the next launch but one.
struct StepResults {
  VectorView<const TokenId> tokens;      ///< [samples]
  VectorView<const float> logprobs;      ///< [samples]; meaningful where logprobs were asked for
  MatrixView<const TokenId> top_tokens;  ///< [samples, ≥ max num_logprobs]
  MatrixView<const float> top_logprobs;  ///< like top_tokens
};

/// Makes `buffer` hold at least `size` elements; they are undefined then. Growth is rare and by
/// half at least.
template <class AnyBuffer>
void grow(AnyBuffer& buffer, std::int64_t size) {
  const auto old_size = static_cast<std::int64_t>(buffer.size());
  if (old_size >= size) return;
  buffer = AnyBuffer(0);
  buffer = AnyBuffer(static_cast<std::size_t>(std::max(size, old_size + old_size / 2)));
}

/// Memory for what a step draws: where the sampler writes it, or where the host reads it.
template <template <class T> class Buffer>
struct StepResultsMemory {
  Buffer<TokenId> tokens{0};
  Buffer<float> logprobs{0};
  Buffer<TokenId> top_tokens{0};
  Buffer<float> top_logprobs{0};
  std::int64_t num_samples = 0;
  std::int64_t num_top = 0;

  /// Makes room for `samples` rows with the `top` most likely tokens of each.
  void resize(std::int64_t samples, std::int64_t top) {
    num_samples = samples;
    num_top = top;
    grow(tokens, samples);
    grow(logprobs, samples);
    grow(top_tokens, samples * top);
    grow(top_logprobs, samples * top);
  }

  [[nodiscard]] StepResults view() const {
    return {.tokens = {tokens.data(), {num_samples}},
            .logprobs = {logprobs.data(), {num_samples}},
            .top_tokens = {top_tokens.data(), {num_samples, num_top}},
            .top_logprobs = {top_logprobs.data(), {num_samples, num_top}}};
  }
};

}  // namespace nanovllm
