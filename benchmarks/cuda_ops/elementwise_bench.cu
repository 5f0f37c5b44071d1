/// Times the memory-bound CUDA ops at the shapes of Qwen3-0.6B and 8B: elementwise_bench [JSON].
/// The share is that of the rate at which the device copies memory. Few rows stay in L2, as they do
/// in a model; the inputs of many rows rotate beyond it.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/elementwise/kv_store.cuh"
#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/elementwise/rowwise.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"

namespace nanovllm::bench {
namespace {

constexpr double kCopyRate = 4.26e12;  ///< bytes/s read and written by a device copy on an H200
constexpr int kCalls = 20;

struct Shape {
  const char* name;
  std::int64_t hidden, intermediate, heads, kv_heads, head_dim;
};

__global__ void fill_kernel(std::uint16_t* data, std::size_t size) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    const auto bits = static_cast<std::uint32_t>(i) * 2654435761u;
    data[i] = static_cast<std::uint16_t>(0x3f00u | (bits >> 31 << 15) | (bits >> 24 & 0x7fu));
  }
}

/// `sets` matrices of bf16 noise, one after the other.
class Noise {
 public:
  Noise(std::int64_t sets, std::int64_t rows, std::int64_t cols)
      : sets_(sets), rows_(rows), cols_(cols), data_(static_cast<std::size_t>(sets * rows * cols)) {
    fill_kernel<<<1024, 256>>>(reinterpret_cast<std::uint16_t*>(data_.data()), data_.size());
    cuda::check_cuda(cudaDeviceSynchronize(), "fill_kernel");
  }
  MatrixView<bf16> operator[](int i) {
    return {data_.data() + i % sets_ * rows_ * cols_, {rows_, cols_}};
  }
  VectorView<const bf16> vector() { return {data_.data(), {cols_}}; }

 private:
  std::int64_t sets_, rows_, cols_;
  cuda::DeviceBuffer<bf16> data_;
};

