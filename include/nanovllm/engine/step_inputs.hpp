#pragma once
/// The flat arrays that tell a model what one step computes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/token_source.hpp"
#include "nanovllm/engine/step_arena.hpp"
#include "nanovllm/engine/step_batch.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// The inputs of a step in one contiguous host arena. It and the arrays that it is packed from keep
/// their capacity from step to step.
class StepInputs {
 public:
  /// Lays out `plan`, whose sequences have their blocks by now. Row i of `sampling` belongs to the
  /// i-th row of logits: those of a planned sequence behind each other, in the plan's order.
  void build(const StepPlan& plan, std::int64_t block_size, const HostSamplingBatch& sampling) {
    fill_tokens(plan, block_size);
    fill_sequences(plan);
    fill_samples(plan, sampling);
    arena_.pack(Parts{forward_, sampling, plan.block_copies});
    header_.fields = arena_.fields();
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return arena_.bytes(); }

  /// What `unpack` needs in front of `bytes()`. Plain data.
  [[nodiscard]] std::span<const std::byte> counts_as_bytes() const {
    return std::as_bytes(std::span(&header_, 1));
  }

  /// Becomes the same as inputs of which `message` has the counts and the bytes, one behind the
  /// other. Throws Error when they do not fit together.
  void unpack(std::span<const std::byte> message) {
    check(message.size() >= sizeof(Header), "step inputs: a message of ", message.size(),
          " bytes has no room for the counts");
    std::memcpy(&header_, message.data(), sizeof(Header));
    arena_.assign(header_.fields, message.subspan(sizeof(Header)));
  }

  /// Where each field is in the arena.
  [[nodiscard]] const StepBatch<PackedOf>& fields() const { return arena_.fields(); }

  [[nodiscard]] std::int64_t num_tokens() const { return fields().forward.tokens.size; }
  [[nodiscard]] std::int64_t num_sequences() const { return fields().forward.kv_lens.size; }
  [[nodiscard]] std::int64_t num_decodes() const { return header_.num_decodes; }
  [[nodiscard]] std::int64_t num_samples() const { return fields().forward.logit_rows.size; }
  [[nodiscard]] bool has_prefix() const { return header_.has_prefix; }
  [[nodiscard]] std::int32_t max_logprobs() const { return header_.max_logprobs; }
  /// Whether any sample wants log-probabilities, be it only its own token's.
  [[nodiscard]] bool wants_logprobs() const { return header_.wants_logprobs; }

 private:
  struct Header {
    StepBatch<PackedOf> fields;
    std::int64_t num_decodes = 0;
    std::int32_t max_logprobs = 0;
    bool has_prefix = false;
    bool wants_logprobs = false;
  };
  static_assert(std::is_trivially_copyable_v<Header>);

  /// A step's fields where they are on the host, with the members of `StepBatch`.
  struct Parts {
    const ForwardFields<HostOf>& forward;
    const HostSamplingBatch& sampling;
    const std::vector<BlockCopy>& block_copies;
  };

  void fill_tokens(const StepPlan& plan, std::int64_t block_size) {
    ForwardFields<HostOf>& out = forward_;
    const auto n = static_cast<std::size_t>(plan.num_tokens);
    out.tokens.resize(n);
    out.positions.resize(n);
    out.slots.resize(n);
    TokenSource* token = out.tokens.data();
    std::int32_t* position = out.positions.data();
    Slot* slot = out.slots.data();
    for (const PlannedSequence& planned : plan.sequences) {
      const Sequence& sequence = *planned.sequence;
      std::int64_t index = planned.begin / block_size, offset = planned.begin % block_size;
      for (std::int32_t i = planned.begin; i < planned.end; ++i) {
        *token++ = sequence.token_source(i);
        *position++ = i;
        *slot++ = sequence.block_table[static_cast<std::size_t>(index)] * block_size + offset;
        if (++offset == block_size) ++index, offset = 0;
      }
    }
  }

  void fill_sequences(const StepPlan& plan) {
    ForwardFields<HostOf>& out = forward_;
    header_.num_decodes = plan.num_decodes;
    header_.has_prefix = false;
    out.query_starts.assign(1, 0);
    out.kv_lens.clear();
    out.block_tables.clear();
    for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
      const PlannedSequence& planned = plan.sequences[s];
      if (s >= static_cast<std::size_t>(plan.num_decodes)) {
        out.query_starts.push_back(out.query_starts.back() + planned.num_tokens());
        header_.has_prefix |= planned.begin > 0;
      }
      out.kv_lens.push_back(planned.end);
      out.block_tables.append(planned.sequence->block_table);
    }
  }

  void fill_samples(const StepPlan& plan, const HostSamplingBatch& sampling) {
    std::vector<std::int32_t>& logit_rows = forward_.logit_rows;
    logit_rows.clear();
    std::int32_t row = 0;
    for (const PlannedSequence& planned : plan.sequences) {
      row += planned.num_tokens();
      for (std::int32_t i = planned.num_logits; i > 0; --i) logit_rows.push_back(row - i);
    }
    const std::size_t n = sampling.rows.size();
    check(logit_rows.size() == n, "step inputs: the plan samples ", logit_rows.size(),
          " rows, but ", n, " have settings");
    check(sampling.banned.starts.size() == n + 1, "step inputs: ", n, " rows are sampled, but ",
          sampling.banned.starts.size() - 1, " have a list of banned tokens");
    header_.max_logprobs = 0;
    header_.wants_logprobs = false;
    for (const SamplingRow& sample : sampling.rows) {
      header_.max_logprobs = std::max(header_.max_logprobs, sample.num_logprobs);
      header_.wants_logprobs |= sample.num_logprobs >= 0;
    }
  }

  ForwardFields<HostOf> forward_;
  StepArena<StepBatch> arena_;
  Header header_;
};

}  // namespace nanovllm
