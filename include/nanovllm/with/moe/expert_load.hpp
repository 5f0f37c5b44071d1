#pragma once
/// How a model's tokens were spread over its experts.

#include <cstdint>
#include <vector>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// How many tokens each expert was chosen for, layer by layer. Empty for a model without experts.
struct ExpertLoad {
  std::int64_t num_experts = 0;        ///< of a layer
  std::vector<std::int64_t> tokens{};  ///< [layers with experts, num_experts]

  [[nodiscard]] bool empty() const { return tokens.empty(); }

  /// Of each expert in all layers together, [num_experts].
  [[nodiscard]] std::vector<std::int64_t> by_expert() const;

  /// How evenly `num_parts` ranks with whole experts each share the work: the mean of their tokens
  /// divided by the most that one has, both summed over layers, since in each layer all wait for
  /// that rank. 1 is even, and what there is without tokens; 1 / num_parts is one rank alone. With
  /// num_parts = num_experts it is the balance of single experts. Throws ConfigError unless
  /// num_parts is in [1, num_experts].
  /// Source: vLLM, distributed/eplb/eplb_state.py ("balancedness").
  [[nodiscard]] double balancedness(std::int64_t num_parts) const;
};

/// The first expert of part `part` of `num_parts`, which have whole experts that follow each other;
/// the numbers of two parts differ by one at the most. Part `num_parts` would begin at the end.
[[nodiscard]] constexpr std::int64_t first_expert_of(std::int64_t part, std::int64_t num_parts,
                                                     std::int64_t num_experts) {
  return num_experts * part / num_parts;
}

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE std::vector<std::int64_t> ExpertLoad::by_expert() const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(num_experts));
  for (std::size_t i = 0; i < tokens.size(); ++i) out[i % out.size()] += tokens[i];
  return out;
}

NANOVLLM_INLINE double ExpertLoad::balancedness(std::int64_t num_parts) const {
  check<ConfigError>(num_parts >= 1 && num_parts <= num_experts, "balancedness: ", num_experts,
                     " experts can have between 1 and so many parts, got ", num_parts);
  double mean = 0, most = 0;
  for (auto layer = tokens.begin(); layer != tokens.end(); layer += num_experts) {
    std::int64_t all = 0, largest = 0;
    for (std::int64_t p = 0; p < num_parts; ++p) {
      const std::int64_t part =
          std::accumulate(layer + first_expert_of(p, num_parts, num_experts),
                          layer + first_expert_of(p + 1, num_parts, num_experts), std::int64_t{0});
      all += part;
      largest = std::max(largest, part);
    }
    mean += static_cast<double>(all) / static_cast<double>(num_parts);
    most += static_cast<double>(largest);
  }
  return most > 0 ? mean / most : 1;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
