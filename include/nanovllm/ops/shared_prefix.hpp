#pragma once
/// Keys that several decodes have in common: what `decode_attention` may read once for all of them.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// Some decodes of a step whose block tables agree for the keys [begin, end), and before: those at
/// places [first, first + count) of an order in which all decodes stand (`PrefixMember`).
///
/// A level of a tree: `parent`, which comes before it in the list, has at least the same decodes,
/// and ends where this one begins; one without a parent begins at 0.
struct SharedPrefix {
  std::int32_t first = 0;
  std::int32_t count = 0;  ///< ≥ 2; 0: this and all that follow are padding
  std::int32_t begin = 0;  ///< a multiple of the block size
  std::int32_t end = 0;    ///< likewise, greater than `begin`, less than each member's keys
  std::int32_t parent = -1;
};

/// The order of the decodes, and its inverse, and where each of them belongs: row i says which
/// decode is at place i, and at what place decode i is.
struct PrefixMember {
  std::int32_t decode = 0;  ///< at place i
  std::int32_t place = 0;   ///< of decode i
  std::int32_t group = -1;  ///< of decode i: the `SharedPrefix` that ends last, -1 for none
};

/// A hint, not a duty: attention gives the same with and without it. Both views are empty where
/// nothing is shared; `groups` may have padding at its end.
struct SharedPrefixes {
  VectorView<const SharedPrefix> groups{};
  VectorView<const PrefixMember> members{};  ///< [num_decodes]
};

}  // namespace nanovllm
