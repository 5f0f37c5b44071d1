#pragma once
/// The CUDA backend's weight type: a row-major matrix in device memory.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"

namespace nanovllm::cuda {

/// Owner of a weight matrix [rows, cols] on the device that was current when it was made. Rows are
/// dense and follow each other without padding, as in a checkpoint; the first is 256-byte aligned.
/// Matrices that are made together share the memory, which lives as long as any of them.
template <Element T>
class DeviceMatrix {
 public:
  using value_type = T;

  DeviceMatrix() = default;

  /// The elements have no initial value. Throws ShapeError for a negative extent and CudaError when
  /// the device has no room.
  DeviceMatrix(std::int64_t rows, std::int64_t cols)
      : DeviceMatrix(std::move(stacked(1, rows, cols).front())) {}

  DeviceMatrix(DeviceMatrix&&) noexcept = default;
  DeviceMatrix& operator=(DeviceMatrix&&) noexcept = default;

  /// `count` such matrices in one allocation, at equal distances.
  [[nodiscard]] static std::vector<DeviceMatrix> stacked(std::int64_t count, std::int64_t rows,
                                                         std::int64_t cols) {
    check<ShapeError>(rows >= 0 && cols >= 0, "DeviceMatrix: extents must be >= 0, got [", rows,
                      ", ", cols, "]");
    constexpr std::int64_t kAlignment = 256 / sizeof(T);
    const std::int64_t stride = align_up(rows * cols, kAlignment);
    const auto buffer = std::make_shared<DeviceBuffer<T>>(
        static_cast<std::size_t>(count > 1 ? count * stride : count * rows * cols));
    std::vector<DeviceMatrix> out(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      DeviceMatrix& matrix = out[static_cast<std::size_t>(i)];
      matrix.rows_ = rows, matrix.cols_ = cols;
      matrix.buffer_ = buffer, matrix.offset_ = i * stride;
    }
    return out;
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  [[nodiscard]] T* data() { return place(); }
  [[nodiscard]] const T* data() const { return place(); }
  [[nodiscard]] MatrixView<const T> view() const { return {data(), {rows_, cols_}}; }

  /// Device memory held.
  [[nodiscard]] std::int64_t size_bytes() const {
    return rows_ * cols_ * static_cast<std::int64_t>(sizeof(T));
  }

  /// Sets rows [first_row, first_row + rows.extent(0)) from rows in host memory, and returns when
  /// they are there. Calls for disjoint rows may run at the same time. Throws ShapeError when the
  /// rows do not fit.
  void set_rows(std::int64_t first_row, MatrixView<const T> rows) {
    set_rows(first_row, rows, nullptr);
    check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  /// The same, enqueued on `stream`: page-locked rows must stay until the copy is done, others are
  /// read before the call returns.
  void set_rows(std::int64_t first_row, MatrixView<const T> rows, cudaStream_t stream) {
    const std::int64_t count = rows.extent(0);
    check<ShapeError>(first_row >= 0 && first_row + count <= rows_ && rows.extent(1) == cols_,
                      "DeviceMatrix: rows of shape ", shape_string(rows), " at row ", first_row,
                      " do not fit a matrix [", rows_, ", ", cols_, "]");
    if (rows.empty()) return;
    const std::size_t width = static_cast<std::size_t>(cols_) * sizeof(T);
    const std::size_t pitch = static_cast<std::size_t>(rows.strides[0]) * sizeof(T);
    check_cuda(
        cudaMemcpy2DAsync(data() + first_row * cols_, width, rows.data, count > 1 ? pitch : width,
                          width, static_cast<std::size_t>(count), cudaMemcpyHostToDevice, stream),
        "cudaMemcpy2DAsync");
  }

 private:
  [[nodiscard]] T* place() const {
    return buffer_ == nullptr || buffer_->data() == nullptr ? nullptr : buffer_->data() + offset_;
  }

  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::shared_ptr<DeviceBuffer<T>> buffer_;
  std::int64_t offset_ = 0;  ///< in elements
};

}  // namespace nanovllm::cuda
