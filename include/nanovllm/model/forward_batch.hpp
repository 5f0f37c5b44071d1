#pragma once
/// What a model's forward pass reads in addition to its weights.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/token_source.hpp"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/batch_field.hpp"

namespace nanovllm {

/// The part of a step's fields that is for the model. Decodes come first, in rows [0, num_decodes):
/// each is one token after keys that are there, those of the rows before it included. The prompt
/// chunks follow.
template <template <class Field> class Stored>
struct ForwardFields {
  Stored<PerToken<TokenId, TokenSource>> tokens;   ///< [n]
  Stored<PerToken<std::int32_t>> positions;        ///< [n]
  Stored<PerToken<Slot>> slots;                    ///< [n]: where each token's K and V go
  Stored<AnyNumberOf<std::int32_t>> query_starts;  ///< [num_chunks + 1], rows from num_decodes on
  Stored<PerSequence<std::int32_t>> kv_lens;       ///< [num_decodes + num_chunks]
  Stored<PerSequenceTable<BlockId>> block_tables;  ///< [num_decodes + num_chunks, most blocks]
  Stored<AnyNumberOf<std::int32_t>> logit_rows;    ///< [m]: rows that need logits; no data
                                                   ///< and m = n: all of them
  Stored<AnyNumberOf<std::int32_t>> hidden_rows;   ///< [h]: rows whose hidden states are wanted

  Stored<PerSequence<SharedPrefix>> shared_prefixes;  ///< at most as many as decodes
  Stored<PerSequence<PrefixMember>> prefix_members;   ///< [num_decodes], or none: nothing is shared

  /// A padded row is token 0 at position 0 that stores nothing and attends to nothing.
  template <class Visit, class... Batches>
  static constexpr void for_each_field(Visit&& visit, Batches&... batches) {
    visit(TokenId{0}, batches.tokens...);
    visit(std::int32_t{0}, batches.positions...);
    visit(kNoSlot, batches.slots...);
    visit(std::int32_t{0}, batches.query_starts...);
    visit(std::int32_t{0}, batches.kv_lens...);
    visit(BlockId{0}, batches.block_tables...);
    visit(std::int32_t{0}, batches.logit_rows...);
    visit(std::int32_t{0}, batches.hidden_rows...);
    visit(SharedPrefix{}, batches.shared_prefixes...);
    visit(PrefixMember{}, batches.prefix_members...);
  }
};

static_assert(visits_every_field<ForwardFields>());

/// Views of one step's inputs in the backend's memory.
struct ForwardBatch : ForwardFields<ViewOf> {
  std::int64_t num_decodes = 0;
  bool has_prefix = true;  ///< false promises that every chunk begins at its sequence's start
  /// False promises that decodes see no key that the step stores but their own tokens'.
  bool has_chunk_rows = false;
};

}  // namespace nanovllm
