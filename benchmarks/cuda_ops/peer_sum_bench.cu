/// Times sums over tensor-parallel ranks with the residual and RMSNorm after them, through NCCL
/// and through the memory of peers, and the gathering of logits: peer_sum_bench [JSON]. On 2, 4 and
/// 8 GPUs, as far as there are. Rows of 4096 bfloat16, as in Qwen3-8B; times are those of rank 0,
/// of calls one after the other in a graph.

#if __has_include(<nccl.h>)

#include "nanovllm/with/peers/peer_memory.cuh"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/parallel/nccl.cuh"

namespace nanovllm::bench {
namespace {

constexpr std::int64_t kWidth = 4096, kMostRows = 512, kVocabulary = 151'936;
constexpr float kEps = 1e-6f;

/// What `attach` wants of a backend.
struct Device {
  explicit Device(int device) : guard(device), context_(cuda::Context::on(stream.get())) {}
  [[nodiscard]] const cuda::Context& context() const { return context_; }

  cuda::DeviceGuard guard;
  cuda::Stream stream;

 private:
  cuda::Context context_;
};

/// Zeros.
template <class T>
cuda::DeviceBuffer<T> zeros(std::int64_t count) {
  cuda::DeviceBuffer<T> out(static_cast<std::size_t>(count));
  cuda::check_cuda(cudaMemset(out.data(), 0, out.size_bytes()), "cudaMemset");
  cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return out;
}

template <class Comm>
class Bench {
 public:
  Bench(Comm& comm, const Device& device, Report& report, std::string name)
      : comm_(comm),
        context_(device.context()),
        report_(report),
        name_(std::move(name)),
        x_(zeros<bf16>(kMostRows * kWidth)),
        residual_(zeros<bf16>(kMostRows * kWidth)),
        weight_(zeros<bf16>(kWidth)) {}

  void sum_and_norm(std::int64_t rows) {
    const MatrixView<bf16> x(x_.data(), {rows, kWidth}), residual(residual_.data(), x.extents);
    const VectorView<const bf16> weight(weight_.data(), {kWidth});
    time("sum, add, norm", rows, 2 * rows * kWidth, [&](int) {
      if constexpr (requires { comm_.all_reduce_add_norm(x, residual, weight, kEps, x); }) {
        if (comm_.all_reduce_add_norm(x, residual, weight, kEps, x)) return;
      } else {
        comm_.all_reduce(x);
      }
      cuda::add_rms_norm(
          AddRmsNormArgs<bf16>{
              .x = x, .residual = residual, .weight = weight, .eps = kEps, .out = x},
          context_);
    });
  }

  void sum(std::int64_t rows) {
    const MatrixView<bf16> x(x_.data(), {rows, kWidth});
    time("sum", rows, 2 * rows * kWidth, [&](int) { comm_.all_reduce(x); });
  }

  void logits(std::int64_t rows) {
    const std::int64_t width = kVocabulary / comm_.size();
    const auto part = zeros<float>(rows * width);
    auto whole = zeros<float>(rows * width * comm_.size());
    time("logits", rows, 4 * rows * width, [&](int) {
      comm_.all_gather_columns(MatrixView<const float>(part.data(), {rows, width}),
                               MatrixView<float>(whole.data(), {rows, width * comm_.size()}));
    });
  }

 private:
  /// `bytes` are those that a rank contributes.
  template <class Run>
  void time(const char* what, std::int64_t rows, std::int64_t bytes, const Run& run) {
    const bench::Timing timing = bench::time_in_graph(context_, run);
    if (comm_.rank() != 0) return;
    report_.add(concat(comm_.size(), " ranks, ", name_, ", ", what, ", ", rows, " rows"), timing,
                static_cast<double>(bytes), 0);
  }

  Comm& comm_;
  cuda::Context context_;
  Report& report_;
  std::string name_;
  cuda::DeviceBuffer<bf16> x_, residual_, weight_;
};

template <class Comm>
void run(std::vector<Comm> ends, Report& report, const std::string& name) {
  std::vector<std::thread> threads;
  for (Comm& comm : ends) {
    threads.emplace_back([&] {
      try {
        Device device(comm.rank());
        comm.attach(device);
        if constexpr (requires { comm.way_of(0); }) {
          if (comm.rank() == 0) {
            std::printf("%s, ways of 8 KiB to 4 MiB (0: one-shot, 1: two-shot, 2: NCCL):",
                        name.c_str());
            for (int i = 0; i < peer::PeerTable::kNumSizes; ++i)
              std::printf(" %d", static_cast<int>(comm.way_of(peer::PeerTable::bytes(i))));
            std::printf("\n");
          }
        }
        Bench<Comm> bench(comm, device, report, name);
        for (const std::int64_t rows : {1, 8, 64, 128, 256, 512}) bench.sum_and_norm(rows);
        for (const std::int64_t rows : {1, 64, 256}) bench.sum(rows);
        for (const std::int64_t rows : {1, 8, 64, 256}) bench.logits(rows);
      } catch (const std::exception& error) {
        std::printf("rank %d: %s\n", comm.rank(), error.what());
        comm.abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  using namespace nanovllm::bench;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::printf("2 GPUs are needed, there are %d\n", count);
    return 0;
  }
  Report report;
  for (int size = 2; size <= std::min(count, 8); size *= 2) {
    run(nanovllm::Nccl::make(size), report, "NCCL");
    run(nanovllm::PeerMemory::make(size, {.measures = false}), report, "peers by rule");
    run(nanovllm::PeerMemory::make(size), report, "peers by time");
  }
  if (argc > 1) report.write(argv[1]);
}

#else

int main() {}

#endif
