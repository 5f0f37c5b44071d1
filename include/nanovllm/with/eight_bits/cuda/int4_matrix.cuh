#pragma once
/// The CUDA backend's matrix of 4-bit integers in groups of 128 columns: its layout, and how rows
/// come into it and out of it.
///
/// 64 rows form a tile, of which 256 columns are a unit: 8,192 bytes of codes, then scales [2][64]
/// in float32, one copy of 8,704 bytes. Codes lie as tensor cores want them as operand A: of the
/// rows 16 w + g and 16 w + g + 8 (g < 8) of a tile a byte has one code each, the first in its high
/// half. Of columns 32 s + 16 h + 4 t + i of a unit (t < 4, i < 4) it is byte i of word 2 (s % 2) +
/// h of the 16 bytes of thread 32 w + 4 g + t, of the (s / 2)-th 128 threads. So a thread's load of
/// 16 bytes is its part of two steps of 32 columns.
///
/// Quantising: of 16 scales from the largest |x| / 8 to |x| / 5 the one whose squared error is the
/// least; codes are x / scale, rounded to nearest even, in [-8, 7].
/// Measured: not by itself; an engine of 8B with random weights starts in 6.0 s (engine_bench,
/// cuda_int4.json), with 8-bit floats in 8.0.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/host_copies.cuh"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm::cuda {

inline constexpr int kInt4Group = 128;  ///< columns that share a scale
inline constexpr int kInt4TileRows = 64;
inline constexpr int kInt4UnitColumns = 256;  ///< two groups
inline constexpr int kInt4CodeBytes = kInt4TileRows * kInt4UnitColumns / 2;
inline constexpr int kInt4UnitFloats = 2 * kInt4TileRows;  ///< scales of a unit, or offsets
inline constexpr int kInt4UnitBytes = kInt4CodeBytes + 4 * kInt4UnitFloats;

/// A matrix [rows, cols] of codes in device memory: element (i, j) is scale · code + offset of the
/// row and of the group of 128 columns. Codes, scales and offsets beyond it are zeros.
struct Int4View {
  std::uint8_t* units = nullptr;  ///< [tile][unit] of kInt4UnitBytes
  float* offsets = nullptr;       ///< [tile][unit][2][64]; null where all are 0
  std::int64_t rows = 0, cols = 0;

  [[nodiscard]] NANOVLLM_HD std::int64_t num_tiles() const {
    return (rows + kInt4TileRows - 1) / kInt4TileRows;
  }
  [[nodiscard]] NANOVLLM_HD std::int64_t num_units() const {  ///< of a tile
    return (cols + kInt4UnitColumns - 1) / kInt4UnitColumns;
  }
  [[nodiscard]] NANOVLLM_HD std::int64_t unit_index(std::int64_t row, std::int64_t unit) const {
    return row / kInt4TileRows * num_units() + unit;
  }
  /// Of a row and a group of the matrix.
  [[nodiscard]] __device__ __forceinline__ float* scale(std::int64_t row,
                                                        std::int64_t group) const {
    std::uint8_t* const unit = units + unit_index(row, group / 2) * kInt4UnitBytes;
    return reinterpret_cast<float*>(unit + kInt4CodeBytes) + group % 2 * kInt4TileRows +
           row % kInt4TileRows;
  }
  [[nodiscard]] __device__ __forceinline__ float* offset(std::int64_t row,
                                                         std::int64_t group) const {
    return offsets + unit_index(row, group / 2) * kInt4UnitFloats + group % 2 * kInt4TileRows +
           row % kInt4TileRows;
  }
};

namespace detail {

inline constexpr int kInt4PackRows = 16;  ///< rows that share bytes: what a block packs
inline constexpr int kInt4PackThreads = 256;

/// Where the codes come from: rows of bf16, which are quantised, or codes as they are.
struct Int4Source {
  MatrixView<const bf16> x;      ///< [n, cols], or none
  const std::int8_t* codes;      ///< [n, cols]
  const IntRows::Group* groups;  ///< [n, ⌈cols / 128⌉]
  std::int64_t rows, cols;
};

/// The codes of four neighbouring columns by a scale, and their squared error.
__device__ __forceinline__ float round_to_int4(const float (&x)[4], float scale, int (&codes)[4]) {
  float error = 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = max(-8, min(7, __float2int_rn(__fdiv_rn(x[i], scale))));
    const float miss = __fmaf_rn(-scale, static_cast<float>(codes[i]), x[i]);
    error = __fmaf_rn(miss, miss, error);
  }
  return error;
}

