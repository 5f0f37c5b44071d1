#pragma once
/// The flat arrays that tell a model what one step computes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/step/step_batch.hpp"
#include "nanovllm/kv/prefix/shared_prefixes.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// What a step's inputs are, beside their fields.
struct StepCounts {
  static constexpr const char* kName = "step inputs";
  std::int64_t num_decodes = 0;
  std::int32_t max_logprobs = 0;
  bool has_prefix = false;
  bool has_chunk_rows = false;
  bool wants_logprobs = false;
  bool all_plain = false;
  bool is_deferred = false;
};

/// The inputs of a step in one contiguous host arena. It and the arrays that it is packed from keep
/// their capacity from step to step.
///
/// A model computes decodes and prompt chunks in different ways (ForwardBatch). Here a decode is
/// whatever is better computed as one: the plan's own, with each guess after it as a separate row,
/// where there are rows for all; a chunk of a single token; and, where decodes read what they have
/// in common once, the tokens of a short chunk after a long prefix, each as a separate row. As a
/// chunk it would keep few of a device's processors busy.
class StepInputs : public StepArena<StepBatch, StepCounts> {
 public:
  /// A chunk is computed as rows up to so many tokens, and after as many or more.
  static constexpr std::int32_t kMaxChunkRows = 64;
  static constexpr std::int32_t kMinChunkPrefix = 512;

  /// @param share_from  if set: to look for what the decodes have in common, where that saves the
  ///                    reading of so many keys; for backends that make use of it.
  /// @param max_rows    decodes that a step may have, if it may have more than sequences.
  explicit StepInputs(std::optional<std::int64_t> share_from = {}, std::int32_t max_rows = 0)
      : share_from_(share_from), max_rows_(max_rows) {}

  /// From the next `build` on.
  void set_share_from(std::optional<std::int64_t> share_from) { share_from_ = share_from; }

  /// Lays out `plan`, whose sequences have their blocks by now. Row i of `sampling` belongs to the
  /// i-th row of logits: those of a planned sequence after each other, in the plan's order.
  void build(const StepPlan& plan, std::int64_t block_size, const HostSamplingBatch& sampling);

  /// Lays out a deferred step: its forward pass is computed, and how its logits are drawn from
  /// comes later, as SampleInputs. Decodes of a deferred step share no reads.
  void build_deferred(const StepPlan& plan, std::int64_t block_size);

  /// Becomes the same as `other`, but for what that was laid out from.
  void copy_packed(const StepInputs& other) {
    StepArena::copy_packed(other);
    last_rows_ = other.last_rows_;
  }

  [[nodiscard]] std::int64_t num_tokens() const { return fields().forward.tokens.size; }
  /// Rows that are decodes, and chunks after them.
  [[nodiscard]] std::int64_t num_sequences() const { return fields().forward.kv_lens.size; }
  [[nodiscard]] std::int64_t num_decodes() const { return counts().num_decodes; }
  [[nodiscard]] std::int64_t num_samples() const { return fields().forward.logit_rows.size; }
  /// Rows that give their hidden states, in the plan's order.
  [[nodiscard]] std::int64_t num_hidden() const { return fields().forward.hidden_rows.size; }
  /// One past each sequence's rows, in the plan's order, which is not that of the rows. Of a step
  /// that was built in this process.
  [[nodiscard]] std::span<const std::int32_t> row_ends() const { return last_rows_; }
  [[nodiscard]] bool has_prefix() const { return counts().has_prefix; }
  /// Whether `launch` computes logits and leaves the draw to a call of `sample`.
  [[nodiscard]] bool is_deferred() const { return counts().is_deferred; }
  /// Whether decodes see keys that the step itself stores, other than their own tokens'.
  [[nodiscard]] bool has_chunk_rows() const { return counts().has_chunk_rows; }
  [[nodiscard]] std::int32_t max_logprobs() const { return counts().max_logprobs; }
  /// Whether any sample wants log-probabilities, be it only its own token's.
  [[nodiscard]] bool wants_logprobs() const { return counts().wants_logprobs; }
  /// Whether all samples are plain (`is_plain`) and none has banned tokens.
  [[nodiscard]] bool all_plain() const { return counts().all_plain; }
  /// Whether test(row, whether it has banned tokens) holds for the settings of all samples.
  template <class Test>
  [[nodiscard]] bool all_rows(const Test& test) const {
    const auto rows = array_at<SamplingRow>(bytes().data(), fields().sampling.rows);
    const auto starts = array_at<std::int32_t>(bytes().data(), fields().sampling.banned.starts);
    for (std::int64_t r = 0; r < rows.extent(0); ++r)
      if (!test(rows.data[r], starts.data[r] < starts.data[r + 1])) return false;
    return true;
  }