template <class U>
cuda::DeviceBuffer<U> device_copy(const std::vector<U>& values) {
  cuda::DeviceBuffer<U> out(values.size());
  cuda::check_cuda(cudaMemcpy(out.data(), values.data(), out.size_bytes(), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
  return out;
}

class Bench {
 public:
  Bench(const cuda::Context& context, Report& report, const Shape& shape, std::int64_t rows)
      : context_(context), report_(report), shape_(shape), rows_(rows) {}

  void rms_norm() {
    const std::int64_t width = shape_.hidden, bytes = 2 * rows_ * width * 2;
    Noise x(sets(bytes), rows_, width), out(sets(bytes), rows_, width), weight(1, 1, width);
    add("rms_norm", bytes, [&](int i) {
      cuda::rms_norm(RmsNormArgs<bf16>{x[i], weight.vector(), 1e-6f, out[i]}, context_);
    });
  }

  void add_rms_norm() {
    const std::int64_t width = shape_.hidden, bytes = 4 * rows_ * width * 2;
    Noise x(sets(bytes), rows_, width), residual(sets(bytes), rows_, width);
    Noise out(sets(bytes), rows_, width), weight(1, 1, width);
    add("add_rms_norm", bytes, [&](int i) {
      cuda::add_rms_norm(AddRmsNormArgs<bf16>{x[i], residual[i], weight.vector(), 1e-6f, out[i]},
                         context_);
    });
  }

  void silu_mul() {
    const std::int64_t width = shape_.intermediate, bytes = 3 * rows_ * width * 2;
    Noise gate_up(sets(bytes), rows_, 2 * width), out(sets(bytes), rows_, width);
    add("silu_mul", bytes, [&](int i) {
      cuda::silu_mul(SiluMulArgs<bf16>{gate_up[i], out[i]}, context_);
    });
  }

  void embedding() {
    const std::int64_t width = shape_.hidden, bytes = 2 * rows_ * width * 2, vocab = 151936;
    cuda::DeviceMatrix<bf16> table(vocab, width);
    fill_kernel<<<1024, 256>>>(reinterpret_cast<std::uint16_t*>(table.data()),
                               static_cast<std::size_t>(vocab * width));
    cuda::check_cuda(cudaDeviceSynchronize(), "fill_kernel");
    Noise out(sets(bytes), rows_, width);
    std::vector<TokenId> ids;
    for (std::int64_t i = 0; i < rows_ * kCalls; ++i)
      ids.push_back(static_cast<TokenId>(i * 69621 % vocab));
    const auto tokens = device_copy(ids);
    add("embedding", bytes, [&](int i) {
      cuda::embedding(
          EmbeddingArgs<bf16, cuda::DeviceMatrix<bf16>>{
              {tokens.data() + i * rows_, {rows_}}, &table, 0, out[i]},
          context_);
    });
  }

  void qk_norm_rope_store() {
    const std::int64_t d = shape_.head_dim, heads = shape_.heads, kv_heads = shape_.kv_heads;
    const std::int64_t bytes = rows_ * (2 * heads + 5 * kv_heads) * d * 2, block_size = 64;
    Noise qkv(sets(bytes), rows_, (heads + 2 * kv_heads) * d), norms(1, 1, d);
    const std::int64_t num_blocks = ceil_div(rows_ * kCalls, block_size);
    Noise cache(1, 1, num_blocks * 2 * kv_heads * block_size * d);
    std::vector<std::int32_t> position_list;
    std::vector<Slot> slot_list;
    for (std::int64_t i = 0; i < rows_ * kCalls; ++i) {
      position_list.push_back(static_cast<std::int32_t>(i * 31 % 4096));
      slot_list.push_back(i);
    }
    const auto positions = device_copy(position_list);
    const auto slots = device_copy(slot_list);
    const auto table = device_copy(std::vector<float>(static_cast<std::size_t>(4096 * d), 0.7f));
    const KvView<bf16> kv{cache[0].data, num_blocks, block_size, kv_heads, d};
    add("qk_norm_rope_store", bytes, [&](int i) {
      const auto part = [&](std::int64_t first, std::int64_t count) {
        const MatrixView<bf16> all = qkv[i];
        return TensorView<bf16, 3>(all.data + first * d, {rows_, count, d}, {all.strides[0], d, 1});
      };
      cuda::qk_norm_rope_store(QkNormRopeStoreArgs<bf16>{part(0, heads),
                                                         part(heads, kv_heads),
                                                         part(heads + kv_heads, kv_heads),
                                                         norms.vector(),
                                                         norms.vector(),
                                                         1e-6f,
                                                         {positions.data() + i * rows_, {rows_}},
                                                         {table.data(), {4096, d}},
                                                         {slots.data() + i * rows_, {rows_}},
                                                         kv},
                               context_);
    });
  }

 private:
  /// So many sets of operands that together they exceed the L2 cache twice.
  static std::int64_t sets(std::int64_t bytes) {
    return std::clamp<std::int64_t>((130 << 20) / bytes, 2, kCalls);
  }

  template <class Run>
  void add(const char* op, std::int64_t bytes, const Run& run) {
    const bench::Timing timing = bench::time_in_graph(context_, run, kCalls);
    const double share = static_cast<double>(bytes) / (timing.median_us * 1e-6) / kCopyRate;
    report_.add(concat(op, " ", shape_.name, " ", rows_, " rows, ",
                       static_cast<int>(100 * share + 0.5), "% of copy"),
                timing, static_cast<double>(bytes), 0);
  }

  const cuda::Context& context_;
  Report& report_;
  const Shape& shape_;
  std::int64_t rows_;
};

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  using namespace nanovllm::bench;
  constexpr Shape kShapes[] = {{"0.6B", 1024, 3072, 16, 8, 128}, {"8B", 4096, 12288, 32, 8, 128}};
  const nanovllm::cuda::Stream stream;
  const auto context = nanovllm::cuda::Context::on(stream.get());
  Report report;
  for (const Shape& shape : kShapes) {
    for (std::int64_t rows : {1, 32, 256, 8192}) {
      Bench bench(context, report, shape, rows);
      bench.rms_norm();
      bench.add_rms_norm();
      bench.silu_mul();
      bench.embedding();
      bench.qk_norm_rope_store();
    }
  }
  if (argc > 1) report.write(argv[1]);
}
