// Dense layers of Qwen3-8B by weights in 8-bit floats, on few rows and on more, and few rows of
// `project_qkv` in one kernel and by its parts: bytes are those of the weights and their scales.
// Argument: JSON file.

#include <string>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"
#include "nanovllm/cuda/elementwise/rowwise.cuh"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
#include "nanovllm/with/eight_bits/cuda/products.cuh"
#include "nanovllm/with/eight_bits/cuda/swiglu.cuh"
#include "nanovllm/with/eight_bits/int8_kv.hpp"

namespace nanovllm::bench {
namespace {

constexpr std::int64_t kMostRows = 2048, kWidest = 24576, kLongest = 12288;

struct Bench {
  cuda::Stream stream;
  cuda::Context context = cuda::Context::on(stream.get());
  cuda::DeviceBuffer<bf16> norm{kLongest}, x{kMostRows * kLongest}, y{kMostRows * kWidest},
      gate_up{kMostRows * kWidest};
  cuda::Fp8Products products;
  cuda::Fp8Swiglu<cuda::DeviceArchitectures> swiglu;
  Report report;

  struct Shape {
    const char* name;
    std::int64_t n, k;  ///< n rows of W
    bool normed, gated, accumulate;
  };

  [[nodiscard]] std::vector<cuda::Fp8Matrix> matrices(const Shape& shape) {
    std::vector<cuda::Fp8Matrix> out;
    std::vector<bf16> noise(std::size_t(shape.n * shape.k));
    for (std::size_t i = 0; i < noise.size(); ++i)
      noise[i] = bf16(static_cast<float>(i * 2654435761u % 4096) / 4096.f - 0.5f);
    // As many as do not fit into the cache.
    while (out.size() < 2 ||
           std::int64_t(out.size()) * shape.n * shape.k < 3 * std::int64_t(context.l2_bytes)) {
      out.emplace_back(shape.n, shape.k);
      out.back().set_rows(0, MatrixView<const bf16>(noise.data(), {shape.n, shape.k}), context);
    }
    stream.synchronize();
    return out;
  }

  void run(const Shape& shape) {
    const std::vector<cuda::Fp8Matrix> weights = matrices(shape);
    std::vector<const cuda::Fp8Matrix*> pointers;
    for (const auto& weight : weights) pointers.push_back(&weight);
    products.tune(pointers, shape.accumulate, kMostRows, context);
    const auto run_parts = [&](cuda::Fp8Layer layer, MatrixView<bf16> gate_up) {
      const MatrixView<bf16> out = layer.y;
      layer.y = gate_up, layer.gated = false;
      if (!products.run(layer, context)) return false;
      cuda::silu_mul(SiluMulArgs<bf16>{.gate_up = gate_up, .out = out}, context);
      return true;
    };
    if (shape.gated)
      swiglu.tune(pointers, {VectorView<const bf16>(norm.data(), {shape.k}), 1e-6f}, kMostRows,
                  products, context, run_parts);
    const double bytes = double(shape.n * shape.k) * (1 + 4. / 128);
    for (const std::int64_t m : {1, 4, 8, 12, 16, 24, 32, 64, 128, 256, 2048}) {
      const bool few = m <= cuda::kMaxFp8FewRows;
      const auto layer = [&](int i) {
        const std::int64_t n = shape.gated ? shape.n / 2 : shape.n;
        return cuda::Fp8Layer{.x = MatrixView<const bf16>(x.data(), {m, shape.k}),
                              .norm = {shape.normed ? VectorView<const bf16>(norm.data(), {shape.k})
                                                    : VectorView<const bf16>{},
                                       1e-6f},
                              .weight = weights[std::size_t(i) % weights.size()].view(),
                              .y = MatrixView<bf16>(y.data(), {m, n}),
                              .accumulate = shape.accumulate,
                              .gated = shape.gated};
      };
      const Timing us = time_in_graph(
          context,
          [&](int i) {
            if (few) return cuda::fp8_few_rows(layer(i), context);
            if (!shape.gated) {
              static_cast<void>(products.run(layer(i), context));
            } else if (!swiglu.run(layer(i), products, context)) {
              run_parts(layer(i), MatrixView<bf16>(gate_up.data(), {m, shape.n}));
            }
          },
          16);
      report.add(std::string(shape.name) + " M=" + std::to_string(m), us, bytes,
                 2. * double(m * shape.n * shape.k));
    }
  }

