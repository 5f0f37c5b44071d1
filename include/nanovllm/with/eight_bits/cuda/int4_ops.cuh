#pragma once
/// Dense layers of bf16 by weights in 4-bit integers (`Int4Group128`), on the GPU.
///
/// Up to `kMostInt4FewRows` rows of x are multiplied by int4_few_rows.cuh, where the device has it,
/// from `kFewestInt4MidRows` on with SwiGLU inside.
/// For more, and on other devices, W becomes bf16 in scratch memory, and the kernels of 16 bits
/// multiply. Up to that number a row's bits do not depend on the other rows; above it they are
/// those of the bf16 kernels, which choose by the number of rows.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/linear/tune/layer_tuner.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/projections.hpp"
#include "nanovllm/with/eight_bits/cuda/int4_few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_matrix.cuh"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm {

template <>
struct Int4GroupMatrixOf<CudaBackend> {
  using type = cuda::Int4GroupMatrix;
};

namespace cuda {

/// Most rows of x for which W is read as it is, 32 rows at a time.
inline constexpr std::int64_t kMostInt4FewRows = 96;

/// Scratch memory of one device: where W becomes bf16, as many rows of it as there is room for, and
/// the planes of x.
class Int4Scratch {
 public:
  /// Allocates for a matrix, where there is too little; not during a capture.
  void reserve(const Int4View& weight) {
    grow(rows_,
         static_cast<std::size_t>(std::min(weight.rows, std::max(kMostElements / weight.cols,
                                                                 std::int64_t{kInt4TileRows})) *
                                  weight.cols));
    const Int4PlaneSizes sizes(kMostInt4FewRows, weight);
    grow(planes_, sizes.plane_bytes);
    grow(scales_, sizes.floats);
    grow(sums_, sizes.floats);
  }
  [[nodiscard]] detail::Int4Planes planes() {
    return {planes_.data(), scales_.data(), sums_.data()};
  }
  /// Room for up to `rows` rows of `cols` columns: all, or a multiple of 64.
  [[nodiscard]] MatrixView<bf16> take(std::int64_t rows, std::int64_t cols) {
    const std::int64_t count = static_cast<std::int64_t>(rows_.size()) / cols;
    return {rows_.data(),
            {rows <= count ? rows : align_down(count, std::int64_t{kInt4TileRows}), cols}};
  }

 private:
  static constexpr std::int64_t kMostElements = std::int64_t{1} << 27;  ///< 256 MiB

  template <class T>
  static void grow(DeviceBuffer<T>& buffer, std::size_t size) {
    if (size > buffer.size()) buffer = DeviceBuffer<T>(), buffer = DeviceBuffer<T>(size);
  }

  DeviceBuffer<bf16> rows_;
  DeviceBuffer<std::uint8_t> planes_;
  DeviceBuffer<float> scales_, sums_;
};

/// Enqueues the layer by W in bf16.
template <class State>
void int4_linear_in_bf16(const Int4GroupMatrix& weight, const Int4Layer& layer, State& state) {
  auto& scratch = state.parts.template of<Int4Scratch>();
  const MatrixView<bf16> room = scratch.take(weight.rows(), weight.cols());
  for (std::int64_t first = 0; first < weight.rows(); first += room.extent(0)) {
    const std::int64_t end = std::min(first + room.extent(0), weight.rows());
    const MatrixView<bf16> rows = room.slice(0, end - first);
    weight.unpack(first, rows, state.context);
    MatrixView<bf16> y = layer.y;
    y.data += first, y.extents[1] = end - first;
    state.dense.run(DenseLayer<bf16>{.x = layer.x,
                                     .weight = {rows.data, rows.extents, rows.strides},
                                     .y = y,
                                     .accumulate = layer.accumulate},
                    state.context);
  }
}

/// Enqueues the layer by W as it is. False, with nothing enqueued, where that is not for these rows
/// or this device.
template <class State>
[[nodiscard]] bool int4_linear_as_it_is(const Int4Layer& layer, State& state) {
  auto& scratch = state.parts.template of<Int4Scratch>();
  scratch.reserve(layer.weight);
  if (layer.x.extent(0) > kMostInt4FewRows || !int4_few_rows_takes(layer, state.context))
    return false;
  int4_few_rows(layer, scratch.planes(), state.context);
  return true;
}

/// Contract: ops/linear.hpp. Allocates no device memory after the first call and does not
/// synchronise; legal during capture, if the same shape has run before.
template <class State>
void run_op(const LinearArgs<bf16, Int4GroupMatrix, bf16>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "linear: no weight given");
  validate(args);
  if (args.y.empty()) return;
  check<ShapeError>(args.weight->cols() > 0, "linear: a weight of 4-bit integers has no columns");
  const Int4Layer layer{
      .x = args.x, .weight = args.weight->view(), .y = args.y, .accumulate = args.accumulate};
  if (!int4_linear_as_it_is(layer, state)) int4_linear_in_bf16(*args.weight, layer, state);
}

/// Contract: ops/gated_linear.hpp.
template <class State>
void run_op(const GatedLinearArgs<bf16, Int4GroupMatrix, bf16>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "gated_linear: no weight given");
  validate(args);
  if (args.out.empty()) return;
  const auto run = [&](const auto& part) { run_op(part, state); };
  // SwiGLU is inside from as many rows on, if a tile has gates alone or ups.
  const Int4View weight = args.weight->view();
  if (args.x.extent(0) < kFewestInt4MidRows || weight.rows % (2 * kInt4TileRows) != 0)
    return compose(args, run);
  Int4Layer layer{.x = args.x, .weight = weight, .y = args.out, .gated = true};
  if (args.norm) {
    run(RmsNormArgs<bf16>{
        .x = args.x, .weight = args.norm.weight, .eps = args.norm.eps, .out = args.normed});
    layer.x = args.normed;
  }
  if (int4_linear_as_it_is(layer, state)) return;
  run(LinearArgs<bf16, Int4GroupMatrix, bf16>{
      .x = layer.x, .weight = args.weight, .y = args.gate_up});
  run(SiluMulArgs<bf16>{.gate_up = args.gate_up, .out = args.out});
}

/// Contract: ops/project_qkv.hpp.
template <KvFormat Kv, class State>
void run_op(const ProjectQkvArgs<bf16, Int4GroupMatrix, Kv, bf16>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "project_qkv: no weight given");
  validate(args);
  if (!args.qkv.empty()) compose(args, [&](const auto& part) { run_op(part, state); });
}

/// Makes room for the largest matrix, and chooses how the logits run by timing. Blocks the host.
template <class A, class W, class Heads, class Head, class State>
void tune_network(const Projections<A, Int4GroupMatrix, W, Heads, Head>& network, State& state) {
  for (const auto& one : network.list) {
    const Int4View first = one.matrices[0]->view();
    if (first.cols > 0) state.parts.template of<Int4Scratch>().reserve(first);
  }
  tune_logits(network.logits, state);
}

}  // namespace cuda

}  // namespace nanovllm
