#pragma once
/// Rotary frequencies of a model: plain, stretched by YaRN (Peng et al. 2023, arXiv:2309.00071), or
/// as Llama 3 has them.
///
/// The angle of dimension pair i at position p is p · inv_freq[i]; with YaRN, cos and sin are both
/// multiplied by the attention factor. The scaling is static: it holds at every position, also
/// below the original context length. Constants and rounding are those of the transformers library.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/rope_config.hpp"

namespace nanovllm {

namespace detail {

/// YaRN's growth of attention temperature with the stretch: 0.1 · m · ln(factor) + 1.
[[nodiscard]] inline double yarn_mscale(double factor, double m = 1) {
  return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
}

}  // namespace detail

/// The dimension pairs between which YaRN passes from untouched (below `low`) to fully stretched
/// (above `high`) frequencies.
struct YarnRange {
  double low = 0;
  double high = 0;
};

/// Where a pair turns beta_fast and beta_slow times in the original context. Requires YaRN.
[[nodiscard]] inline YarnRange yarn_range(const RopeConfig& rope, std::int64_t head_dim) {
  const auto dim = static_cast<double>(head_dim);
  const auto length = static_cast<double>(rope.original_max_position_embeddings);
  const auto pair_turning = [&](double turns) {
    return dim * std::log(length / (2 * std::numbers::pi * turns)) / (2 * std::log(rope.theta));
  };
  double low = pair_turning(rope.beta_fast);
  double high = pair_turning(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  return {std::max(low, 0.0), std::min(high, dim - 1)};
}

/// The head_dim / 2 frequencies in radians per position, fastest first.
[[nodiscard]] inline std::vector<double> rope_inv_freq(const RopeConfig& rope,
                                                       std::int64_t head_dim) {
  const auto dim = static_cast<double>(head_dim);
  std::vector<double> out(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / dim);
  }
  if (rope.type == RopeType::llama3) {
    const auto length = static_cast<double>(rope.original_max_position_embeddings);
    const double low = rope.low_freq_factor, high = rope.high_freq_factor;
    for (double& frequency : out) {  // by how often it turns in the original context
      const double turns = length * frequency / (2 * std::numbers::pi);
      const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      frequency = frequency / rope.factor * (1 - kept) + frequency * kept;
    }
  }
  if (rope.type != RopeType::yarn) return out;

  const YarnRange range = yarn_range(rope, head_dim);
  const double width = range.high == range.low ? 0.001 : range.high - range.low;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - range.low) / width, 0.0, 1.0);
    out[i] = out[i] / rope.factor * stretched + out[i] * (1 - stretched);
  }
  return out;
}

/// What cos and sin are multiplied by: 1 without YaRN.
[[nodiscard]] inline double rope_attention_factor(const RopeConfig& rope) {
  if (rope.type != RopeType::yarn) return 1;
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale && rope.mscale_all_dim) {
    return detail::yarn_mscale(rope.factor, *rope.mscale) /
           detail::yarn_mscale(rope.factor, *rope.mscale_all_dim);
  }
  return detail::yarn_mscale(rope.factor);
}

/// The longest sequence the positions were made for: `max_position_embeddings`, or with YaRN the
/// stretched original length where that is longer.
[[nodiscard]] inline std::int64_t rope_context_length(const RopeConfig& rope,
                                                      std::int64_t max_position_embeddings) {
  if (rope.type != RopeType::yarn) return max_position_embeddings;
  const double stretched = static_cast<double>(rope.original_max_position_embeddings) * rope.factor;
  return std::max(max_position_embeddings,
                  static_cast<std::int64_t>(std::min(stretched, 0x1p31 - 1)));
}

/// Fills `table`, [positions, head_dim], with head_dim / 2 cosines and as many sines a row. As in
/// transformers, frequencies and angles are rounded to float32; cosine and sine are then exact to
/// float32.
inline void fill_rope_table(const RopeConfig& rope, std::int64_t head_dim,
                            MatrixView<float> table) {
  const std::vector<double> inv_freq = rope_inv_freq(rope, head_dim);
  const double factor = rope_attention_factor(rope);
  const auto half_dim = static_cast<std::int64_t>(inv_freq.size());
  check_shape("fill_rope_table", "table", table, {-1, 2 * half_dim});
  for (std::int64_t position = 0; position < table.extent(0); ++position) {
    for (std::int64_t i = 0; i < half_dim; ++i) {
      const float angle =
          static_cast<float>(position) * static_cast<float>(inv_freq[static_cast<std::size_t>(i)]);
      *table.at(position, i) = static_cast<float>(std::cos(static_cast<double>(angle)) * factor);
      *table.at(position, half_dim + i) =
          static_cast<float>(std::sin(static_cast<double>(angle)) * factor);
    }
  }
}

}  // namespace nanovllm
