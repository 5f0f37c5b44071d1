#pragma once
/// The flat arrays that tell a model what one step computes.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/core/token_source.hpp"
#include "nanovllm/model/forward_inputs.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// The inputs of a step in one contiguous host arena, so that a device gets them in one copy. The
/// arena and its arrays keep their capacity from step to step.
///
/// A token may be one that is not known yet, because the step launched just before is to draw it:
/// every token is the bits of a `TokenSource`. The executor of the step fills it in.
class StepInputs {
 public:
  /// What the sampler needs to know of one sampled sequence.
  struct Sample {
    SamplingRow row;
    std::span<const TokenId> banned;  ///< tokens that must not be drawn
  };

  /// Lays out `plan`, whose sequences have their blocks by now. `samples[i]` belongs to the i-th
  /// row that gives logits, in the plan's order.
  void build(const StepPlan& plan, std::int64_t block_size, std::span<const Sample> samples) {
    measure(plan, samples);
    place_arrays();
    fill_tokens(plan, block_size);
    fill_sequences(plan);
    fill_samples(plan, samples);
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  /// What `unpack` needs in front of `bytes()`. Plain data.
  [[nodiscard]] std::span<const std::byte> counts_as_bytes() const {
    return std::as_bytes(std::span(&counts_, 1));
  }

  /// Becomes the same as inputs of which `message` has the counts and the bytes, one behind the
  /// other. Throws Error when they do not fit together.
  void unpack(std::span<const std::byte> message) {
    check(message.size() >= sizeof(Counts), "step inputs: a message of ", message.size(),
          " bytes has no room for the counts");
    std::memcpy(&counts_, message.data(), sizeof(Counts));
    message = message.subspan(sizeof(Counts));
    place_arrays();
    check(message.size() == bytes_.size(), "step inputs: the counts are those of ", bytes_.size(),
          " bytes, but ", message.size(), " came");
    std::copy(message.begin(), message.end(), bytes_.begin());
  }

  /// Views of the arrays in a copy of the arena at `base`, 16-byte aligned; by default the arena
  /// itself.
  [[nodiscard]] ForwardInputs forward_inputs(const std::byte* base = nullptr) const {
    if (base == nullptr) base = bytes_.data();
    ForwardInputs in;
    in.num_decodes = counts_.num_decodes;
    in.has_prefix = counts_.has_prefix;
    in.tokens = array<TokenId>(base, kTokens, counts_.num_tokens);
    in.positions = array<std::int32_t>(base, kPositions, counts_.num_tokens);
    in.slots = array<Slot>(base, kSlots, counts_.num_tokens);
    in.query_starts =
        array<std::int32_t>(base, kQueryStarts, counts_.num_seqs - counts_.num_decodes + 1);
    in.kv_lens = array<std::int32_t>(base, kKvLens, counts_.num_seqs);
    in.block_tables = {
        array<BlockId>(base, kBlockTables, counts_.num_seqs * counts_.max_blocks).data,
        {counts_.num_seqs, counts_.max_blocks}};
    in.logit_rows = array<std::int32_t>(base, kLogitRows, counts_.num_samples);
    return in;
  }

  [[nodiscard]] std::int64_t num_tokens() const { return counts_.num_tokens; }
  [[nodiscard]] std::int64_t num_decodes() const { return counts_.num_decodes; }
  [[nodiscard]] std::int64_t num_samples() const { return counts_.num_samples; }
  [[nodiscard]] std::int32_t max_logprobs() const { return counts_.max_logprobs; }
  /// Whether any sample wants log-probabilities, be it only its own token's.
  [[nodiscard]] bool wants_logprobs() const { return counts_.wants_logprobs; }
  /// Whether any of the tokens is one that the step before draws.
  [[nodiscard]] bool has_pending_tokens() const { return counts_.has_pending_tokens; }

  [[nodiscard]] VectorView<const SamplingRow> rows(const std::byte* base = nullptr) const {
    return array<SamplingRow>(base ? base : bytes_.data(), kRows, counts_.num_samples);
  }
  [[nodiscard]] VectorView<const std::int32_t> banned_starts(
      const std::byte* base = nullptr) const {
    return array<std::int32_t>(base ? base : bytes_.data(), kBannedStarts, counts_.num_samples + 1);
  }
  [[nodiscard]] VectorView<const TokenId> banned_tokens(const std::byte* base = nullptr) const {
    return array<TokenId>(base ? base : bytes_.data(), kBannedTokens, counts_.num_banned);
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

  struct Counts {
    std::int64_t num_tokens = 0;
    std::int64_t num_seqs = 0;
    std::int64_t num_decodes = 0;
    std::int64_t num_samples = 0;
    std::int64_t num_banned = 0;
    std::int64_t max_blocks = 0;
    std::int32_t max_logprobs = 0;
    bool has_pending_tokens = false;
    bool has_prefix = false;
    bool wants_logprobs = false;
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

  /// Counts everything.
  void measure(const StepPlan& plan, std::span<const Sample> samples) {
    counts_.num_tokens = plan.num_tokens;
    counts_.num_decodes = plan.num_decodes;
    counts_.num_seqs = static_cast<std::int64_t>(plan.sequences.size());
    counts_.num_samples = static_cast<std::int64_t>(samples.size());
    counts_.max_blocks = 0;
    for (const PlannedSequence& planned : plan.sequences) {
      counts_.max_blocks = std::max(
          counts_.max_blocks, static_cast<std::int64_t>(planned.sequence->block_table.size()));
    }
    counts_.num_banned = 0;
    counts_.max_logprobs = 0;
    counts_.wants_logprobs = false;
    for (const Sample& sample : samples) {
      counts_.num_banned += static_cast<std::int64_t>(sample.banned.size());
      counts_.max_logprobs = std::max(counts_.max_logprobs, sample.row.num_logprobs);
      counts_.wants_logprobs |= sample.row.num_logprobs >= 0;
    }
  }

  /// Cuts the arena into arrays.
  void place_arrays() {
    std::int64_t end = 0;
    const auto place = [&](Array which, std::int64_t count, std::size_t element_bytes) {
      offsets_[which] = end;
      end = align_up(end + count * static_cast<std::int64_t>(element_bytes), 16);
    };
    place(kTokens, counts_.num_tokens, sizeof(TokenId));
    place(kPositions, counts_.num_tokens, sizeof(std::int32_t));
    place(kSlots, counts_.num_tokens, sizeof(Slot));
    place(kQueryStarts, counts_.num_seqs - counts_.num_decodes + 1, sizeof(std::int32_t));
    place(kKvLens, counts_.num_seqs, sizeof(std::int32_t));
    place(kBlockTables, counts_.num_seqs * counts_.max_blocks, sizeof(BlockId));
    place(kLogitRows, counts_.num_samples, sizeof(std::int32_t));
    place(kRows, counts_.num_samples, sizeof(SamplingRow));
    place(kBannedStarts, counts_.num_samples + 1, sizeof(std::int32_t));
    place(kBannedTokens, counts_.num_banned, sizeof(TokenId));
    bytes_.resize(static_cast<std::size_t>(end));
  }

  void fill_tokens(const StepPlan& plan, std::int64_t block_size) {
    auto* token = mutable_array<TokenId>(kTokens);
    auto* position = mutable_array<std::int32_t>(kPositions);
    auto* slot = mutable_array<Slot>(kSlots);
    counts_.has_pending_tokens = false;
    for (const PlannedSequence& planned : plan.sequences) {
      const Sequence& sequence = *planned.sequence;
      for (std::int32_t i = planned.begin; i < planned.end; ++i) {
        const TokenSource source = sequence.token_source(i);
        counts_.has_pending_tokens |= !source.is_known();
        *token++ = std::bit_cast<TokenId>(source);
      }
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
    counts_.has_prefix = false;
    for (std::int64_t s = 0; s < counts_.num_seqs; ++s) {
      const PlannedSequence& planned = plan.sequences[static_cast<std::size_t>(s)];
      if (s >= counts_.num_decodes) {
        start[1] = start[0] + planned.num_tokens();
        ++start;
      }
      *kv_len++ = planned.end;
      counts_.has_prefix |= s >= counts_.num_decodes && planned.begin > 0;
      const auto& table = planned.sequence->block_table;
      std::fill(std::copy(table.begin(), table.end(), blocks), blocks + counts_.max_blocks,
                BlockId{-1});
      blocks += counts_.max_blocks;
    }
  }

  void fill_samples(const StepPlan& plan, std::span<const Sample> samples) {
    auto* logit_row = mutable_array<std::int32_t>(kLogitRows);
    std::int64_t num_sampled = 0;
    std::int32_t row = 0;
    for (const PlannedSequence& planned : plan.sequences) {
      row += planned.num_tokens();
      for (std::int32_t i = planned.num_logits; i > 0; --i) logit_row[num_sampled++] = row - i;
    }
    check(num_sampled == counts_.num_samples, "step inputs: the plan samples ", num_sampled,
          " sequences, but ", counts_.num_samples, " have settings");
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
  Counts counts_;
};

}  // namespace nanovllm
