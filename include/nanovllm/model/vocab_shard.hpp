#pragma once
/// What an executor is told of a vocabulary that ranks share.

#include <concepts>
#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// The tokens that one rank's rows of lm_head are of. Ranks draw from their shards if num_columns
/// is a multiple of kShardAlignment (ops/shard_draw.hpp); otherwise whole logits are gathered.
struct VocabShard {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
  std::int64_t first_token = 0;  ///< rank · num_columns; may be behind the vocabulary
  std::int64_t num_tokens = 0;   ///< may be none
  std::int64_t num_columns = 0;  ///< of the shard's logits, padding included; the same on all ranks
};

/// A network that can leave each rank with its own logits.
///
/// - `vocab_shard()`: this rank's shard.
/// - `forward` takes logits of `vocab_shard().num_columns` columns, too, and then writes those of
///   this rank alone.
/// - `exchange(part, whole)`: `all_gather_columns` of the network's ranks.
/// - `Communicator`: their type.
template <class N>
concept SharesVocabulary = requires(N& network, const N& cnetwork, MatrixView<const float> part,
                                    MatrixView<float> whole) {
  typename N::Communicator;
  { cnetwork.vocab_shard() } -> std::same_as<VocabShard>;
  network.exchange(part, whole);
};

}  // namespace nanovllm
