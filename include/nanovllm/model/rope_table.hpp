#pragma once
/// The table of cosines and sines that `rope` reads.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/rope_config.hpp"
#include "nanovllm/model/rope_scaling.hpp"

namespace nanovllm {

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
