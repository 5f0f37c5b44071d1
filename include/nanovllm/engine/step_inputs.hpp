#pragma once
/// The flat arrays that tell a model what one step computes.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/forward_inputs.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// The inputs of a step in one contiguous host arena, so that a device gets them in one copy. The
/// arena and its arrays keep their capacity from step to step.
///
/// A token may be one that nobody knows yet, because the step launched just before is to draw it:
/// `pending_token(i)` is its sample i. Who runs the step fills it in.
class StepInputs {
 public:
  /// What the sampler needs to know of one sampled sequence.
  struct Sample {
    SamplingRow row;
    std::span<const TokenId> banned;  ///< tokens that must not be drawn
  };

  /// Lays out `plan`, whose sequences have their blocks by now. `samples[i]` belongs to the i-th
  /// planned sequence with `samples` set, in the plan's order.
  void build(const StepPlan& plan, std::int64_t block_size, std::span<const Sample> samples) {
    measure(plan, samples);
    fill_tokens(plan, block_size);
    fill_sequences(plan);
    fill_samples(plan, samples);
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  /// Views of the arrays in a copy of the arena at `base`, 16-byte aligned; by default the arena
  /// itself.
  [[nodiscard]] ForwardInputs forward_inputs(const std::byte* base = nullptr) const {
    if (base == nullptr) base = bytes_.data();
    ForwardInputs in;
    in.num_decodes = num_decodes_;
    in.has_prefix = has_prefix_;
    in.tokens = array<TokenId>(base, kTokens, num_tokens_);
    in.positions = array<std::int32_t>(base, kPositions, num_tokens_);
    in.slots = array<Slot>(base, kSlots, num_tokens_);
    in.query_starts = array<std::int32_t>(base, kQueryStarts, num_seqs_ - num_decodes_ + 1);
    in.kv_lens = array<std::int32_t>(base, kKvLens, num_seqs_);
    in.block_tables = {array<BlockId>(base, kBlockTables, num_seqs_ * max_blocks_).data,
                       {num_seqs_, max_blocks_}};
    in.logit_rows = array<std::int32_t>(base, kLogitRows, num_samples_);
    return in;
  }

  [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }
  [[nodiscard]] std::int64_t num_decodes() const { return num_decodes_; }
  [[nodiscard]] std::int64_t num_samples() const { return num_samples_; }
  [[nodiscard]] std::int32_t max_logprobs() const { return max_logprobs_; }
  /// Whether any sample wants log-probabilities, be it only its own token's.
  [[nodiscard]] bool wants_logprobs() const { return wants_logprobs_; }
  /// Whether any of the tokens is one that the step before draws.
  [[nodiscard]] bool has_pending_tokens() const { return has_pending_tokens_; }

  [[nodiscard]] VectorView<const SamplingRow> rows(const std::byte* base = nullptr) const {
    return array<SamplingRow>(base ? base : bytes_.data(), kRows, num_samples_);
  }
  [[nodiscard]] VectorView<const std::int32_t> banned_starts(
      const std::byte* base = nullptr) const {
    return array<std::int32_t>(base ? base : bytes_.data(), kBannedStarts, num_samples_ + 1);
  }
  [[nodiscard]] VectorView<const TokenId> banned_tokens(const std::byte* base = nullptr) const {
    return array<TokenId>(base ? base : bytes_.data(), kBannedTokens, num_banned_);
  }

 private:
  enum Array {
    kTokens,
    kPositions,
    kSlots,
    kQueryStarts,
    kKvLens,
    kBlockTables,
    kLogitRows,
    kRows,
    kBannedStarts,
    kBannedTokens,
    kNumArrays,
  };

  template <class T>
  [[nodiscard]] VectorView<const T> array(const std::byte* base, Array which,
                                          std::int64_t count) const {
    return {reinterpret_cast<const T*>(base + offsets_[which]), {count}};
  }

  template <class T>
  [[nodiscard]] T* mutable_array(Array which) {
    return reinterpret_cast<T*>(bytes_.data() + offsets_[which]);
  }

  /// Counts everything and cuts the arena into arrays.
  void measure(const StepPlan& plan, std::span<const Sample> samples) {
    num_tokens_ = plan.num_tokens;
    num_decodes_ = plan.num_decodes;
    num_seqs_ = static_cast<std::int64_t>(plan.sequences.size());
    num_samples_ = static_cast<std::int64_t>(samples.size());
    max_blocks_ = 0;
    for (const PlannedSequence& planned : plan.sequences) {
      max_blocks_ =
          std::max(max_blocks_, static_cast<std::int64_t>(planned.sequence->block_table.size()));
    }
    num_banned_ = 0;
    max_logprobs_ = 0;
    wants_logprobs_ = false;
    for (const Sample& sample : samples) {
      num_banned_ += static_cast<std::int64_t>(sample.banned.size());
      max_logprobs_ = std::max(max_logprobs_, sample.row.num_logprobs);
      wants_logprobs_ |= sample.row.num_logprobs >= 0;
    }
    std::int64_t end = 0;
    const auto place = [&](Array which, std::int64_t count, std::size_t element_bytes) {
      offsets_[which] = end;
      end = align_up(end + count * static_cast<std::int64_t>(element_bytes), 16);
    };
    place(kTokens, num_tokens_, sizeof(TokenId));
    place(kPositions, num_tokens_, sizeof(std::int32_t));
    place(kSlots, num_tokens_, sizeof(Slot));
    place(kQueryStarts, num_seqs_ - num_decodes_ + 1, sizeof(std::int32_t));
    place(kKvLens, num_seqs_, sizeof(std::int32_t));
    place(kBlockTables, num_seqs_ * max_blocks_, sizeof(BlockId));
    place(kLogitRows, num_samples_, sizeof(std::int32_t));
    place(kRows, num_samples_, sizeof(SamplingRow));
    place(kBannedStarts, num_samples_ + 1, sizeof(std::int32_t));
    place(kBannedTokens, num_banned_, sizeof(TokenId));
    bytes_.resize(static_cast<std::size_t>(end));
  }

  void fill_tokens(const StepPlan& plan, std::int64_t block_size) {
    auto* token = mutable_array<TokenId>(kTokens);
    auto* position = mutable_array<std::int32_t>(kPositions);
    auto* slot = mutable_array<Slot>(kSlots);
    has_pending_tokens_ = false;
    for (const PlannedSequence& planned : plan.sequences) {
      const Sequence& sequence = *planned.sequence;
      const TokenId* tokens = sequence.tokens.data();
      token = std::copy(tokens + planned.begin, tokens + planned.end, token);
      has_pending_tokens_ |= is_pending(tokens[planned.end - 1]);  // only the last one can be
      std::int64_t index = planned.begin / block_size, offset = planned.begin % block_size;
      for (std::int32_t i = planned.begin; i < planned.end; ++i) {
        *position++ = i;
        *slot++ = sequence.block_table[static_cast<std::size_t>(index)] * block_size + offset;
        if (++offset == block_size) ++index, offset = 0;
      }
    }
  }

  void fill_sequences(const StepPlan& plan) {
    auto* start = mutable_array<std::int32_t>(kQueryStarts);
    auto* kv_len = mutable_array<std::int32_t>(kKvLens);
    auto* blocks = mutable_array<BlockId>(kBlockTables);
    *start = 0;
    has_prefix_ = false;
    for (std::int64_t s = 0; s < num_seqs_; ++s) {
      const PlannedSequence& planned = plan.sequences[static_cast<std::size_t>(s)];
      if (s >= num_decodes_) {
        start[1] = start[0] + planned.num_tokens();
        ++start;
      }
      *kv_len++ = planned.end;
      has_prefix_ |= s >= num_decodes_ && planned.begin > 0;
      const auto& table = planned.sequence->block_table;
      std::fill(std::copy(table.begin(), table.end(), blocks), blocks + max_blocks_, BlockId{-1});
      blocks += max_blocks_;
    }
  }

  void fill_samples(const StepPlan& plan, std::span<const Sample> samples) {
    auto* logit_row = mutable_array<std::int32_t>(kLogitRows);
    std::int64_t num_sampled = 0;
    std::int32_t row = 0;
    for (const PlannedSequence& planned : plan.sequences) {
      row += planned.num_tokens();
      if (planned.samples) logit_row[num_sampled++] = row - 1;
    }
    check(num_sampled == num_samples_, "step inputs: the plan samples ", num_sampled,
          " sequences, but ", num_samples_, " have settings");
    auto* settings = mutable_array<SamplingRow>(kRows);
    auto* banned_start = mutable_array<std::int32_t>(kBannedStarts);
    auto* banned = mutable_array<TokenId>(kBannedTokens);
    *banned_start = 0;
    for (const Sample& sample : samples) {
      *settings++ = sample.row;
      banned = std::copy(sample.banned.begin(), sample.banned.end(), banned);
      banned_start[1] = banned_start[0] + static_cast<std::int32_t>(sample.banned.size());
      ++banned_start;
    }
  }

  std::vector<std::byte> bytes_;
  std::array<std::int64_t, kNumArrays> offsets_{};
  std::int64_t num_tokens_ = 0;
  std::int64_t num_seqs_ = 0;
  std::int64_t num_decodes_ = 0;
  std::int64_t num_samples_ = 0;
  std::int64_t num_banned_ = 0;
  std::int64_t max_blocks_ = 0;
  std::int32_t max_logprobs_ = 0;
  bool has_pending_tokens_ = false;
  bool has_prefix_ = false;
  bool wants_logprobs_ = false;
};

}  // namespace nanovllm