/// Quantises a group by a warp, four columns a lane; returns the scale, NaN where an element is not
/// finite.
__device__ __forceinline__ float quantise_group(const float (&x)[4], int (&codes)[4]) {
  std::uint32_t bits = 0;
#pragma unroll
  for (const float v : x) bits = max(bits, __float_as_uint(v) & 0x7fffffffu);
  const float largest = __uint_as_float(__reduce_max_sync(0xffffffffu, bits));
#pragma unroll
  for (int& code : codes) code = 0;
  if (largest == 0.f) return 0.f;
  if (!(largest < INFINITY)) return NAN;
  float best = largest / 8.f, least = INFINITY;
  for (int i = 0; i < 16; ++i) {
    const float scale = __fdiv_rn(largest, 8.f - .2f * static_cast<float>(i));
    int tried[4];
    const float error = warp_sum(round_to_int4(x, scale, tried));
    if (error < least) least = error, best = scale;
  }
  if (best == 0.f) return 0.f;  // so small that its eighth is no number above 0
  round_to_int4(x, best, codes);
  return best;
}

/// Packs 16 rows and 256 columns; kThreads is 256. Grid (units, groups of 16 rows).
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    pack_int4_kernel(const Int4Source from, const Int4View to, std::int64_t first_row) {
  __shared__ std::int8_t codes[kInt4PackRows][kInt4UnitColumns];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const std::int64_t unit = blockIdx.x, source_row = std::int64_t{blockIdx.y} * kInt4PackRows;
  const std::int64_t row = first_row + source_row;
  const std::int64_t num_groups = (from.cols + kInt4Group - 1) / kInt4Group;
  grid_dependency_wait();
  for (int i = warp; i < 2 * kInt4PackRows; i += kThreads / 32) {
    const int r = i / 2, half = i % 2;
    const std::int64_t group = 2 * unit + half, column = group * kInt4Group + 4 * lane;
    const bool exists = source_row + r < from.rows && group < num_groups;
    int four[4] = {};
    float scale = 0.f, offset = 0.f;
    if (exists && from.codes != nullptr) {
      for (int j = 0; j < 4; ++j) {
        if (column + j < from.cols) four[j] = from.codes[(source_row + r) * from.cols + column + j];
      }
      const IntRows::Group& of = from.groups[(source_row + r) * num_groups + group];
      scale = of.scale, offset = of.offset;
    } else if (exists) {
      float x[4] = {};
      for (int j = 0; j < 4; ++j) {
        if (column + j < from.cols) x[j] = to_float(*from.x.at(source_row + r, column + j));
      }
      scale = quantise_group(x, four);
    }
    for (int j = 0; j < 4; ++j)
      codes[r][half * kInt4Group + 4 * lane + j] = static_cast<std::int8_t>(four[j]);
    if (lane == 0 && exists) {
      *to.scale(row + r, group) = scale;
      if (to.offsets != nullptr) *to.offset(row + r, group) = offset;
    }
  }
  __syncthreads();
  // Eight bytes a thread: see the head of the file.
  const int pair = thread / 64, place = thread % 64 / 2, odd = thread % 2;
  const int g = place / 4, t = place % 4;
  std::uint32_t words[2];
  for (int h = 0; h < 2; ++h) {
    words[h] = 0;
    for (int i = 0; i < 4; ++i) {
      const int column = 32 * (2 * pair + odd) + 16 * h + 4 * t + i;
      const auto high = static_cast<std::uint32_t>(codes[g][column]) & 15u;
      const auto low = static_cast<std::uint32_t>(codes[g + 8][column]) & 15u;
      words[h] |= (high << 4 | low) << (8 * i);
    }
  }
  std::uint8_t* const at = to.units + to.unit_index(row, unit) * kInt4UnitBytes;
  const auto w = static_cast<int>(row % kInt4TileRows) / kInt4PackRows;
  *reinterpret_cast<uint2*>(at + (pair * 128 + 32 * w + place) * 16 + 8 * odd) = {words[0],
                                                                                  words[1]};
}

