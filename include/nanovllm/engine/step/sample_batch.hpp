#pragma once
/// What tells the sampler how the rows of a step are drawn whose logits are edited before: it goes
/// to the device by itself, after the step's inputs or later.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "nanovllm/core/error.hpp"
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

/// A `SampleBatch` in one contiguous host arena, which keeps its capacity from step to step. Like
/// StepInputs it can be sent: `counts_as_bytes()` and `bytes()`, one after the other.
class SampleInputs {
 public:
  /// Packs the draws of `sampling` with `edits`, of as many rows.
  /// @param lists_edited  [rows]; not 0: the likeliest tokens that the row lists, and their
  ///                      log-probabilities, are those of the edited logits.
  void build(const HostSamplingBatch& sampling, const EditFields<HostOf>& edits,
             std::span<const std::uint8_t> lists_edited) {
    header_ = {};
    clear(model_);
    rows_ = sampling.rows;
    const auto& edit_rows = edits.rows;
    header_.has_edits = !edits.functor_arguments.empty() || !edits.biases.values.empty() ||
                        !edits.chosen.values.empty() ||
                        std::any_of(edit_rows.begin(), edit_rows.end(), [](const EditRow& row) {
                          return row.marks >= 0 || row.mask >= 0;
                        });
    header_.marks = std::any_of(edit_rows.begin(), edit_rows.end(),
                                [](const EditRow& row) { return row.marks >= 0; });
    header_.has_functor = !edits.functor_arguments.empty();
    header_.wants_logprobs = !edits.chosen.values.empty();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      SamplingRow& row = rows_[r];
      header_.max_logprobs = std::max(header_.max_logprobs, row.num_logprobs);
      const std::int32_t of_model = lists_edited[r] != 0 ? -1 : row.num_logprobs;
      append_sample(model_, {.temperature = 0, .num_logprobs = of_model});
      header_.model_logprobs = std::max(header_.model_logprobs, of_model);
      header_.wants_logprobs |= (header_.has_edits ? of_model : row.num_logprobs) >= 0;
      if (header_.has_edits && lists_edited[r] == 0) row.num_logprobs = -1;
    }
    arena_.pack(Parts{{rows_, sampling.banned}, model_, edits});
    header_.fields = arena_.fields();
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return arena_.bytes(); }
  /// Plain data.
  [[nodiscard]] std::span<const std::byte> counts_as_bytes() const {
    return std::as_bytes(std::span(&header_, 1));
  }
  /// Becomes the same as inputs of which `message` has the counts and the bytes, one after the
  /// other. Throws Error when they do not fit together.
  void unpack(std::span<const std::byte> message) {
    check(message.size() >= sizeof(Header), "sample inputs: a message of ", message.size(),
          " bytes has no room for the counts");
    std::memcpy(&header_, message.data(), sizeof(Header));
    arena_.assign(header_.fields, message.subspan(sizeof(Header)));
  }

  /// Where each field is in the arena.
  [[nodiscard]] const SampleBatch<PackedOf>& fields() const { return arena_.fields(); }

  [[nodiscard]] std::int64_t num_samples() const { return fields().sampling.rows.size; }
  /// Tokens, of all rows, whose log-probabilities are reported in addition to the likeliest.
  [[nodiscard]] std::int64_t num_chosen() const { return fields().edits.chosen.values.size; }
  [[nodiscard]] std::int32_t max_logprobs() const { return header_.max_logprobs; }
  /// Of the rows that list the model's.
  [[nodiscard]] std::int32_t model_logprobs() const { return header_.model_logprobs; }
  /// Whether any row wants log-probabilities of the model, be it only its own token's.
  [[nodiscard]] bool wants_logprobs() const { return header_.wants_logprobs; }
  /// Whether anything is asked beyond what `sample` alone does.
  [[nodiscard]] bool has_edits() const { return header_.has_edits; }
  /// Whether a functor is applied to any row.
  [[nodiscard]] bool has_functor() const { return header_.has_functor; }
  /// Whether any row counts tokens.
  [[nodiscard]] bool marks() const { return header_.marks; }

 private:
  struct Header {
    SampleBatch<PackedOf> fields;
    std::int32_t max_logprobs = 0;
    std::int32_t model_logprobs = 0;
    bool wants_logprobs = false;
    bool has_edits = false;
    bool has_functor = false;
    bool marks = false;
  };
  static_assert(std::is_trivially_copyable_v<Header>);

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
  StepArena<SampleBatch> arena_;
  Header header_;
};

}  // namespace nanovllm
