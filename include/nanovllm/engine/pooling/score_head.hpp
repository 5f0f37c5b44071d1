#pragma once
/// The head of a checkpoint for classification, such as a converted Qwen3-Reranker.
/// Source: transformers, modeling_layers.py, GenericForSequenceClassification.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/model_head.hpp"
#include "nanovllm/sampling/pooler.hpp"

namespace nanovllm {

/// `score.weight`, a row for each label. Makes the logits of the labels from the hidden state of
/// the last token.
class ScoreHead final : public Pooler {
 public:
  /// @param weight  [num_labels, hidden_size]. Throws ConfigError unless it is so many numbers.
  ScoreHead(std::vector<float> weight, std::size_t num_labels, std::size_t hidden_size);

  /// That of a checkpoint. Throws LoadError if there is no `score.weight`, or if it is not of
  /// floats of 16 or 32 bits and [num_labels, hidden_size].
  [[nodiscard]] static std::shared_ptr<const ScoreHead> load(const Checkpoint& checkpoint,
                                                             std::int64_t hidden_size);

  [[nodiscard]] std::size_t num_labels() const { return num_labels_; }

  /// The logits, [num_labels].
  [[nodiscard]] std::vector<float> pool(std::span<const float> hidden) const override;

 private:
  std::vector<float> weight_;
  std::size_t num_labels_;
  std::size_t hidden_size_;
};

/// The head of `checkpoint`, which is null for weights of noise; null if the model has another, or
/// none.
template <class Config>
[[nodiscard]] std::shared_ptr<const ScoreHead> score_head_of(const Config& config,
                                                             const Checkpoint* checkpoint) {
  if constexpr (requires { config.head, config.hidden_size; }) {
    if (checkpoint != nullptr && head_of(config) == ModelHead::labels)
      return ScoreHead::load(*checkpoint, config.hidden_size);
  }
  return nullptr;
}

/// Probabilities of labels from their logits: of a single one the logistic function, of several the
/// softmax.
[[nodiscard]] std::vector<float> label_probabilities(std::span<const float> logits);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cmath>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/model/weights.hpp"

namespace nanovllm {

NANOVLLM_INLINE ScoreHead::ScoreHead(std::vector<float> weight, std::size_t num_labels,
                                     std::size_t hidden_size)
    : weight_(std::move(weight)), num_labels_(num_labels), hidden_size_(hidden_size) {
  check<ConfigError>(num_labels >= 1 && weight_.size() / num_labels == hidden_size &&
                         weight_.size() % num_labels == 0,
                     "score head: ", num_labels, " labels of ", hidden_size, " need ",
                     num_labels * hidden_size, " weights, got ", weight_.size());
}

NANOVLLM_INLINE std::shared_ptr<const ScoreHead> ScoreHead::load(const Checkpoint& checkpoint,
                                                                 std::int64_t hidden_size) {
  constexpr const char* kName = "score.weight";
  const CheckpointTensor* tensor = checkpoint.find(kName);
  check<LoadError>(tensor != nullptr, "'", checkpoint.name(), "' is of a classifier, but '", kName,
                   "' is missing");
  const auto width = static_cast<std::uint64_t>(hidden_size);
  check<LoadError>(tensor->shape.size() == 2 && tensor->shape[0] >= 1 && tensor->shape[1] == width,
                   "'", checkpoint.name(), "': '", kName, "' must have shape [labels, ", width,
                   "], got ", detail::shape_string(tensor->shape));
  check<LoadError>(detail::is_float(tensor->dtype), "'", checkpoint.name(), "': '", kName,
                   "' must be F32, F16 or BF16, got ", tensor->type_name());
  std::vector<float> weight(tensor->shape[0] * tensor->shape[1]);
  detail::convert(tensor->dtype, tensor->data.data(), weight.data(), weight.size());
  return std::make_shared<const ScoreHead>(std::move(weight), tensor->shape[0], width);
}

NANOVLLM_INLINE std::vector<float> ScoreHead::pool(std::span<const float> hidden) const {
  check<ShapeError>(hidden.size() == hidden_size_, "score head: the hidden state must have ",
                    hidden_size_, " elements, got ", hidden.size());
  std::vector<float> out;
  for (std::size_t label = 0; label < num_labels_; ++label) {
    double sum = 0;
    for (std::size_t i = 0; i < hidden_size_; ++i)
      sum += double{hidden[i]} * weight_[label * hidden_size_ + i];
    out.push_back(static_cast<float>(sum));
  }
  return out;
}

NANOVLLM_INLINE std::vector<float> label_probabilities(std::span<const float> logits) {
  std::vector<float> out;
  if (logits.size() == 1) out.push_back(static_cast<float>(1 / (1 + std::exp(-double{logits[0]}))));
  if (logits.size() < 2) return out;
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  for (const float logit : logits)
    out.push_back(static_cast<float>(std::exp(double{logit} - most) / sum));
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
