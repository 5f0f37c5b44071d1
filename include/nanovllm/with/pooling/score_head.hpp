#pragma once
/// The head of a checkpoint for classification, such as a converted Qwen3-Reranker.
/// Source: transformers, modeling_layers.py, GenericForSequenceClassification.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// `score.weight`, a row for each label, and `score.bias`, if there is one. Makes the logits of the
/// labels from the hidden state of the last token.
class ScoreHead final : public Pooler {
 public:
  /// @param weight  [num_labels, hidden_size]. Throws ConfigError unless it is so many numbers.
  /// @param bias    [num_labels], or empty.
  /// @param labels  their names, or none.
  ScoreHead(std::vector<float> weight, std::size_t num_labels, std::size_t hidden_size,
            std::vector<float> bias = {}, std::vector<std::string> labels = {});

  /// That of a checkpoint, with the names of config.json's "id2label". Throws LoadError if there is
  /// no `score.weight`, or if it is not [num_labels, hidden_size] or, for one label, [hidden_size],
  /// of floats of 16 or 32 bits or of blocks.
  [[nodiscard]] static std::shared_ptr<const ScoreHead> load(const Checkpoint& checkpoint,
                                                             std::int64_t hidden_size);

  [[nodiscard]] std::size_t num_labels() const { return num_labels_; }

  /// The number of the label of that name, if there is one.
  [[nodiscard]] std::optional<std::size_t> find_label(std::string_view name) const;

  /// The logits, [num_labels].
  [[nodiscard]] std::vector<float> pool(std::span<const float> hidden) const override;

 private:
  std::vector<float> weight_;
  std::size_t num_labels_;
  std::size_t hidden_size_;
  std::vector<float> bias_;
  std::vector<std::string> labels_;
};

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
#include "nanovllm/io/json.hpp"
#include "nanovllm/model/weights.hpp"

namespace nanovllm {

namespace detail {

/// The elements of `tensor`. Throws LoadError unless there are `count`, of floats or of blocks.
NANOVLLM_INLINE std::vector<float> floats_of(const Checkpoint& checkpoint,
                                             const CheckpointTensor& tensor, std::size_t count) {
  check<LoadError>(tensor.blocks != nullptr || is_float(tensor.dtype), "'", checkpoint.name(),
                   "': '", tensor.name, "' must be F32, F16 or BF16, or of blocks, got ",
                   tensor.type_name());
  std::vector<float> out(count);
  if (tensor.blocks != nullptr) {
    tensor.blocks->dequantise(tensor.data.data(), count / tensor.blocks->elements, out.data());
  } else {
    convert(tensor.dtype, tensor.data.data(), out.data(), out.size());
  }
  return out;
}

/// "id2label" of config.json, if it names so many labels.
NANOVLLM_INLINE std::vector<std::string> read_labels(const Checkpoint& checkpoint,
                                                     std::size_t num_labels) {
  const auto text = checkpoint.text("config.json");
  if (!text) return {};
  const Json json = parse_json<LoadError>(*text, checkpoint.path_of("config.json"));
  const Json* const names = json.is_object() ? json.find("id2label") : nullptr;
  if (names == nullptr || !names->is_object() || names->size() != num_labels) return {};
  std::vector<std::string> out;
  for (std::size_t i = 0; i < num_labels; ++i) {
    const Json* const name = names->find(concat(i));
    if (name == nullptr || !name->is_string()) return {};
    out.push_back(name->string());
  }
  return out;
}

}  // namespace detail

NANOVLLM_INLINE ScoreHead::ScoreHead(std::vector<float> weight, std::size_t num_labels,
                                     std::size_t hidden_size, std::vector<float> bias,
                                     std::vector<std::string> labels)
    : weight_(std::move(weight)),
      num_labels_(num_labels),
      hidden_size_(hidden_size),
      bias_(std::move(bias)),
      labels_(std::move(labels)) {
  check<ConfigError>(num_labels >= 1 && weight_.size() / num_labels == hidden_size &&
                         weight_.size() % num_labels == 0,
                     "score head: ", num_labels, " labels of ", hidden_size, " need ",
                     num_labels * hidden_size, " weights, got ", weight_.size());
  check<ConfigError>(bias_.empty() || bias_.size() == num_labels, "score head: ", num_labels,
                     " labels need a bias each, got ", bias_.size());
}

NANOVLLM_INLINE std::optional<std::size_t> ScoreHead::find_label(std::string_view name) const {
  const auto found = std::ranges::find(labels_, name);
  if (found == labels_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - labels_.begin());
}

NANOVLLM_INLINE std::shared_ptr<const ScoreHead> ScoreHead::load(const Checkpoint& checkpoint,
                                                                 std::int64_t hidden_size) {
  constexpr const char *kName = "score.weight", *kBias = "score.bias";
  const CheckpointTensor* tensor = checkpoint.find(kName);
  check<LoadError>(tensor != nullptr, "'", checkpoint.name(), "' is of a classifier, but '", kName,
                   "' is missing");
  const auto width = static_cast<std::uint64_t>(hidden_size);
  const bool is_row = tensor->shape.size() == 1;
  const std::uint64_t rows = is_row ? 1 : tensor->shape.empty() ? 0 : tensor->shape[0];
  check<LoadError>(
      (is_row || tensor->shape.size() == 2) && rows >= 1 && tensor->shape.back() == width, "'",
      checkpoint.name(), "': '", kName, "' must have shape [labels, ", width, "], got ",
      detail::shape_string(tensor->shape));
  std::vector<float> bias;
  if (const CheckpointTensor* const found = checkpoint.find(kBias); found != nullptr) {
    check<LoadError>(found->shape == std::vector<std::uint64_t>{rows}, "'", checkpoint.name(),
                     "': '", kBias, "' must have shape [", rows, "], got ",
                     detail::shape_string(found->shape));
    bias = detail::floats_of(checkpoint, *found, rows);
  }
  return std::make_shared<const ScoreHead>(detail::floats_of(checkpoint, *tensor, rows * width),
                                           rows, width, std::move(bias),
                                           detail::read_labels(checkpoint, rows));
}

NANOVLLM_INLINE std::vector<float> ScoreHead::pool(std::span<const float> hidden) const {
  check<ShapeError>(hidden.size() == hidden_size_, "score head: the hidden state must have ",
                    hidden_size_, " elements, got ", hidden.size());
  std::vector<float> out;
  for (std::size_t label = 0; label < num_labels_; ++label) {
    double sum = bias_.empty() ? 0.0 : double{bias_[label]};
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