/// Writes rows [first, first + n) as bf16 to `to` [n, cols]; n and `first` are multiples of 64, but
/// for the last rows. Grid (units, tiles).
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    unpack_int4_kernel(const Int4View from, std::int64_t first, const MatrixView<bf16> to) {
  const std::int64_t unit = blockIdx.x, tile_row = std::int64_t{blockIdx.y} * kInt4TileRows;
  grid_dependency_wait();
  grid_dependency_launch();
  const std::uint8_t* const at =
      from.units + from.unit_index(first + tile_row, unit) * kInt4UnitBytes;
  // Rows of `to` take four elements at a time.
  const bool whole = from.cols % 4 == 0 && to.strides[0] % 4 == 0 &&
                     reinterpret_cast<std::uintptr_t>(to.data) % 8 == 0;
  for (int i = static_cast<int>(threadIdx.x); i < kInt4CodeBytes / 16; i += kThreads) {
    const uint4 bytes = *reinterpret_cast<const uint4*>(at + 16 * i);
    const std::uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    const int thread = i % 128, t = thread % 4;
    const std::int64_t group = 2 * unit + i / 256;
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const std::int64_t row = tile_row + thread / 32 * 16 + thread % 32 / 4 + 8 * low;
      if (row >= to.extent(0)) continue;
      const float scale = *from.scale(first + row, group);
      const float offset = from.offsets == nullptr ? 0.f : *from.offset(first + row, group);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const std::int64_t column =
            unit * kInt4UnitColumns + 32 * (2 * (i / 128) + word / 2) + 16 * (word % 2) + 4 * t;
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t byte = words[word] >> (8 * j) & 255u;
          const int code = static_cast<std::int8_t>(low != 0 ? byte << 4 : byte & 0xf0u) / 16;
          x[j] = __fmaf_rn(scale, static_cast<float>(code), offset);
        }
        bf16* const y = to.at(row, column);
        if (whole && column < from.cols) {
          *reinterpret_cast<uint2*>(y) = {pack_pair<bf16>(x[0], x[1]), pack_pair<bf16>(x[2], x[3])};
        } else {
          for (int j = 0; j < 4 && column + j < from.cols; ++j) y[j] = from_float<bf16>(x[j]);
        }
      }
    }
  }
}

}  // namespace detail

/// Owner of such a matrix, on the device that was current when it was made.
class Int4GroupMatrix {
 public:
  using StoredRows = IntRows;  ///< of a checkpoint, that it keeps

  static constexpr std::int64_t kRowGroup = detail::kInt4PackRows;

  Int4GroupMatrix() = default;

  /// All zeros. Throws ShapeError for a negative extent and CudaError when the device has no room.
  Int4GroupMatrix(std::int64_t rows, std::int64_t cols) : memory_(std::make_shared<Memory>()) {
    check<ShapeError>(rows >= 0 && cols >= 0, "Int4GroupMatrix: extents must be >= 0, got [", rows,
                      ", ", cols, "]");
    view_.rows = rows, view_.cols = cols;
    memory_->units = zeros<std::uint8_t>(num_units() * kInt4UnitBytes);
    view_.units = memory_->units.data();
  }

  [[nodiscard]] std::int64_t rows() const { return view_.rows; }
  [[nodiscard]] std::int64_t cols() const { return view_.cols; }
  /// Device memory held.
  [[nodiscard]] std::int64_t size_bytes() const {
    if (memory_ == nullptr) return 0;
    return static_cast<std::int64_t>(memory_->units.size_bytes() + memory_->offsets.size_bytes());
  }
  [[nodiscard]] Int4View view() const {
    Int4View out = view_;
    if (memory_ != nullptr) out.offsets = memory_->offsets.data();
    return out;
  }

  /// Quantises rows in host memory to rows [first_row, first_row + rows.extent(0)); `first_row` is
  /// a multiple of 16, and so is their number, but for a tensor's last ones. A group with an
  /// element that is not finite is NaN. Enqueued on `stream`; page-locked rows must stay until that
  /// is done, others are read before the call returns. Calls for disjoint rows may run at the same
  /// time. Throws ShapeError when the rows do not fit, and CudaError.
  void set_rows(std::int64_t first_row, MatrixView<const bf16> rows, const Context& context) {
    const std::int64_t count = rows.extent(0);
    check_rows(first_row, count, rows.extent(1));
    if (count == 0 || cols() == 0) return;
    HostCopies copies(context);
    const MatrixView<const bf16> x(copies.upload(rows.data, rows.strides[0], cols(), count),
                                   {count, cols()});
    pack({.x = x, .codes = nullptr, .groups = nullptr, .rows = count, .cols = cols()}, first_row,
         context);
    copies.finish();
  }

