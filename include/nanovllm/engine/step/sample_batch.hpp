#pragma once
/// What tells the sampler how the rows of a step are drawn whose logits are edited before: it goes
/// to the device by itself, after the step's inputs or later.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/step/step_batch.hpp"
#include "nanovllm/ops/batch_field.hpp"
#include "nanovllm/ops/logit_edits.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm {

/// One row a row of logits.
template <template <class Field> class Stored>
struct SampleBatch {
  SamplingFields<Stored> sampling;  ///< the draw; without any edits, the log-probabilities, too
  SamplingFields<Stored> model;     ///< the log-probabilities that are wanted, of the model's own
  EditFields<Stored> edits;

  template <class Visit, class... Batches>
  static constexpr void for_each_field(Visit&& visit, Batches&... batches) {
    SamplingFields<Stored>::for_each_field(visit, batches.sampling...);
    SamplingFields<Stored>::for_each_field(visit, batches.model...);
    EditFields<Stored>::for_each_field(visit, batches.edits...);
  }
};

static_assert(visits_every_field<SampleBatch>());

/// What is asked of a SampleBatch, all rows together.
struct SampleCounts {
  static constexpr const char* kName = "sample inputs";
  std::int32_t max_logprobs = 0;
  std::int32_t model_logprobs = 0;
  bool wants_logprobs = false;
  bool has_edits = false;
  bool has_functor = false;
  bool marks = false;
};

/// A `SampleBatch` in one contiguous host arena, which keeps its capacity from step to step.
class SampleInputs : public StepArena<SampleBatch, SampleCounts> {
 public:
  /// Packs the draws of `sampling` with `edits`, of as many rows.
  /// @param lists_edited  [rows]; not 0: the likeliest tokens that the row lists, and their
  ///                      log-probabilities, are those of the edited logits.
  void build(const HostSamplingBatch& sampling, const EditFields<HostOf>& edits,
             std::span<const std::uint8_t> lists_edited) {
    counts() = {};
    clear(model_);
    rows_ = sampling.rows;
    const auto& edit_rows = edits.rows;
    counts().has_edits = !edits.functor_arguments.empty() || !edits.biases.values.empty() ||
                         !edits.chosen.values.empty() ||
                         std::any_of(edit_rows.begin(), edit_rows.end(), [](const EditRow& row) {
                           return row.marks >= 0 || row.mask >= 0;
                         });
    counts().marks = std::any_of(edit_rows.begin(), edit_rows.end(),
                                 [](const EditRow& row) { return row.marks >= 0; });
    counts().has_functor = !edits.functor_arguments.empty();
    counts().wants_logprobs = !edits.chosen.values.empty();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      SamplingRow& row = rows_[r];
      counts().max_logprobs = std::max(counts().max_logprobs, row.num_logprobs);
      const std::int32_t of_model = lists_edited[r] != 0 ? -1 : row.num_logprobs;
      append_sample(model_, {.temperature = 0, .num_logprobs = of_model});
      counts().model_logprobs = std::max(counts().model_logprobs, of_model);
      counts().wants_logprobs |= (counts().has_edits ? of_model : row.num_logprobs) >= 0;
      if (counts().has_edits && lists_edited[r] == 0) row.num_logprobs = -1;
    }
    pack(Parts{{rows_, sampling.banned}, model_, edits});
  }

  [[nodiscard]] std::int64_t num_samples() const { return fields().sampling.rows.size; }
  /// Tokens, of all rows, whose log-probabilities are reported in addition to the likeliest.
  [[nodiscard]] std::int64_t num_chosen() const { return fields().edits.chosen.values.size; }
  [[nodiscard]] std::int32_t max_logprobs() const { return counts().max_logprobs; }
  /// Of the rows that list the model's.
  [[nodiscard]] std::int32_t model_logprobs() const { return counts().model_logprobs; }
  /// Whether any row wants log-probabilities of the model, be it only its own token's.
  [[nodiscard]] bool wants_logprobs() const { return counts().wants_logprobs; }
  /// Whether anything is asked beyond what `sample` alone does.
  [[nodiscard]] bool has_edits() const { return counts().has_edits; }
  /// Whether a functor is applied to any row.
  [[nodiscard]] bool has_functor() const { return counts().has_functor; }
  /// Whether any row counts tokens.
  [[nodiscard]] bool marks() const { return counts().marks; }

 private:
  /// A batch's fields where they are, with the members of `SampleBatch`.
  struct Parts {
    struct Sampling {
      const std::vector<SamplingRow>& rows;
      const HostLists<TokenId>& banned;
    } sampling;
    const HostSamplingBatch& model;
    const EditFields<HostOf>& edits;
  };

  std::vector<SamplingRow> rows_;
  HostSamplingBatch model_;
};

}  // namespace nanovllm
