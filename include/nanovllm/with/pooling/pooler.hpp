#pragma once
/// What a request wants of its prompt where no text is wanted: an embedding, or scores.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// Makes the outcome of a request, `Completion::pooled`, from what the network gives for the last
/// token of the prompt. A type of your own may have the weights of a head. One object may serve
/// several requests and engines.
class Pooler {
 public:
  Pooler() = default;
  Pooler(const Pooler&) = delete;
  Pooler& operator=(const Pooler&) = delete;
  virtual ~Pooler() = default;

  /// Called in the step that has computed the prompt. What it throws is the request's error.
  /// @param hidden  [hidden_size]: the hidden state after the network's last norm.
  [[nodiscard]] virtual std::vector<float> pool(std::span<const float> hidden) const = 0;
};

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

}  // namespace nanovllm
