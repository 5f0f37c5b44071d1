#pragma once
/// Whether the weights that a config.json speaks of can be there, asked before memory is.

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "nanovllm/model/model.hpp"

namespace nanovllm {

/// Throws LoadError when the checkpoint has less than a byte for each weight, whose types have two
/// or four. One that has more, and yet not all, is left to `check_parameters`, which names what is
/// missing.
template <ModelConfigLike Config>
void check_checkpoint_size(const Config& model, const Checkpoint& checkpoint) {
  const std::int64_t count = least_num_parameters(model);
  const std::uint64_t held = checkpoint.total_bytes();
  check<LoadError>(static_cast<std::uint64_t>(count) <= held, "'", checkpoint.directory().string(),
                   "': the sizes in config.json make a model of ", count, " weights, ", 2 * count,
                   " bytes or more; the checkpoint holds ", held, " bytes");
}

/// Throws ConfigError when the weights of `num_sharing` of `num_ranks` ranks, of `element_bytes`
/// each, are more than the memory that these ranks share.
template <ModelConfigLike Config>
void check_weight_memory(const Config& model, std::size_t element_bytes, int num_ranks,
                         int num_sharing, std::size_t available) {
  const std::int64_t count = least_num_parameters(model) / num_ranks * num_sharing;
  const std::int64_t needed = count * static_cast<std::int64_t>(element_bytes);
  check<ConfigError>(static_cast<std::uint64_t>(needed) <= available,
                     "the sizes in config.json make ", count, " weights, ", needed,
                     " bytes, for the ranks that share a memory; available there are ", available,
                     " bytes");
}

}  // namespace nanovllm