 private:
  /// A step's fields where they are on the host, with the members of `StepBatch`.
  struct Parts {
    const ForwardFields<HostOf>& forward;
    const HostSamplingBatch& sampling;
    const std::vector<BlockCopy>& copies_down;
    const std::vector<BlockCopy>& block_copies;
    const std::vector<BlockCopy>& copies_up;
  };

  /// Decides in which order the plan's sequences are laid out, and which of them as decodes.
  void lay_out(const StepPlan& plan);
  /// Those that are decodes, in their order.
  [[nodiscard]] std::span<const PlannedSequence* const> decodes() const {
    return std::span(order_).first(num_as_rows_);
  }

  void fill_tokens(std::int64_t block_size);

  void fill_sequences();

  void fill_shared_prefixes(std::int64_t block_size);

  void fill_output_rows(const StepPlan& plan);

  void check_samples(const HostSamplingBatch& sampling) const;

  void pack(const StepPlan& plan, const HostSamplingBatch& sampling);

  std::optional<std::int64_t> share_from_;
  std::int32_t max_rows_;
  std::vector<const PlannedSequence*> order_;   ///< as they are laid out
  std::size_t num_as_rows_ = 0;                 ///< of them, the first: as decodes
  std::vector<const PlannedSequence*> chunks_;  ///< the others
  std::vector<std::int32_t> last_rows_;  ///< one past each sequence's rows, in the plan's order
  std::vector<SharedPrefixFinder::Row> tables_;
  SharedPrefixFinder shared_prefixes_;
  ForwardFields<HostOf> forward_;
};

/// The model's part of `step`, which are views of `inputs`.
[[nodiscard]] inline ForwardBatch forward_batch(const StepBatch<ViewOf>& step,
                                                const StepInputs& inputs) {
  return {step.forward, inputs.num_decodes(), inputs.has_prefix(), inputs.has_chunk_rows()};
}

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/token_source.hpp"

namespace nanovllm {

NANOVLLM_INLINE void StepInputs::build(const StepPlan& plan, std::int64_t block_size,
                                       const HostSamplingBatch& sampling) {
  counts().is_deferred = false;
  lay_out(plan);
  fill_tokens(block_size);
  fill_sequences();
  if (share_from_) fill_shared_prefixes(block_size);
  fill_output_rows(plan);
  check_samples(sampling);
  pack(plan, sampling);
}

NANOVLLM_INLINE void StepInputs::build_deferred(const StepPlan& plan, std::int64_t block_size) {
  static const HostSamplingBatch kNone;
  counts().is_deferred = true;
  lay_out(plan);
  fill_tokens(block_size);
  fill_sequences();
  fill_output_rows(plan);
  pack(plan, kNone);
}

NANOVLLM_INLINE void StepInputs::pack(const StepPlan& plan, const HostSamplingBatch& sampling) {
  counts().max_logprobs = 0;
  counts().wants_logprobs = false;
  counts().all_plain = sampling.banned.values.empty();
  for (const SamplingRow& sample : sampling.rows) {
    counts().max_logprobs = std::max(counts().max_logprobs, sample.num_logprobs);
    counts().wants_logprobs |= sample.num_logprobs >= 0;
    counts().all_plain = counts().all_plain && is_plain(sample);
  }
  StepArena::pack(Parts{forward_, sampling, plan.copies_down, plan.block_copies, plan.copies_up});
}

NANOVLLM_INLINE void StepInputs::lay_out(const StepPlan& plan) {
  const auto num_decodes = static_cast<std::size_t>(plan.num_decodes);
  // Rows that are left for the tokens of chunks when every sequence has one.
  std::int32_t room = max_rows_ - static_cast<std::int32_t>(plan.sequences.size());
  const auto goes_as_rows = [&](const PlannedSequence& planned, bool is_decode) {
    const std::int32_t n = planned.num_tokens();
    if (n == 1) return true;
    const bool is_chunk_of_rows = share_from_ && planned.begin >= kMinChunkPrefix;
    if (!(is_decode || is_chunk_of_rows) || n > kMaxChunkRows || n - 1 > room) return false;
    room -= n - 1;
    counts().has_chunk_rows = true;
    return true;
  };
  counts().has_chunk_rows = false;
  order_.clear();
  chunks_.clear();
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlannedSequence& planned = plan.sequences[s];
    (goes_as_rows(planned, s < num_decodes) ? order_ : chunks_).push_back(&planned);
  }
  num_as_rows_ = order_.size();
  order_.insert(order_.end(), chunks_.begin(), chunks_.end());
  last_rows_.resize(plan.sequences.size());
  std::int32_t row = 0;
  for (const PlannedSequence* planned : order_) {
    row += planned->num_tokens();
    last_rows_[static_cast<std::size_t>(planned - plan.sequences.data())] = row;
  }
}

