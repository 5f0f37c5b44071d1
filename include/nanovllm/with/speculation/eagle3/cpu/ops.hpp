#pragma once
/// The op of EAGLE-3 heads on the CPU. Contract: with/speculation/eagle3/ops.hpp.

#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/with/speculation/eagle3/ops.hpp"

namespace nanovllm::cpu {

/// Also throws ShapeError for a token outside of the map.
inline void run_op(const MapTokensArgs& args, Context&) {
  validate(args);
  for (std::int64_t i = 0; i < args.tokens.extent(0); ++i) {
    TokenId& token = args.tokens.data[i];
    check<ShapeError>(token >= 0 && token < args.map.extent(0), "map_tokens: token ", i,
                      " must be in [0, ", args.map.extent(0), "), got ", token);
    token = args.map.data[token];
  }
}

}  // namespace nanovllm::cpu
