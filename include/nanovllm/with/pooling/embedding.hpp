#pragma once
/// Embeddings, and requests for them.

#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/with/pooling/pooling_options.hpp"

namespace nanovllm {

/// The hidden state itself: an embedding of the prompt.
class LastTokenPooler : public Pooler {
 public:
  /// @param normalize   whether to scale the vector to length 1.
  /// @param dimensions  how many of its first elements to keep, before it is scaled; unset: all.
  ///                    Throws ConfigError if that is 0.
  explicit LastTokenPooler(bool normalize = true, std::optional<std::size_t> dimensions = {})
      : normalize_(normalize), dimensions_(dimensions) {
    check<ConfigError>(dimensions != 0, "pooler: dimensions must be >= 1, got 0");
  }

  /// Throws RequestError if the network has fewer dimensions than are to be kept.
  [[nodiscard]] std::vector<float> pool(std::span<const float> hidden) const override {
    const std::size_t size = dimensions_.value_or(hidden.size());
    check<RequestError>(size <= hidden.size(), "pooler: dimensions must be at most ", hidden.size(),
                        ", got ", size);
    std::vector<float> out(hidden.begin(), hidden.begin() + static_cast<std::ptrdiff_t>(size));
    if (!normalize_) return out;
    double sum = 0;
    for (const float x : out) sum += double{x} * x;
    const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
    for (float& x : out) x = static_cast<float>(x * scale);
    return out;
  }

 private:
  bool normalize_;
  std::optional<std::size_t> dimensions_;
};

/// The request that gives the embedding of a prompt as `Output::pooled`. Throws ConfigError if
/// `dimensions` is 0.
[[nodiscard]] inline SamplingParams embedding_params(const EmbedOptions& options) {
  SamplingParams params;
  params.repetition_penalty = 1;  // the checkpoint's own would cost time, and nothing is drawn
  params.priority = options.priority;
  params.pooler = std::make_shared<LastTokenPooler>(options.normalize, options.dimensions);
  return params;
}

}  // namespace nanovllm
