#pragma once
/// What the kernel of `varlen_attention` for Hopper takes, and where it reads. For the host;
/// nothing here needs CUDA.

#include <cstdint>

namespace nanovllm::cuda {

/// Where the kernel for Hopper reads keys and values.
enum class VarlenSource : std::uint8_t {
  step,   ///< from this step's k and v, which hold all there are
  mixed,  ///< each sequence as `varlen_new_from` says
};

/// Whether the copy engine can bring tiles of 128 keys from blocks of this size.
[[nodiscard]] constexpr bool varlen_hopper_takes_block_size(std::int64_t block_size) {
  return block_size % 128 == 0 ? block_size > 0 : block_size >= 8 && 128 % block_size == 0;
}

/// Whether the kernel takes these shapes. `converts`: of a cache in 8 bits.
[[nodiscard]] constexpr bool fits_varlen_hopper(std::int64_t head_dim, std::int64_t block_size,
                                                bool has_prefix, bool converts = false) {
  const bool takes_blocks = converts ? block_size > 0 && block_size % 16 == 0
                                     : varlen_hopper_takes_block_size(block_size);
  return (head_dim == 64 || head_dim == 128) && (!has_prefix || takes_blocks);
}

}  // namespace nanovllm::cuda
