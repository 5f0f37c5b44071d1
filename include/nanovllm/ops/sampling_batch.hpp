#pragma once
/// What the sampler reads in addition to the logits.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/ops/batch_field.hpp"

namespace nanovllm {

/// How one row is sampled. Plain data: rows are copied to the device as they are.
struct SamplingRow {
  float temperature = 1.f;  ///< 0 is greedy
  std::int32_t top_k = 0;   ///< ≤ 0 keeps all
  float top_p = 1.f;        ///< ≥ 1 keeps all
  float min_p = 0.f;        ///< ≤ 0 keeps all
  std::uint64_t seed = 0;
  std::uint64_t position = 0;      ///< index in its sequence of the token to be drawn
  std::int32_t num_logprobs = -1;  ///< -1: none; n ≥ 0: the sampled token's and the n most likely
};

/// Whether the row is greedy or drawn from the whole vocabulary, and wants no log-probabilities.
/// There is no vocabulary here, so that any top_k counts as a filter.
[[nodiscard]] constexpr bool is_plain(const SamplingRow& row) {
  const bool has_filter = row.top_k > 0 || row.top_p < 1 || row.min_p > 0;
  return row.num_logprobs < 0 && !(row.temperature > 0 && has_filter);
}

/// The part of a step's fields that is for the sampler: one row a row of logits.
template <template <class Field> class Stored>
struct SamplingFields {
  Stored<PerSample<SamplingRow>> rows;
  Stored<PerSampleList<TokenId>> banned;  ///< tokens that must not be drawn

  /// A padded row is sampled greedily.
  template <class Visit, class... Batches>
  static constexpr void for_each_field(Visit&& visit, Batches&... batches) {
    visit(SamplingRow{.temperature = 0.f}, batches.rows...);
    visit(TokenId{0}, batches.banned...);
  }
};

static_assert(visits_every_field<SamplingFields>());

/// Views of one step's in the backend's memory.
using SamplingBatch = SamplingFields<ViewOf>;

}  // namespace nanovllm
