#pragma once
/// Copies of boxes of a tensor by the copy engine (TMA), compute capability 9.0: the tensor's
/// description is made on the host, one thread starts the copy of a box into shared memory, and an
/// mbarrier counts the bytes.
///
/// Tiles land in the layout that `wgmma.cuh` reads: rows of 128 bytes (64 16-bit elements), the 16
/// byte pieces of row r permuted by XOR with r % 8 ("128-byte swizzle"). The box must start at a
/// multiple of 1024 bytes in shared memory. What lies outside the tensor is filled with zeros and
/// counts as bytes all the same.
/// Source: CUDA driver API, "Tensor Map Object Management"; PTX ISA 9.0, "cp.async.bulk.tensor".

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <cuda/ptx>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/runtime/check.cuh"

namespace nanovllm::cuda {

/// Bytes of a row of a box: what the swizzle spans.
inline constexpr int kTmaRowBytes = 128;
/// Columns of a box of 16-bit elements.
inline constexpr int kTmaColumns = kTmaRowBytes / 2;

/// The driver's name of an element type of 8 or 16 bits.
template <class T>
inline constexpr CUtensorMapDataType kTmaType = sizeof(T) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                                : std::is_same_v<T, half>
                                                    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

namespace detail {

/// The driver's encoder, found through the runtime so that nothing links the driver.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &result),
               "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
    check<CudaError>(result == cudaDriverEntryPointSuccess && function != nullptr,
                     "the driver has no cuTensorMapEncodeTiled; CUDA 12.0 or later is "
                     "needed");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

}  // namespace detail

/// Describes a tensor of elements of 8 or 16 bits. Dimensions are listed from the innermost, whose
/// stride is 1; `strides[i]` is that of dimension i + 1, in elements. `box` is what one copy
/// brings; its first extent must be 128 bytes. Throws CudaError when the driver refuses: `data`
/// must be 16-byte aligned, strides multiples of 16 bytes, box extents at most 256.
template <class T, int kRank>
[[nodiscard]] CUtensorMap make_tensor_map(const T* data,
                                          const std::array<std::int64_t, kRank>& extents,
                                          const std::array<std::int64_t, kRank - 1>& strides,
                                          const std::array<int, kRank>& box) {
  static_assert(sizeof(T) <= 2, "'make_tensor_map' describes tensors of 8- and 16-bit elements");
  cuuint64_t sizes[kRank], stride_bytes[kRank];
  cuuint32_t box_sizes[kRank], steps[kRank];
  for (int i = 0; i < kRank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(extents[i]);
    box_sizes[i] = static_cast<cuuint32_t>(box[i]);
    steps[i] = 1;
    if (i > 0) stride_bytes[i - 1] = static_cast<cuuint64_t>(strides[i - 1]) * sizeof(T);
  }
  CUtensorMap map;
  const CUresult status = detail::tensor_map_encoder()(
      &map, kTmaType<T>, kRank, const_cast<T*>(data), sizes, stride_bytes, box_sizes, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check<CudaError>(status == CUDA_SUCCESS,
                   "cuTensorMapEncodeTiled: the driver refused a "
                   "tensor of rank ",
                   kRank, " (CUresult ", static_cast<int>(status), ")");
  return map;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Fetches a map, a `__grid_constant__` parameter, ahead of its first use.
__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Starts copying the box at `coordinates` (innermost first) to `to`; `barrier` counts its bytes.
template <int kRank>
__device__ __forceinline__ void tma_load(void* to, const CUtensorMap& map,
                                         const std::int32_t (&coordinates)[kRank],
                                         std::uint64_t& barrier) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, to, &map,
                                    coordinates, &barrier);
}

/// Starts copying `bytes` bytes, a multiple of 16, between addresses that are such multiples, too;
/// `barrier` counts them.
__device__ __forceinline__ void bulk_load(void* to, const void* from, int bytes,
                                          std::uint64_t& barrier) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, to, from,
                             static_cast<std::uint32_t>(bytes), &barrier);
}

/// Orders what earlier kernels wrote to global memory, once it is visible here, before copies that
/// this thread starts.
__device__ __forceinline__ void async_proxy_fence_global() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_global);
}

/// Orders this thread's writes to shared memory before what the copy engine and wgmma do with it.
__device__ __forceinline__ void async_proxy_fence_shared() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda
