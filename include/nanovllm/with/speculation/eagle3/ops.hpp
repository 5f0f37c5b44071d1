#pragma once
/// Contract of `map_tokens`, which an EAGLE-3 head has in addition to the ops of all models.

#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// tokens[i] = map[tokens[i]], in place: ids of a draft's vocabulary become the target's.
struct MapTokensArgs {
  VectorView<TokenId> tokens;     ///< [n], each in [0, size of map)
  VectorView<const TokenId> map;  ///< [vocabulary of the draft]
};

/// Throws ShapeError for a map without entries, unless there are no tokens.
inline void validate(const MapTokensArgs& args) {
  check<ShapeError>(args.tokens.empty() || !args.map.empty(), "map_tokens: the map is empty");
}

}  // namespace nanovllm