NANOVLLM_INLINE void StepInputs::fill_tokens(std::int64_t block_size) {
  ForwardFields<HostOf>& out = forward_;
  std::size_t n = 0;
  for (const PlannedSequence* planned : order_)
    n += static_cast<std::size_t>(planned->num_tokens());
  out.tokens.resize(n);
  out.positions.resize(n);
  out.slots.resize(n);
  TokenSource* token = out.tokens.data();
  std::int32_t* position = out.positions.data();
  Slot* slot = out.slots.data();
  for (const PlannedSequence* planned : order_) {
    const Sequence& sequence = *planned->sequence;
    std::int64_t index = planned->begin / block_size, offset = planned->begin % block_size;
    for (std::int32_t i = planned->begin; i < planned->end; ++i) {
      *token++ = sequence.token_source(i);
      *position++ = i;
      *slot++ = sequence.block_table[static_cast<std::size_t>(index)] * block_size + offset;
      if (++offset == block_size) ++index, offset = 0;
    }
  }
}

NANOVLLM_INLINE void StepInputs::fill_sequences() {
  ForwardFields<HostOf>& out = forward_;
  out.query_starts.assign(1, 0);
  out.kv_lens.clear();
  out.block_tables.clear();
  for (const PlannedSequence* planned : decodes()) {
    for (std::int32_t i = planned->begin; i < planned->end; ++i) {
      out.kv_lens.push_back(i + 1);
      out.block_tables.append(planned->sequence->block_table);
    }
  }
  counts().num_decodes = static_cast<std::int64_t>(out.kv_lens.size());
  counts().has_prefix = false;
  out.shared_prefixes.clear();
  out.prefix_members.clear();
  for (const PlannedSequence* planned : std::span(order_).subspan(num_as_rows_)) {
    out.query_starts.push_back(out.query_starts.back() + planned->num_tokens());
    counts().has_prefix |= planned->begin > 0;
    out.kv_lens.push_back(planned->end);
    out.block_tables.append(planned->sequence->block_table);
  }
}

NANOVLLM_INLINE void StepInputs::fill_shared_prefixes(std::int64_t block_size) {
  tables_.clear();
  for (const PlannedSequence* planned : decodes()) {
    // Blocks before those that the step writes to. What rows of a chunk have in common beyond them
    // would be groups of few keys.
    const auto num_full = static_cast<std::int32_t>(planned->begin / block_size);
    tables_.insert(tables_.end(), static_cast<std::size_t>(planned->num_tokens()),
                   {.table = planned->sequence->block_table, .num_full = num_full});
  }
  shared_prefixes_.find(tables_, block_size, *share_from_);
  forward_.shared_prefixes.assign(shared_prefixes_.groups().begin(),
                                  shared_prefixes_.groups().end());
  forward_.prefix_members.assign(shared_prefixes_.members().begin(),
                                 shared_prefixes_.members().end());
}

NANOVLLM_INLINE void StepInputs::fill_output_rows(const StepPlan& plan) {
  forward_.logit_rows.clear();
  forward_.hidden_rows.clear();
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlannedSequence& planned = plan.sequences[s];
    const std::int32_t first = last_rows_[s] - planned.end;  // row of the sequence's token 0
    const auto add = [&](const RowUse& use, std::vector<std::int32_t>& rows) {
      for (std::int32_t i = use.first; i < use.end(); ++i) rows.push_back(first + i);
    };
    add(planned.rows.of(RowKind::score), forward_.logit_rows);
    add(planned.rows.of(RowKind::draw), forward_.logit_rows);
    add(planned.rows.of(RowKind::hidden), forward_.hidden_rows);
  }
}

NANOVLLM_INLINE void StepInputs::check_samples(const HostSamplingBatch& sampling) const {
  const std::size_t n = sampling.rows.size();
  check(forward_.logit_rows.size() == n, "step inputs: the plan samples ",
        forward_.logit_rows.size(), " rows, but ", n, " have settings");
  check(sampling.banned.starts.size() == n + 1, "step inputs: ", n, " rows are sampled, but ",
        sampling.banned.starts.size() - 1, " have a list of banned tokens");
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
