#pragma once
/// The flat arrays that tell a model what one step computes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/step_arena.hpp"
#include "nanovllm/engine/step_batch.hpp"
#include "nanovllm/kv/shared_prefixes.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// The inputs of a step in one contiguous host arena. It and the arrays that it is packed from keep
/// their capacity from step to step.
///
/// A model computes decodes and prompt chunks in different ways (ForwardBatch). Here a decode is
/// whatever is better computed as one: the plan's own; a chunk of a single token; and, where
/// decodes read what they have in common once, the tokens of a short chunk behind a long prefix,
/// each as a row of its own. As a chunk it would keep few of a device's processors busy.
class StepInputs {
 public:
  /// A chunk is computed as rows up to so many tokens, and behind as many or more.
  static constexpr std::int32_t kMaxChunkRows = 64;
  static constexpr std::int32_t kMinChunkPrefix = 512;

  /// @param share_from  if set: to look for what the decodes have in common, where that saves the
  ///                    reading of so many keys; for backends that make use of it.
  /// @param max_rows    decodes that a step may have, if it may have more than sequences.
  explicit StepInputs(std::optional<std::int64_t> share_from = {}, std::int32_t max_rows = 0)
      : share_from_(share_from), max_rows_(max_rows) {}

  /// Lays out `plan`, whose sequences have their blocks by now. Row i of `sampling` belongs to the
  /// i-th row of logits: those of a planned sequence behind each other, in the plan's order.
  void build(const StepPlan& plan, std::int64_t block_size, const HostSamplingBatch& sampling);

  /// Lays out an open step: its forward pass is computed, and how its logits are drawn from comes
  /// later, as SampleInputs. Decodes of an open step share no reads.
  void build_open(const StepPlan& plan, std::int64_t block_size);

  [[nodiscard]] std::span<const std::byte> bytes() const { return arena_.bytes(); }

  /// What `unpack` needs in front of `bytes()`. Plain data.
  [[nodiscard]] std::span<const std::byte> counts_as_bytes() const {
    return std::as_bytes(std::span(&header_, 1));
  }

  /// Becomes the same as inputs of which `message` has the counts and the bytes, one behind the
  /// other. Throws Error when they do not fit together.
  void unpack(std::span<const std::byte> message);

  /// Where each field is in the arena.
  [[nodiscard]] const StepBatch<PackedOf>& fields() const { return arena_.fields(); }

  [[nodiscard]] std::int64_t num_tokens() const { return fields().forward.tokens.size; }
  /// Rows that are decodes, and chunks behind them.
  [[nodiscard]] std::int64_t num_sequences() const { return fields().forward.kv_lens.size; }
  [[nodiscard]] std::int64_t num_decodes() const { return header_.num_decodes; }
  [[nodiscard]] std::int64_t num_samples() const { return fields().forward.logit_rows.size; }
  [[nodiscard]] bool has_prefix() const { return header_.has_prefix; }
  /// Whether `launch` computes logits and leaves the draw to a call of `sample`.
  [[nodiscard]] bool is_open() const { return header_.is_open; }
  /// Whether decodes see keys that the step itself stores, beside their own tokens'.
  [[nodiscard]] bool has_chunk_rows() const { return header_.has_chunk_rows; }
  [[nodiscard]] std::int32_t max_logprobs() const { return header_.max_logprobs; }
  /// Whether any sample wants log-probabilities, be it only its own token's.
  [[nodiscard]] bool wants_logprobs() const { return header_.wants_logprobs; }
  /// Whether all samples are plain (`is_plain`) and none has banned tokens.
  [[nodiscard]] bool all_plain() const { return header_.all_plain; }

 private:
  struct Header {
    StepBatch<PackedOf> fields;
    std::int64_t num_decodes = 0;
    std::int32_t max_logprobs = 0;
    bool has_prefix = false;
    bool has_chunk_rows = false;
    bool wants_logprobs = false;
    bool all_plain = false;
    bool is_open = false;
  };
  static_assert(std::is_trivially_copyable_v<Header>);

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

  void fill_logit_rows(const StepPlan& plan);

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
  StepArena<StepBatch> arena_;
  Header header_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/step_inputs.inc"
#endif
