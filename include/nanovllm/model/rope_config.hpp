#pragma once
/// Settings of a rotary position embedding.

#include <cstdint>
#include <optional>

namespace nanovllm {

enum class RopeType : std::uint8_t { standard, yarn };

/// Rotary position embedding. All but `type` and `theta` matter to YaRN only; `rope_scaling.hpp`
/// has the formulas.
struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 0;   ///< > 1
  double factor = 1;  ///< in [1, 1e6]
  std::int64_t original_max_position_embeddings = 0;
  std::optional<double> attention_factor;  ///< unset: follows from factor and the mscales
  double beta_fast = 32;                   ///< > beta_slow
  double beta_slow = 1;                    ///< > 0
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;
};

}  // namespace nanovllm