  /// Few rows from the residual stream to attention, with a cache of `Kv`.
  template <class Kv>
  void run_heads(const Shape& shape, std::int64_t num_kv_heads) {
    constexpr std::int64_t kHeadDim = 128, kBlocks = 4, kBlockSize = 64, kPositions = 512;
    using Stored = KvStored<Kv>;
    const std::vector<cuda::Fp8Matrix> weights = matrices(shape);
    KvView<Kv> kv{nullptr, kBlocks, kBlockSize, num_kv_heads, kHeadDim};
    cuda::DeviceBuffer<Stored> cache(std::size_t(kBlocks * kv.block_stride()));
    kv.data = cache.data();
    const std::vector<std::int32_t> positions{3, 70, 500, 9, 8, 200, 1, 77};
    const std::vector<Slot> slots{0, 9, 70, 131, 200, 201, 64, 255};
    cuda::DeviceBuffer<std::int32_t> positions_on_device(positions.size());
    cuda::DeviceBuffer<Slot> slots_on_device(slots.size());
    cuda::DeviceBuffer<float> angles(kPositions * kHeadDim);
    cuda::detail::fill_noise(angles.data(), kPositions * kHeadDim, context);
    cuda::check_cuda(cudaMemcpy(positions_on_device.data(), positions.data(),
                                positions.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
                     "cudaMemcpy");
    cuda::check_cuda(cudaMemcpy(slots_on_device.data(), slots.data(), slots.size() * sizeof(Slot),
                                cudaMemcpyHostToDevice),
                     "cudaMemcpy");
    const double bytes = double(shape.n * shape.k) * (1 + 4. / 128);
    for (const std::int64_t m : {1, 2, 4, 8}) {
      const auto args = [&](int i) {
        return ProjectQkvArgs<bf16, cuda::Fp8Matrix, Kv, bf16>{
            .x = MatrixView<const bf16>(x.data(), {m, shape.k}),
            .norm = {VectorView<const bf16>(norm.data(), {shape.k}), 1e-6f},
            .weight = &weights[std::size_t(i) % weights.size()],
            .heads = {.q_norm = {norm.data(), {kHeadDim}},
                      .k_norm = {norm.data() + kHeadDim, {kHeadDim}},
                      .positions = {positions_on_device.data(), {m}},
                      .cos_sin = {angles.data(), {kPositions, kHeadDim}},
                      .slots = {slots_on_device.data(), {m}}},
            .kv = kv,
            .qkv = MatrixView<bf16>(y.data(), {m, shape.n}),
            .normed = {}};
      };
      const auto by_parts = [&](int i) {
        const auto of = args(i);
        const cuda::Fp8Layer layer{
            .x = of.x, .norm = of.norm, .weight = of.weight->view(), .y = of.qkv};
        cuda::fp8_few_rows(layer, context);
        cuda::qk_norm_rope_store(head_args(of), context);
      };
      const auto in_one = [&](int i) {
        check<Error>(cuda::fp8_project_heads<cuda::DeviceArchitectures>(args(i), context),
                     "this device has no such kernel");
      };
      const std::string name = std::string(shape.name) + " M=" + std::to_string(m);
      const double flop = 2. * double(m * shape.n * shape.k);
      report.add(name + ", parts", time_in_graph(context, by_parts, 16), bytes, flop);
      report.add(name + ", one kernel", time_in_graph(context, in_one, 16), bytes, flop);
    }
  }

  void run_all() {
    for (auto* buffer : {&norm, &x, &y})
      cuda::detail::fill_noise(buffer->data(), std::int64_t(buffer->size()), context);
    run({"qkv, norm ahead", 6144, 4096, true, false, false});
    run({"o, added", 4096, 4096, false, false, true});
    run({"gate_up, norm ahead, SwiGLU", 24576, 4096, true, true, false});
    run({"down, added", 4096, 12288, false, false, true});
    run_heads<Int8Kv>({"8B qkv and heads", 6144, 4096, true, false, false}, 8);
    run_heads<Int8Kv>({"8B on 2 GPUs qkv and heads", 3072, 4096, true, false, false}, 4);
    run_heads<Int8Kv>({"1.7B qkv and heads", 4096, 2048, true, false, false}, 8);
    run_heads<Int8Kv>({"0.6B qkv and heads", 4096, 1024, true, false, false}, 8);
  }
};

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  nanovllm::bench::Bench bench;
  bench.run_all();
  if (argc > 1) bench.report.write(argv[1]);
}
