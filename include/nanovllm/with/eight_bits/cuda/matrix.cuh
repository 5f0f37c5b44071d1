#pragma once
/// The CUDA backend's matrix of 8-bit floats.

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/with/eight_bits/cuda/host_copies.cuh"
#include "nanovllm/with/eight_bits/cuda/quantise.cuh"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm::cuda {

/// A matrix [rows, cols] of e4m3 in device memory: element (i, j) is
/// data[i · stride + j] · scales[j / 128 · scale_stride + i].
struct Fp8View {
  const fp8_e4m3* data = nullptr;
  const float* scales = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::int64_t stride = 0;  ///< a multiple of 128; zeros from column `cols` on
  std::int64_t scale_stride = 0;
  /// [⌈rows / 128⌉, a multiple of 4]: the same scales, if those of blocks of 128 rows are equal.
  const float* blocks = nullptr;

  [[nodiscard]] std::int64_t num_groups() const { return ceil_div(cols, kFp8Group); }
};

/// Owner of a matrix [rows, cols] of e4m3 with a float for each row and 128 columns, on the device
/// that was current when it was made. Has the values of `cpu::Fp8Matrix`, bit for bit. Matrices
/// that are made together share the memory, which lives as long as any of them.
class Fp8Matrix {
 public:
  using StoredRows = Fp8Rows;  ///< of a checkpoint, that it keeps

  static constexpr std::int64_t kBlock = kFp8Group;  ///< rows and columns quantised together
  static constexpr std::int64_t kRowGroup = kBlock;
  static constexpr bool kAnyFirstRow = true;  ///< a tensor may begin anywhere

  Fp8Matrix() = default;

  /// All zeros. Throws ShapeError for a negative extent and CudaError when the device has no room.
  Fp8Matrix(std::int64_t rows, std::int64_t cols)
      : Fp8Matrix(std::move(stacked(1, rows, cols).front())) {}

