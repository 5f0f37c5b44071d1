// The products of a layer of Qwen3-8B by weights in 4-bit integers, for 1 to 256 rows of x. Bytes
// are those of the codes and scales. Argument: JSON file.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/cuda/compiled_ops.cuh"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_ops.cuh"

namespace nanovllm::bench {
namespace {

struct Shape {
  const char* name;
  std::int64_t n, k;
};

void measure(CudaBackend& backend, Report& report, const Shape& shape) {
  constexpr std::int64_t kMostRows = 256;
  const cuda::Context& context = backend.context();
  const auto [name, n, k] = shape;
  std::vector<bf16> noise(static_cast<std::size_t>(n * k));
  for (std::size_t i = 0; i < noise.size(); ++i)
    noise[i] = bf16((static_cast<float>(i * 2654435761u % 4096) / 4096.f - 0.5f) / 16);
  // Together larger than the L2 cache.
  std::vector<cuda::Int4GroupMatrix> weights;
  for (std::int64_t i = 0; i < 2 + 200'000'000 / (n * k / 2); ++i) {
    weights.emplace_back(n, k);
    backend.set_rows(weights.back(), 0, MatrixView<const bf16>(noise.data(), {n, k}));
  }
  backend.synchronize();
  cuda::DeviceBuffer<bf16> x(static_cast<std::size_t>(kMostRows * k)),
      y(static_cast<std::size_t>(kMostRows * n));
  cuda::detail::fill_noise(x.data(), static_cast<std::int64_t>(x.size()), context);
  for (const std::int64_t rows : {1, 4, 8, 16, 32, 48, 64, 128, 256}) {
    const auto run = [&](int i) {
      backend.run(LinearArgs<bf16, cuda::Int4GroupMatrix>{
          .x = {x.data(), {rows, k}},
          .weight = &weights[static_cast<std::size_t>(i) % weights.size()],
          .y = {y.data(), {rows, n}}});
    };
    run(0);
    backend.synchronize();
    report.add(std::string(name) + ", " + std::to_string(rows) + " rows",
               time_in_graph(context, run, 24, 20), static_cast<double>(n * k) * 17 / 32, 0);
  }
}

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  using namespace nanovllm::bench;
  nanovllm::CudaBackend backend{nanovllm::BackendConfig{}};
  Report report;
  for (const Shape& shape : {Shape{"qkv", 6144, 4096}, Shape{"o", 4096, 4096},
                             Shape{"gate_up", 24576, 4096}, Shape{"down", 4096, 12288}})
    measure(backend, report, shape);
  if (argc > 1) report.write(argv[1]);
}
