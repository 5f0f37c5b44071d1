#pragma once
/// cuBLASLt: its handle, checked status codes, and a matrix product as it wants it described.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::cuda {

/// Memory that cuBLASLt may use between the kernels of one product.
inline constexpr std::size_t kBlasWorkspaceBytes = std::size_t{32} << 20;

/// Throws CudaError, naming `call`, the status and the place, unless `status` is success.
inline void check_cublas(cublasStatus_t status, const char* call,
                         const std::source_location& where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw CudaError(concat(call, ": ", cublasLtGetStatusName(status), ", ",
                         cublasLtGetStatusString(status), " (", where.file_name(), ":",
                         where.line(), ")"));
}

/// Owner of a cuBLASLt handle of the device that is current when it is made.
class BlasHandle {
 public:
  BlasHandle() { check_cublas(cublasLtCreate(&handle_), "cublasLtCreate"); }
  ~BlasHandle() {
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }
  BlasHandle(BlasHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  BlasHandle& operator=(BlasHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  [[nodiscard]] cublasLtHandle_t get() const { return handle_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
};

/// cuBLASLt's name of an element type.
template <Element T>
inline constexpr cudaDataType_t kCudaDataType = std::same_as<T, float>  ? CUDA_R_32F
                                                : std::same_as<T, half> ? CUDA_R_16F
                                                                        : CUDA_R_16BF;

/// An algorithm of cuBLASLt, with all its settings. (The library's own types are unnamed structs;
/// nvcc 13.0 fails on containers of those.)
struct BlasAlgorithm {
  cublasLtMatmulAlgo_t value;
};

/// What x and W of 8-bit floats are multiplied by: of x a float for each row and 128 columns, of W
/// the same, or one for each 128 × 128 block.
enum class BlasScaling : std::uint8_t { none, rows, blocks };

/// The floats, in device memory: of rows [⌈k / 128⌉, rows], of blocks [⌈n / 128⌉, ⌈k / 128⌉ rounded
/// up to a multiple of 4].
struct BlasScales {
  const float* x = nullptr;
  const float* weight = nullptr;
};

/// y [m, n] = x [m, k] · Wᵀ (+ y), W [n, k], all row-major: as cuBLASLt sees it, the column-major
/// product yᵀ = W · xᵀ. Products are summed in float32, without TF32. Lives on the stack: making
/// one allocates nothing.
class BlasProduct {
 public:
  /// `alignment` bytes divide all pointers and all rows.
  struct Shape {
    std::int64_t m, n, k;
    std::int64_t x_stride, y_stride;
    cudaDataType_t in, out;
    bool accumulate;
    std::uint32_t alignment;
    BlasScaling scaling = BlasScaling::none;

    auto operator<=>(const Shape&) const = default;
  };

  explicit BlasProduct(const Shape& shape, const BlasScales& scales = {}) : shape_(shape) {
    check_cublas(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "cublasLtMatmulDescInit");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_cublas(cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                &transposed, sizeof transposed),
                 "cublasLtMatmulDescSetAttribute(TRANSA)");
    init_layout(weight_, shape.in, shape.k, shape.n, shape.k);
    init_layout(x_, shape.in, shape.k, shape.m, shape.x_stride);
    init_layout(y_, shape.out, shape.n, shape.m, shape.y_stride);
    if (shape.scaling != BlasScaling::none) set_scales(scales);
  }

  /// Whether this version of cuBLASLt has products with such scales, on some devices.
  static constexpr bool kHasScaling = CUBLAS_VERSION >= 120900;

  static constexpr int kMaxHeuristics = 16;

  /// Up to `count` ≤ kMaxHeuristics algorithms that cuBLASLt thinks fast, best first; none when it
  /// has none. Partial sums of a split K are added in float32; without `split_k` there are none.
  [[nodiscard]] std::vector<BlasAlgorithm> heuristics(const BlasHandle& handle, int count,
                                                      std::size_t workspace_bytes, bool split_k) {
    cublasLtMatmulPreferenceOpaque_t preference;
    check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
      check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, which, &value, sizeof value),
                   "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    const auto scheme =
        split_k ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(scheme));
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(which, shape_.alignment);
    std::array<cublasLtMatmulHeuristicResult_t, kMaxHeuristics> found;
    int num_found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle.get(), &operation_, &weight_, &x_, &y_, &y_, &preference,
        std::min(count, kMaxHeuristics), found.data(), &num_found);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED)
      check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<BlasAlgorithm> out;
    for (int i = 0; i < num_found; ++i) {
      if (found[i].state == CUBLAS_STATUS_SUCCESS) out.push_back({found[i].algo});
    }
    return out;
  }

  /// Enqueues the product. False, with nothing enqueued, when `algorithm` does not do this shape.
  [[nodiscard]] bool run(const BlasHandle& handle, const BlasAlgorithm& algorithm, const void* x,
                         const void* weight, void* y, void* workspace, std::size_t workspace_bytes,
                         cudaStream_t stream) {
    const float alpha = 1.f, beta = shape_.accumulate ? 1.f : 0.f;
    const cublasStatus_t status =
        cublasLtMatmul(handle.get(), &operation_, &alpha, weight, &weight_, x, &x_, &beta, y, &y_,
                       y, &y_, &algorithm.value, workspace, workspace_bytes, stream);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
      return false;
    check_cublas(status, "cublasLtMatmul");
    return true;
  }

 private:
  void set_scales([[maybe_unused]] const BlasScales& scales) {
#if CUBLAS_VERSION >= 120900
    const auto set = [&](cublasLtMatmulDescAttributes_t which, const auto& value) {
      check_cublas(cublasLtMatmulDescSetAttribute(&operation_, which, &value, sizeof value),
                   "cublasLtMatmulDescSetAttribute(SCALE)");
    };
    const auto of_rows = static_cast<std::int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    const auto of_blocks = static_cast<std::int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
        shape_.scaling == BlasScaling::blocks ? of_blocks : of_rows);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, of_rows);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.weight);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.x);
#endif
  }

  /// A column-major matrix; a single column's stride does not matter, but has to cover its rows.
  static void init_layout(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type,
                          std::int64_t rows, std::int64_t cols, std::int64_t stride) {
    check_cublas(
        cublasLtMatrixLayoutInit(&layout, type, static_cast<std::uint64_t>(rows),
                                 static_cast<std::uint64_t>(cols), cols == 1 ? rows : stride),
        "cublasLtMatrixLayoutInit");
  }

  Shape shape_;
  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t weight_, x_, y_;
};

}  // namespace nanovllm::cuda