  /// `count` such matrices in one piece of memory, at equal distances.
  [[nodiscard]] static std::vector<Fp8Matrix> stacked(std::int64_t count, std::int64_t rows,
                                                      std::int64_t cols) {
    check<ShapeError>(rows >= 0 && cols >= 0, "Fp8Matrix: extents must be >= 0, got [", rows, ", ",
                      cols, "]");
    const std::int64_t stride = align_up(cols, kBlock), groups = stride / kBlock;
    const std::int64_t scale_stride = align_up(rows, std::int64_t{4});
    const Sizes sizes{rows * stride, groups * scale_stride,
                      ceil_div(rows, kBlock) * align_up(groups, std::int64_t{4})};
    const auto memory = std::make_shared<Memory>(Memory{zeros<fp8_e4m3>(count * sizes.data),
                                                        zeros<float>(count * sizes.scales),
                                                        zeros<float>(count * sizes.blocks)});
    std::vector<Fp8Matrix> out(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      Fp8Matrix& matrix = out[static_cast<std::size_t>(i)];
      matrix.rows_ = rows, matrix.cols_ = cols;
      matrix.stride_ = stride, matrix.scale_stride_ = scale_stride;
      matrix.memory_ = memory, matrix.sizes_ = sizes, matrix.place_ = i;
    }
    return out;
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  /// Device memory held.
  [[nodiscard]] std::int64_t size_bytes() const {
    constexpr std::int64_t kFloat = sizeof(float);
    return sizes_.data + (sizes_.scales + sizes_.blocks) * kFloat;
  }
  [[nodiscard]] Fp8View view() const {
    return {.data = data(),
            .scales = scales(),
            .rows = rows_,
            .cols = cols_,
            .stride = stride_,
            .scale_stride = scale_stride_,
            .blocks = has_blocks_.value ? blocks() : nullptr};
  }

  /// Quantises rows in host memory to rows [first_row, first_row + rows.extent(0)), in blocks that
  /// begin with the first of them: a block's scale is its largest |x| / 448, NaN if there is one
  /// without a number. Enqueued on `stream`; page-locked rows must stay until that is done, others
  /// are read before the call returns. Calls for disjoint rows may run at the same time. Throws
  /// ShapeError when the rows do not fit, and CudaError.
  void set_rows(std::int64_t first_row, MatrixView<const bf16> rows, const Context& context) {
    const std::int64_t count = rows.extent(0);
    check_rows(first_row, count, rows.extent(1));
    if (count == 0 || cols_ == 0) return;
    if (first_row % kBlock != 0) has_blocks_.value = false;
    HostCopies copies(context);
    const bf16* const copy = copies.upload(rows.data, rows.strides[0], cols_, count);
    quantise_weight(MatrixView<const bf16>(copy, {count, cols_}), target(first_row), context);
    copies.finish();
  }

  /// Keeps rows as they are stored. False, with nothing done, where their scales change within 128
  /// of these columns. Otherwise as above; the rows are read before the call returns.
  bool set_rows(std::int64_t first_row, const Fp8Rows& rows, const Context& context) {
    check_rows(first_row, rows.rows, rows.columns);
    if (!rows.has_one_scale_in_each(kBlock)) return false;
    if (rows.rows == 0 || cols_ == 0) return true;
    const std::int64_t groups = stride_ / kBlock;
    std::vector<float> scales(static_cast<std::size_t>(rows.rows * groups));
    std::vector<float> blocks(
        static_cast<std::size_t>(ceil_div(rows.rows, kBlock) * align_up(groups, std::int64_t{4})));
    bool has_blocks = first_row % kBlock == 0;
    for (std::int64_t g = 0; g < groups; ++g) {
      for (std::int64_t i = 0; i < rows.rows; ++i) {
        const float scale = rows.scale(i, g * kBlock);
        scales[static_cast<std::size_t>(g * rows.rows + i)] = scale;
        float& block =
            blocks[static_cast<std::size_t>(i / kBlock * align_up(groups, std::int64_t{4}) + g)];
        if (i % kBlock == 0) block = scale;
        has_blocks = has_blocks && block == scale;
      }
    }
    if (!has_blocks) has_blocks_.value = false;
    const Fp8Target to = target(first_row);
    HostCopies copies(context);
    copies.copy(to.data, stride_, rows.data, rows.stride, cols_, rows.rows);
    copies.copy(to.scales, scale_stride_, scales.data(), rows.rows, rows.rows, groups);
    if (has_blocks) {
      const auto count = static_cast<std::int64_t>(blocks.size());
      copies.copy(to.blocks, count, blocks.data(), count, count, 1);
    }
    copies.finish();
    return true;
  }

 private:
  /// A flag that threads may clear at the same time.
  struct Flag {
    std::atomic<bool> value = true;
    Flag() = default;
    Flag(Flag&& other) noexcept : value(other.value.load()) {}
    Flag& operator=(Flag&& other) noexcept {
      value = other.value.load();
      return *this;
    }
  };

  template <class T>
  [[nodiscard]] static DeviceBuffer<T> zeros(std::int64_t size) {
    DeviceBuffer<T> out(static_cast<std::size_t>(size));
    if (size == 0) return out;
    check_cuda(cudaMemset(out.data(), 0, out.size_bytes()), "cudaMemset");
    check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // ahead of other streams
    return out;
  }

  void check_rows(std::int64_t first_row, std::int64_t rows, std::int64_t columns) const {
    check<ShapeError>(first_row >= 0 && first_row + rows <= rows_ && columns == cols_,
                      "Fp8Matrix: ", rows, " rows of ", columns, " at row ", first_row,
                      " do not fit a matrix [", rows_, ", ", cols_, "]");
  }

  [[nodiscard]] Fp8Target target(std::int64_t first_row) {
    const std::int64_t block_stride = align_up(stride_ / kBlock, std::int64_t{4});
    return {.data = data() + first_row * stride_,
            .scales = scales() + first_row,
            .blocks = blocks() + first_row / kBlock * block_stride,
            .stride = stride_,
            .scale_stride = scale_stride_,
            .block_stride = block_stride};
  }

  /// Elements of a matrix.
  struct Sizes {
    std::int64_t data = 0, scales = 0, blocks = 0;
  };
  struct Memory {
    DeviceBuffer<fp8_e4m3> data;
    DeviceBuffer<float> scales, blocks;
  };

  template <class T>
  [[nodiscard]] static T* part(DeviceBuffer<T>& buffer, std::int64_t offset) {
    return buffer.data() == nullptr ? nullptr : buffer.data() + offset;
  }
  [[nodiscard]] fp8_e4m3* data() const {
    return memory_ == nullptr ? nullptr : part(memory_->data, place_ * sizes_.data);
  }
  [[nodiscard]] float* scales() const {
    return memory_ == nullptr ? nullptr : part(memory_->scales, place_ * sizes_.scales);
  }
  [[nodiscard]] float* blocks() const {
    return memory_ == nullptr ? nullptr : part(memory_->blocks, place_ * sizes_.blocks);
  }

  std::int64_t rows_ = 0, cols_ = 0, stride_ = 0, scale_stride_ = 0;
  Sizes sizes_;
  std::int64_t place_ = 0;  ///< among those that share the memory
  std::shared_ptr<Memory> memory_;
  Flag has_blocks_;
};

}  // namespace nanovllm::cuda
