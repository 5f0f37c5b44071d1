#pragma once
/// Residual streams that someone outside of the model reads.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/ops/embedding.hpp"

namespace nanovllm {

/// Keeps the residual stream of a step's tokens as it enters some layers: the sum over all blocks
/// before, and over all ranks, ahead of the layer's norm. Until an observer asks for layers it has
/// no memory and copies nothing.
template <class Context>
class StreamTaps {
  using Activation = typename Context::Activation;
  template <class T>
  using Buffer = typename Context::template Buffer<T>;

 public:
  /// For steps of up to `max_rows` rows of `width` elements.
  StreamTaps(const Context& context, std::int64_t max_rows, std::int64_t width)
      : context_(context), max_rows_(max_rows), width_(width) {}

  /// Asks for the stream as it enters each of `layers`, which are counted from 0; `num_layers`
  /// stands for the stream that the final norm reads. A layer may come twice. Takes memory for
  /// max_rows · layers · width activations. Steps that are recorded as graphs before this do not
  /// keep their streams. Throws ConfigError for a layer outside of [0, num_layers].
  void open(std::vector<std::int64_t> layers, std::int64_t num_layers) {
    for (const std::int64_t layer : layers)
      check<ConfigError>(layer >= 0 && layer <= num_layers, "residual streams: layers must be in ",
                         "[0, ", num_layers, "], got ", layer);
    layers_ = std::move(layers);
    kept_ = Buffer<Activation>(static_cast<std::size_t>(max_rows_ * width()));
    std::vector<std::int32_t> every(static_cast<std::size_t>(max_rows_));
    std::iota(every.begin(), every.end(), 0);
    every_row_ = Buffer<std::int32_t>(every.size());
    context_.backend.upload(every.data(), every_row_.data(), every.size());
  }

  [[nodiscard]] bool wants(std::int64_t layer) const {
    return std::find(layers_.begin(), layers_.end(), layer) != layers_.end();
  }

  /// Elements of a token: those of all layers that were asked for.
  [[nodiscard]] std::int64_t width() const {
    return static_cast<std::int64_t>(layers_.size()) * width_;
  }

  /// What the last step kept, [n, width()]: the streams of a token lie beside each other, in the
  /// order in which they were asked for. Valid until the next step.
  [[nodiscard]] typename Context::ConstRows rows(std::int64_t n) const {
    return {kept_.data(), {n, width()}};
  }

  /// `residual`, [n, width of the stream], enters `layer`.
  void keep(std::int64_t layer, typename Context::ConstRows residual) {
    const std::int64_t n = residual.extent(0);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i] != layer) continue;
      Activation* const column = kept_.data() + static_cast<std::int64_t>(i) * width_;
      context_.backend.run(GatherRowsArgs<Activation>{.x = residual,
                                                      .rows = {every_row_.data(), {n}},
                                                      .out = {column, {n, width_}, {width(), 1}}});
    }
  }

 private:
  Context context_;
  std::int64_t max_rows_;
  std::int64_t width_;
  std::vector<std::int64_t> layers_;
  Buffer<Activation> kept_{0};         // [max_rows, width()]
  Buffer<std::int32_t> every_row_{0};  // 0, 1, … of a step
};

}  // namespace nanovllm
