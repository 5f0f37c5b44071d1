#pragma once
/// SwiGLU of rows rounded to 8 bits, by 8-bit weights, in one kernel after the rounding, where the
/// device's architecture has one; and the choice between its forms and the parts, by time. The
/// kernel rounds where the parts do; the order of sums is its own.

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/hopper/hopper.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/linear/dispatch/tuned_plans.hpp"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/ops/input_norm.hpp"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/mid_m_scales.cuh"
#include "nanovllm/with/eight_bits/cuda/products.cuh"

namespace nanovllm::cuda {

/// The kernel of architecture A for such layers, after the rounding of x: none, but where this is
/// specialised.
template <class A>
struct Fp8SwigluOf {
  /// How many forms it has for m rows by W [n, k].
  [[nodiscard]] static constexpr int num_forms(std::int64_t /*m*/, std::int64_t /*n*/) { return 0; }
  /// (activations, rows, weight, out, form, tensor maps, context): false, with nothing enqueued,
  /// where it does not take the operands.
  [[nodiscard]] static bool run(const Fp8Activations&, std::int64_t, const Fp8View&,
                                const MatrixView<bf16>&, int, TensorMaps&, const Context&) {
    return false;
  }
};

template <>
struct Fp8SwigluOf<Hopper> {
  [[nodiscard]] static constexpr int num_forms(std::int64_t m, std::int64_t n) {
    return m <= kMaxMidMRows && n % 8 == 0 ? kMidMForms.size(ProductKind::gated) : 0;
  }
  [[nodiscard]] static bool run(const Fp8Activations& x, std::int64_t rows, const Fp8View& weight,
                                const MatrixView<bf16>& out, int form, TensorMaps& maps,
                                const Context& context) {
    return mid_m_swiglu({x.data, {rows, x.stride}}, {weight.data, {weight.rows, weight.stride}},
                        {.x = x.scales,
                         .weight = weight.scales,
                         .x_stride = x.scale_stride,
                         .weight_stride = weight.scale_stride},
                        out, form, maps, context);
  }
};

/// What such layers of one device share: descriptions of tensors and the choices. Serves one stream
/// and one host thread at a time.
template <class Architectures>
class Fp8Swiglu {
 public:
  /// Enqueues the gated layer by the form that was timed fastest, or the first where none was
  /// timed. False, with nothing enqueued: run its parts.
  [[nodiscard]] bool run(const Fp8Layer& layer, Fp8Products& products, const Context& context) {
    const int* const form = forms_.find(key_of(layer));
    return run_form(layer, form == nullptr ? 0 : *form, products, context);
  }

  /// Chooses by timing for up to `max_rows` rows. `run_parts(layer, gate_up)` enqueues the parts,
  /// with gates and ups in `gate_up`; false where it does not. Blocks the host.
  template <class RunParts>
  void tune(std::span<const Fp8Matrix* const> weights, const InputNorm<bf16>& norm,
            std::int64_t max_rows, Fp8Products& products, const Context& context,
            const RunParts& run_parts) {
    const Fp8View first = weights[0]->view();
    if (first.rows == 0 || first.cols == 0) return;
    const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
    DeviceBuffer<bf16> x, y, out;
    for (const std::int64_t bucket : kRowBuckets) {
      if (bucket <= kMaxFp8FewRows) continue;
      const std::int64_t rows = std::min(bucket, max_rows);
      const int num_forms = num_forms_for(bucket, first.rows, context);
      if (rows <= kMaxFp8FewRows || num_forms == 0) return;
      x = noise(rows * first.cols, context);
      y = noise(rows * first.rows, context);
      out = noise(rows * (first.rows / 2), context);
      const auto run_way = [&](int i, int form) {
        const Fp8Layer layer{
            .x = MatrixView<const bf16>(x.data(), {rows, first.cols}),
            .norm = norm,
            .weight = weights[static_cast<std::size_t>(i) % weights.size()]->view(),
            .y = {out.data(), {rows, first.rows / 2}},
            .gated = true};
        return form == kParts ? run_parts(layer, MatrixView<bf16>(y.data(), {rows, first.rows}))
                              : run_form(layer, form, products, context);
      };
      std::vector<int> ways = {kParts};
      for (int form = 0; form < num_forms; ++form) ways.push_back(form);
      detail::time_plans(
          forms_, Key{first.rows, first.stride, bucket}, ways,
          detail::calls_to_time(rows, weights[0]->size_bytes(), context), deadline, context,
          [&](int form) { return run_way(0, form); },
          [&](int i, int form) { static_cast<void>(run_way(i, form)); });
      if (bucket >= max_rows || is_over(deadline)) return;
    }
  }

 private:
  static constexpr int kParts = -1;  ///< instead of a form

  struct Key {
    std::int64_t n, k, bucket;
    auto operator<=>(const Key&) const = default;
  };
  [[nodiscard]] static Key key_of(const Fp8Layer& layer) {
    return {layer.weight.rows, layer.weight.stride, row_bucket(layer.x.extent(0))};
  }

  /// For so many rows of x and n rows of W. None where no product rounds activations.
  [[nodiscard]] static int num_forms_for(std::int64_t rows, std::int64_t n,
                                         const Context& context) {
    if (!Fp8Products::is_available(context)) return 0;
    return Architectures::choose(
        context, [&](auto native) { return Fp8SwigluOf<decltype(native)>::num_forms(rows, n); });
  }

  [[nodiscard]] static DeviceBuffer<bf16> noise(std::int64_t size, const Context& context) {
    DeviceBuffer<bf16> out(static_cast<std::size_t>(size));
    detail::fill_noise(out.data(), size, context);
    return out;
  }

  [[nodiscard]] bool run_form(const Fp8Layer& layer, int form, Fp8Products& products,
                              const Context& context) {
    const std::int64_t rows = layer.x.extent(0);
    if (form == kParts || form >= num_forms_for(rows, layer.weight.rows, context)) return false;
    const std::optional<Fp8Activations> x = products.round(layer, context);
    return x && Architectures::choose(context, [&](auto native) {
             return Fp8SwigluOf<decltype(native)>::run(*x, rows, layer.weight, layer.y, form, maps_,
                                                       context);
           });
  }

  TensorMaps maps_;
  TunedPlans<Key, int> forms_;
};

}  // namespace nanovllm::cuda
