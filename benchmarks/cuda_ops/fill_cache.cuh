#pragma once
// Caches with values that no kernel minds.

#include <cstdint>

#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm::bench {

/// 8-bit elements, all of them of one sign, with equal scales.
template <ScaledKvFormat Kv>
__global__ void fill_cache_kernel(KvView<Kv> kv) {
  static_assert(sizeof(KvStored<Kv>) == 1);
  const std::int64_t tile_words = kv.tile_size() / 4, words = kv.num_blocks * kv.block_stride() / 4;
  auto* const data = reinterpret_cast<std::uint32_t*>(kv.data);
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < words;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const auto x = static_cast<std::uint32_t>(i) * 2654435761u;
    data[i] = i % tile_words < kv.block_size * kv.head_dim / 4 ? (x ^ x >> 15) & 0x6f6f6f6fu
                                                               : __float_as_uint(0.01f);
  }
}

template <ScaledKvFormat Kv>
void fill_cache(const KvView<Kv>& kv) {
  fill_cache_kernel<<<1024, 256>>>(kv);
  cuda::check_cuda(cudaDeviceSynchronize(), "fill_cache");
}

}  // namespace nanovllm::bench