  /// Keeps rows as they are stored. False, with nothing done, where codes have more than 4 bits or
  /// scales change within 128 of these columns. Otherwise as above; the rows are read before the
  /// call returns.
  bool set_rows(std::int64_t first_row, const IntRows& rows, const Context& context) {
    check_rows(first_row, rows.rows, rows.columns);
    if (rows.bits > 4 || !rows.has_one_scale_in_each(kInt4Group)) return false;
    if (rows.rows == 0 || cols() == 0) return true;
    const DeviceGuard guard(context.device);
    if (rows.has_offsets) make_offsets();
    const auto count = static_cast<std::size_t>(rows.rows),
               width = static_cast<std::size_t>(cols());
    const auto num_groups = static_cast<std::size_t>(ceil_div(cols(), std::int64_t{kInt4Group}));
    std::vector<std::int8_t> codes(count * width);
    std::vector<IntRows::Group> groups(count * num_groups);
    const auto read = rows.read;
    for (std::size_t i = 0; i < count; ++i) {
      const auto row = static_cast<std::int64_t>(i);
      read(row, codes.data() + i * width);
      for (std::size_t g = 0; g < num_groups; ++g)
        groups[i * num_groups + g] = rows.group(row, static_cast<std::int64_t>(g) * kInt4Group);
    }
    HostCopies copies(context);
    const auto upload = [&](const auto& from) {
      const std::int64_t size = std::ssize(from);
      return copies.upload(from.data(), size, size, 1);
    };
    pack({.x = {},
          .codes = upload(codes),
          .groups = upload(groups),
          .rows = rows.rows,
          .cols = cols()},
         first_row, context);
    copies.finish();
    return true;
  }

  /// Enqueues rows [first, first + to.extent(0)) in bf16, `first` a multiple of 64.
  void unpack(std::int64_t first, const MatrixView<bf16>& to, const Context& context) const {
    launch(
        detail::unpack_int4_kernel<detail::kInt4PackThreads>,
        {.grid = dim3(static_cast<unsigned>(view_.num_units()),
                      static_cast<unsigned>(ceil_div(to.extent(0), std::int64_t{kInt4TileRows}))),
         .block = detail::kInt4PackThreads},
        context, view(), first, to);
  }

 private:
  struct Memory {
    DeviceBuffer<std::uint8_t> units;
    DeviceBuffer<float> offsets;
    std::mutex mutex;  ///< of who makes the offsets
  };

  [[nodiscard]] std::int64_t num_units() const { return view_.num_tiles() * view_.num_units(); }

  template <class T>
  [[nodiscard]] static DeviceBuffer<T> zeros(std::int64_t size) {
    DeviceBuffer<T> out(static_cast<std::size_t>(size));
    if (size == 0) return out;
    check_cuda(cudaMemset(out.data(), 0, out.size_bytes()), "cudaMemset");
    check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // ahead of other streams
    return out;
  }

  void make_offsets() {
    const std::lock_guard lock(memory_->mutex);
    if (memory_->offsets.size() == 0)
      memory_->offsets = zeros<float>(num_units() * kInt4UnitFloats);
  }

  void check_rows(std::int64_t first_row, std::int64_t rows, std::int64_t columns) const {
    check<ShapeError>(first_row >= 0 && first_row % kRowGroup == 0 &&
                          first_row + rows <= view_.rows && columns == view_.cols,
                      "Int4GroupMatrix: ", rows, " rows of ", columns, " at row ", first_row,
                      " do not fit a matrix [", view_.rows, ", ", view_.cols,
                      "], whose rows are set from multiples of ", kRowGroup, " on");
  }

  void pack(const detail::Int4Source& from, std::int64_t first_row, const Context& context) {
    launch(detail::pack_int4_kernel<detail::kInt4PackThreads>,
           {.grid = dim3(static_cast<unsigned>(view_.num_units()),
                         static_cast<unsigned>(ceil_div(from.rows, kRowGroup))),
            .block = detail::kInt4PackThreads},
           context, from, view(), first_row);
  }

  Int4View view_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace nanovllm::cuda
