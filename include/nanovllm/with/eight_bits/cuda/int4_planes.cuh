#pragma once
/// Rows of x as planes of int8, by which int4_few_rows.cuh multiplies: with u the largest |x| / 127
/// of 128 columns, x = u · (a + b / 254) within u / 508, 2^-16 of the group's largest.
///
/// Bytes moved: 2 · M · K read, 2 · M · K written.
/// Measured: not by itself; int4_linear_bench (cuda_int4.json) has it in the products of more than
/// 4 rows: 8 rows of down take 20.2 us with planes made by every block, 11.2 with these.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_matrix.cuh"

namespace nanovllm::cuda {

namespace detail {

/// Rows of x as planes, in chunks of `kTokens` rows: per chunk and group of 128 columns a block of
/// operand B, [2 · kTokens][128] int8 under the 128-byte swizzle, row 2 i the high plane of row i
/// of x and row 2 i + 1 the low one; what they are multiplied by, over 16; and the sums of x.
struct Int4Planes {
  std::uint8_t* planes = nullptr;  ///< [chunk][group][2 · kTokens][128]
  float* scales = nullptr;         ///< [chunk][group][kTokens]
  float* sums = nullptr;           ///< as scales
};

/// The planes of 128 columns of a row of x by half a warp, eight columns a lane, written if
/// `stores`.
__device__ __forceinline__ void make_int4_plane(const uint4& raw, int row, bool stores,
                                                std::uint8_t* plane, float& scale_of_row,
                                                float& sum_of_row) {
  const int l = static_cast<int>(threadIdx.x) % 16;
  float x[8];
  unpack<bf16>(raw, x);
  std::uint32_t bits = 0;
  float sum = 0.f;
#pragma unroll
  for (const float v : x) bits = max(bits, __float_as_uint(v) & 0x7fffffffu), sum += v;
#pragma unroll
  for (int o = 8; o > 0; o /= 2) {
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, o));
    sum += __shfl_xor_sync(0xffffffffu, sum, o);
  }
  const float largest = fmaxf(__uint_as_float(bits), 1e-30f);
  const float inverse = __fdividef(127.f, largest);
  std::uint32_t high[2] = {}, low[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float scaled = x[i] * inverse;
    const int a = max(-127, min(127, __float2int_rn(scaled)));
    const int b = max(-127, min(127, __float2int_rn((scaled - static_cast<float>(a)) * 254.f)));
    high[i / 4] |= (static_cast<std::uint32_t>(a) & 255u) << (8 * (i % 4));
    low[i / 4] |= (static_cast<std::uint32_t>(b) & 255u) << (8 * (i % 4));
  }
  if (!stores) return;
  const auto store = [&](int of_plane, const std::uint32_t(&of)[2]) {
    *reinterpret_cast<uint2*>(plane + of_plane * 128 + ((l / 2) ^ (of_plane & 7)) * 16 +
                              l % 2 * 8) = {of[0], of[1]};
  };
  store(2 * row, high);
  store(2 * row + 1, low);
  if (l > 0) return;
  // What is not finite makes the scale so, and with it every sum.
  scale_of_row = bits < 0x7f800000u ? largest / (127.f * 16.f) : NAN;
  sum_of_row = sum;
}

/// Makes the planes of all rows in chunks of kTokens. Grid (groups, groups of 8 rows).
template <int kTokens>
__global__ void __launch_bounds__(128)
    int4_planes_kernel(const MatrixView<const bf16> x, const Int4Planes to) {
  grid_dependency_wait();
  grid_dependency_launch();
  const int half = static_cast<int>(threadIdx.x) / 16, l = static_cast<int>(threadIdx.x) % 16;
  const int groups = static_cast<int>(gridDim.x), group = static_cast<int>(blockIdx.x);
  const int row = static_cast<int>(blockIdx.y) * 8 + half, column = group * kInt4Group + 8 * l;
  const bool exists = row < x.extent(0);
  uint4 raw{};
  if (exists && column < x.extent(1)) raw = *reinterpret_cast<const uint4*>(x.at(row, column));
  const int block = row / kTokens * groups + group, in_chunk = row % kTokens;
  make_int4_plane(raw, in_chunk, exists, to.planes + std::int64_t{block} * 2 * kTokens * kInt4Group,
                  to.scales[block * kTokens + in_chunk], to.sums[block * kTokens + in_chunk]);
}

}  // namespace detail

/// Memory of the planes of `rows` rows, which a kernel makes ahead of the product.
struct Int4PlaneSizes {
  std::size_t plane_bytes, floats;

  Int4PlaneSizes(std::int64_t rows, const Int4View& weight) {
    const auto items =
        static_cast<std::size_t>(align_up(rows, std::int64_t{32}) * 2 * weight.num_units());
    plane_bytes = 2 * items * kInt4Group, floats = items;
  }
};

}  // namespace nanovllm::cuda
