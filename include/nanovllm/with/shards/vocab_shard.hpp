#pragma once
/// What an executor is told of a vocabulary that ranks share.

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// The tokens that one rank's rows of lm_head are of. Ranks draw from their shards if num_columns
/// is a multiple of kShardAlignment (with/shards/shard_draw.hpp); otherwise whole logits are
/// gathered.
struct VocabShard {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
  std::int64_t first_token = 0;  ///< rank · num_columns; may be after the vocabulary
  std::int64_t num_tokens = 0;   ///< may be none
  std::int64_t num_columns = 0;  ///< of the shard's logits, padding included; the same on all ranks
};

/// A network that can leave each rank with its own logits. `lm_head()` has
///
/// - `shard()`: this rank's.
/// - `exchange(part, whole)`: `all_gather_columns` of the ranks.
/// - `Communicator`: their type.
///
/// `forward` takes logits of `shard().num_columns` columns, too, and then writes those of this rank
/// alone.
template <class N>
concept SharesVocabulary = requires(N& network, MatrixView<const float> part,
                                    MatrixView<float> whole) {
  typename std::remove_reference_t<decltype(network.lm_head())>::Communicator;
  { network.lm_head().shard() } -> std::same_as<VocabShard>;
  network.lm_head().exchange(part, whole);
};

/// What joins the ranks of such a network.
template <SharesVocabulary N>
using VocabCommunicator =
    typename std::remove_reference_t<decltype(std::declval<N&>().lm_head())>::Communicator;

}  // namespace nanovllm
