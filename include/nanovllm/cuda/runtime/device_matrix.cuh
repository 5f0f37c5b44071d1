#pragma once
/// The CUDA backend's weight type: a row-major matrix in device memory.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"

namespace nanovllm::cuda {

/// Owner of a weight matrix [rows, cols] on the device that was current when it was made. Rows are
/// dense and follow each other without padding, as in a checkpoint; the first is 256-byte aligned.
template <Element T>
class DeviceMatrix {
 public:
  using value_type = T;

  DeviceMatrix() = default;

  /// The elements have no initial value. Throws ShapeError for a negative extent and CudaError when
  /// the device has no room.
  DeviceMatrix(std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols) {
    check<ShapeError>(rows >= 0 && cols >= 0, "DeviceMatrix: extents must be >= 0, got [", rows,
                      ", ", cols, "]");
    data_ = DeviceBuffer<T>(static_cast<std::size_t>(rows * cols));
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  [[nodiscard]] T* data() { return data_.data(); }
  [[nodiscard]] const T* data() const { return data_.data(); }
  [[nodiscard]] MatrixView<const T> view() const { return {data(), {rows_, cols_}}; }

  /// Device memory held.
  [[nodiscard]] std::int64_t size_bytes() const {
    return static_cast<std::int64_t>(data_.size_bytes());
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
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  DeviceBuffer<T> data_;
};

}  // namespace nanovllm::cuda
