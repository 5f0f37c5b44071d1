/// Times how results get from one kernel, block or multiprocessor to the next: handover_bench
/// [JSON]. It is what a decode step of many small kernels pays beside its bytes.
///
/// - chain: kernels in a graph, each of which reads a word of every block of the one before. The
///   time of one beyond its body, for which it is busy. `serial`: without programmatic dependent
///   launch; `late`: with it, the trigger after the body; `early`: the trigger first, so that the
///   successor stands by.
/// - stream: `early`, and ahead of its wait each block begins to copy weights to shared memory,
///   so many KB in flight at a time; it needs them after its body. The time of one as it is.
/// - standby: how long before the end of a kernel the next one has started, on the same
///   multiprocessor, and how long after that end its wait returns.
/// - exchange: the blocks of a cooperative launch publish words of 16 bytes, each with its flag in
///   it, and read those of all others.
/// - barrier: cooperative groups' `grid.sync()`, and an arrival counter.
/// - cluster: `read`, a barrier of the cluster and then 16 bytes from every other block; `push`, 16
///   bytes to every other block and onto its mbarrier.

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda/ptx>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"

namespace nanovllm {
namespace {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/// Four floats at shared address `address` of block `rank` of the cluster.
__device__ __forceinline__ float4 load_cluster_quad(std::uint32_t address, int rank) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(cuda::cluster_address(address, rank))
               : "memory");
  return v;
}
#endif

constexpr int kThreads = 256;
constexpr int kChain = 240;     ///< kernels of a graph; even
constexpr int kRounds = 2'000;  ///< exchanges of a launch
constexpr std::uint32_t kChunkBytes = 16 * 1024;
constexpr int kMostChunks = 8;
constexpr int kRepeats = 20;  ///< of a launch with `kRounds`

__device__ int num_wrong;  ///< words that were not what they should be

__device__ void expect(bool is_right) {
  if (!is_right) atomicAdd(&num_wrong, 1);
}

__device__ __forceinline__ void be_busy(std::int64_t cycles) {
  const std::int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

// ---- Kernels after each other ----

enum class Trigger { none, late, early };

/// Clocks of a multiprocessor at a kernel's start, after its wait, and at its end.
struct Stamps {
  std::int64_t start, released, end;
};

struct Link {
  const std::uint32_t* from;   ///< [blocks]: what the kernel before wrote
  std::uint32_t* to;           ///< [blocks]
  std::uint32_t value;         ///< of all words of `from`
  std::uint32_t next;          ///< of all words of `to`
  int cycles;                  ///< of the body
  const std::byte* weights;    ///< [blocks][weight_bytes]
  std::uint32_t weight_bytes;  ///< a multiple of kChunkBytes
  int in_flight;               ///< chunks
  Stamps* stamps;              ///< [SMs], or null
};

/// Copies a block's weights to shared memory, `in_flight` chunks at a time, by one thread; `full[i]`
/// counts chunk i.
__device__ void stream_weights(const Link& link, std::byte* to, std::uint64_t* full) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const std::byte* const from = link.weights + std::size_t{blockIdx.x} * link.weight_bytes;
  constexpr std::uint32_t kBytes = kChunkBytes;
  const int num_chunks = static_cast<int>(link.weight_bytes / kChunkBytes);
  for (int i = 0; i < num_chunks; ++i) {
    if (i >= link.in_flight) cuda::mbarrier_wait(full[i - link.in_flight], 0);
    cuda::mbarrier_arrive_expect(full[i], kChunkBytes);
    ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
                               to + i * kBytes, from + i * kBytes, kBytes, &full[i]);
  }
#endif
}

/// The last warp copies weights, the others do the rest.
template <Trigger kTrigger>
__global__ void __launch_bounds__(kThreads + 32) chain_kernel(const Link link) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) std::byte chain_shared[];
  __shared__ std::uint64_t full[kMostChunks];
  const std::int64_t start = clock64();
  if constexpr (kTrigger == Trigger::early) cuda::grid_dependency_launch();
  const auto num_chunks = static_cast<int>(link.weight_bytes / kChunkBytes);
  if (num_chunks > 0) {
    if (threadIdx.x == kThreads) {
      for (int i = 0; i < num_chunks; ++i) cuda::mbarrier_init(full[i], 1);
      cuda::mbarrier_init_fence();
    }
    __syncthreads();
  }
  if (threadIdx.x >= kThreads) {
    if (threadIdx.x == kThreads) stream_weights(link, chain_shared, full);
    return;
  }
  if constexpr (kTrigger != Trigger::none) cuda::grid_dependency_wait();
  const std::int64_t released = clock64();
  bool is_right = true;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads)
    is_right &= __ldcg(link.from + i) == link.value;
  expect(is_right);
  cuda::named_barrier_sync<kThreads>(1);
  be_busy(link.cycles);
  for (int i = 0; i < num_chunks; ++i) cuda::mbarrier_wait(full[i], 0);
  if (threadIdx.x == 0) {
    link.to[blockIdx.x] = link.next;
    unsigned sm;
    asm("mov.u32 %0, %%smid;" : "=r"(sm));
    if (link.stamps != nullptr) link.stamps[sm] = {start, released, clock64()};
  }
  if constexpr (kTrigger == Trigger::late) cuda::grid_dependency_launch();
#endif
}

// ---- Blocks beside each other ----

__device__ __forceinline__ void publish(uint4* to, uint4 v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ uint4 peek(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

/// `slots` is [2][blocks · kWords], zeros: the rounds take the halves in turn, so that none writes
/// over words that another block still waits for.
template <int kWords>
__global__ void __launch_bounds__(kThreads) exchange_kernel(uint4* slots) {
  constexpr int kMaxBlocks = 132, kEach = ceil_div(kMaxBlocks * kWords, kThreads);
  const unsigned all = gridDim.x * kWords;
  bool is_right = true;
  for (unsigned round = 1; round <= kRounds; ++round) {
    uint4* const mine = slots + round % 2 * all;
    if (threadIdx.x < kWords) {
      const unsigned at = blockIdx.x * kWords + threadIdx.x;
      publish(mine + at, {round + at, round ^ at, at, round});
    }
    uint4 words[kEach];
    for (bool complete = false; !complete;) {
      complete = true;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const unsigned at = threadIdx.x + i * kThreads;
        if (at < all) words[i] = peek(mine + at);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        complete &= threadIdx.x + i * kThreads >= all || words[i].w == round;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned at = threadIdx.x + i * kThreads;
      is_right &=
          at >= all || (words[i].x == round + at && words[i].y == (round ^ at) && words[i].z == at);
    }
    __syncthreads();
  }
  expect(is_right);
}

__global__ void __launch_bounds__(kThreads) grid_sync_kernel() {
  const auto grid = cooperative_groups::this_grid();
  for (int round = 0; round < kRounds; ++round) grid.sync();
}

/// @param arrivals  zero
__global__ void __launch_bounds__(kThreads) counter_barrier_kernel(unsigned* arrivals) {
  for (unsigned round = 1; round <= kRounds; ++round) {
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
      unsigned count = 0;
      while (count < round * gridDim.x)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(count)
                     : "l"(arrivals)
                     : "memory");
    }
    __syncthreads();
  }
}

// ---- Blocks of a cluster ----

template <int kSize>
__global__ void __launch_bounds__(kThreads) cluster_read_kernel() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ float4 words[2];
  const int rank = static_cast<int>(blockIdx.x) % kSize, thread = static_cast<int>(threadIdx.x);
  bool is_right = true;
  for (int round = 0; round < kRounds; ++round) {
    const auto value = static_cast<float>(round);
    if (thread == 0) words[round % 2] = {value, static_cast<float>(rank), value, value};
    cuda::cluster_sync();
    if (thread < kSize) {
      const float4 got = load_cluster_quad(cuda::shared_address(&words[round % 2]), thread);
      is_right &= got.x == value && got.y == static_cast<float>(thread) && got.w == value;
    }
    __syncthreads();
  }
  expect(is_right);
  cuda::cluster_sync();
#endif
}

template <int kSize>
__global__ void __launch_bounds__(kThreads) cluster_push_kernel() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ __align__(16) std::uint32_t words[2][kSize][4];
  __shared__ std::uint64_t full[2];
  const auto cluster = cooperative_groups::this_cluster();
  const unsigned rank = blockIdx.x % kSize;
  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : full) cuda::mbarrier_init(barrier, 1);
    cuda::mbarrier_init_fence();
  }
  cuda::cluster_sync();
  bool is_right = true;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const std::uint32_t half = round % 2;
    if (threadIdx.x == 0) cuda::mbarrier_arrive_expect(full[half], 16 * kSize);
    if (threadIdx.x < kSize) {
      const std::uint32_t value[4] = {round, rank, round, round};
      ::cuda::ptx::st_async(cluster.map_shared_rank(words[half][rank], threadIdx.x), value,
                            cluster.map_shared_rank(&full[half], threadIdx.x));
    }
    cuda::mbarrier_wait(full[half], round / 2 % 2);
    if (threadIdx.x < kSize)
      is_right &=
          words[half][threadIdx.x][0] == round && words[half][threadIdx.x][1] == threadIdx.x;
    __syncthreads();
  }
  expect(is_right);
  cuda::cluster_sync();
#endif
}

// ---- The program ----

__global__ void clock_kernel(std::int64_t cycles, std::uint64_t* nanoseconds) {
  std::uint64_t begin, end;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin)::"memory");
  be_busy(cycles);
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end)::"memory");
  *nanoseconds = end - begin;
}

class Bench {
 public:
  Bench(const cuda::Context& context, bench::Report& report)
      : context_(context), report_(report), words_(2 * kMostBlocks), weights_(kWeightsBytes) {
    for (int i = 0; i < 2; ++i) clocks_per_us_ = measure_clock();
    std::printf("%.0f clocks a microsecond\n", clocks_per_us_);
  }

  template <Trigger kTrigger>
  void chain(const char* name, int blocks, double body_us) {
    const bench::Timing total = time_chain<kTrigger>(blocks, body_us, 0, 0);
    const double body = body_cycles(body_us) / clocks_per_us_;
    report_.add(concat("chain ", name, ", ", blocks, " blocks, body ", body_us, " us"),
                {total.median_us - body, total.min_us - body, total.max_us - body}, 0, 0);
  }

  void stream(int blocks, std::uint32_t weight_bytes, int in_flight, double body_us) {
    report_.add(concat("stream ", weight_bytes / 1024, " KB, ", in_flight * kChunkBytes / 1024,
                       " in flight, ", blocks, " blocks, body ", body_us, " us"),
                time_chain<Trigger::early>(blocks, body_us, weight_bytes, in_flight),
                static_cast<double>(blocks) * weight_bytes, 0);
  }

  template <Trigger kTrigger>
  void standby(const char* name, std::uint32_t weight_bytes, double body_us) {
    constexpr int kSms = 132;
    cuda::DeviceBuffer<Stamps> stamps(kChain * kSms);
    cuda::check_cuda(cudaMemset(stamps.data(), 0, stamps.size_bytes()), "cudaMemset");
    static_cast<void>(
        time_chain<kTrigger>(kSms, body_us, weight_bytes, kMostChunks, stamps.data()));
    std::vector<Stamps> all(stamps.size());
    cuda::check_cuda(cudaMemcpy(all.data(), stamps.data(), stamps.size_bytes(), cudaMemcpyDefault),
                     "cudaMemcpy");
    std::vector<double> ahead, behind;
    for (std::size_t i = kSms; i < all.size(); ++i) {
      const Stamps &now = all[i], &before = all[i - kSms];
      // A multiprocessor without a block has no stamps, or those of the replay before.
      const double us = static_cast<double>(before.end - now.start) / clocks_per_us_;
      if (now.start == 0 || before.start == 0 || std::abs(us) > 100) continue;
      ahead.push_back(us);
      behind.push_back(static_cast<double>(now.released - before.end) / clocks_per_us_);
    }
    const auto add = [&](const char* what, std::vector<double>& times) {
      std::sort(times.begin(), times.end());
      report_.add(
          concat("standby ", name, ", ", weight_bytes / 1024, " KB, body ", body_us, " us, ", what),
          {times[times.size() / 2], times.front(), times.back()}, 0, 0);
    };
    add("start before end", ahead);
    add("release behind end", behind);
  }

  template <int kWords>
  void exchange() {
    cuda::DeviceBuffer<uint4> slots(2 * 132 * kWords);
    uint4* argument = slots.data();
    report_.add(concat("exchange ", kWords, " x 16 bytes"),
                time_rounds(reinterpret_cast<const void*>(exchange_kernel<kWords>), argument,
                            slots.size_bytes()),
                0, 0);
  }

  void barriers() {
    cuda::DeviceBuffer<unsigned> arrivals(1);
    unsigned* argument = arrivals.data();
    report_.add("barrier grid.sync",
                time_rounds(reinterpret_cast<const void*>(grid_sync_kernel), argument, 4), 0, 0);
    report_.add("barrier counter",
                time_rounds(reinterpret_cast<const void*>(counter_barrier_kernel), argument, 4), 0,
                0);
  }

  template <int kSize>
  void clusters() {
    const auto time_one = [&](void (*kernel)()) {
      cudaLaunchAttribute attribute{};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {kSize, 1, 1};
      cudaLaunchConfig_t config{};
      config.gridDim = 128;
      config.blockDim = kThreads;
      config.stream = context_.stream;
      config.attrs = &attribute;
      config.numAttrs = 1;
      return per_round([&] { cuda::check_cuda(cudaLaunchKernelEx(&config, kernel), "launch"); });
    };
    report_.add(concat("cluster of ", kSize, ", read"), time_one(cluster_read_kernel<kSize>), 0, 0);
    report_.add(concat("cluster of ", kSize, ", push"), time_one(cluster_push_kernel<kSize>), 0, 0);
  }

  /// Throws Error when a kernel has seen a wrong word.
  static void check_results() {
    int wrong = 0;
    cuda::check_cuda(cudaMemcpyFromSymbol(&wrong, num_wrong, sizeof wrong), "cudaMemcpyFromSymbol");
    check(wrong == 0, "handover_bench: ", wrong, " times a wrong word was read");
    std::printf("all words right\n");
  }

 private:
  static constexpr int kMostBlocks = 264;
  static constexpr std::size_t kWeightsBytes = 192u << 20;  ///< beyond L2

  [[nodiscard]] double measure_clock() const {
    cuda::DeviceBuffer<std::uint64_t> nanoseconds(1);
    constexpr std::int64_t kCycles = 20'000'000;
    clock_kernel<<<1, 1, 0, context_.stream>>>(kCycles, nanoseconds.data());
    std::uint64_t out = 0;
    cuda::check_cuda(cudaStreamSynchronize(context_.stream), "clock_kernel");
    cuda::check_cuda(cudaMemcpy(&out, nanoseconds.data(), 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return 1e3 * static_cast<double>(kCycles) / static_cast<double>(out);
  }

  [[nodiscard]] int body_cycles(double us) const { return static_cast<int>(us * clocks_per_us_); }

  template <Trigger kTrigger>
  bench::Timing time_chain(int blocks, double body_us, std::uint32_t weight_bytes, int in_flight,
                           Stamps* stamps = nullptr) {
    cuda::check_cuda(cudaMemsetAsync(words_.data(), 0, words_.size_bytes(), context_.stream),
                     "memset");
    const std::size_t step = static_cast<std::size_t>(blocks) * weight_bytes;
    const std::size_t sets = step == 0 ? 1 : kWeightsBytes / step;
    const auto run = [&](int i) {
      const auto u = static_cast<std::uint32_t>(i);
      cuda::launch(
          chain_kernel<kTrigger>,
          {.grid = static_cast<unsigned>(blocks),
           .block = kThreads + 32,
           .shared_bytes = weight_bytes,
           .overlap = kTrigger != Trigger::none},
          context_,
          Link{words_.data() + u % 2 * kMostBlocks, words_.data() + (u + 1) % 2 * kMostBlocks, u,
               (u + 1) % kChain, body_cycles(body_us), weights_.data() + u % sets * step,
               weight_bytes, in_flight, stamps == nullptr ? nullptr : stamps + u * 132});
    };
    return bench::time_in_graph(context_, run, kChain);
  }

  template <class Argument>
  bench::Timing time_rounds(const void* kernel, Argument* argument, std::size_t bytes) {
    void* arguments[] = {&argument};
    return per_round([&] {
      cuda::check_cuda(cudaMemsetAsync(argument, 0, bytes, context_.stream), "cudaMemsetAsync");
      cuda::check_cuda(cudaLaunchCooperativeKernel(kernel, static_cast<unsigned>(context_.num_sms),
                                                   kThreads, arguments, 0, context_.stream),
                       "cudaLaunchCooperativeKernel");
    });
  }

  template <class Launch>
  bench::Timing per_round(const Launch& launch_once) {
    cuda::Event begin(true), end(true);
    std::vector<double> times;
    for (int i = -2; i < kRepeats; ++i) {
      begin.record(context_.stream);
      launch_once();
      end.record(context_.stream);
      end.synchronize();
      if (i >= 0) times.push_back(1e3 * end.milliseconds_since(begin) / kRounds);
    }
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], times.front(), times.back()};
  }

  const cuda::Context& context_;
  bench::Report& report_;
  cuda::DeviceBuffer<std::uint32_t> words_;
  cuda::DeviceBuffer<std::byte> weights_;
  double clocks_per_us_ = 1;
};

int run(const char* json) {
  const cuda::Stream stream;
  const auto context = cuda::Context::on(stream.get());
  if (context.native_code != 90 || context.num_sms > 132) {
    std::printf("handover_bench is for devices of compute capability 9.0 with 132 SMs at most\n");
    return EXIT_FAILURE;
  }
  bench::Report report;
  Bench bench(context, report);
  for (const double body_us : {0.0, 2.0}) {
    for (const int blocks : {1, 128, 132, 264}) {
      bench.chain<Trigger::none>("serial", blocks, body_us);
      bench.chain<Trigger::late>("late", blocks, body_us);
      bench.chain<Trigger::early>("early", blocks, body_us);
    }
  }
  for (const std::uint32_t kilobytes : {16, 32, 64, 96}) {
    for (const double body_us : {0.0, 1.0, 2.0}) {
      for (const int in_flight : {1, 2, 8}) {
        if (in_flight == 8 || kilobytes > 16u * static_cast<unsigned>(in_flight))
          bench.stream(132, kilobytes * 1024, in_flight, body_us);
      }
    }
  }
  for (const double body_us : {0.0, 2.0}) {
    bench.standby<Trigger::none>("serial", 0, body_us);
    bench.standby<Trigger::late>("late", 0, body_us);
    bench.standby<Trigger::early>("early", 0, body_us);
    bench.standby<Trigger::early>("early", 64 * 1024, body_us);
  }
  bench.exchange<1>();
  bench.exchange<4>();
  bench.exchange<8>();
  bench.barriers();
  bench.clusters<2>();
  bench.clusters<4>();
  bench.clusters<8>();
  Bench::check_results();
  if (json != nullptr) report.write(json);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) { return nanovllm::run(argc > 1 ? argv[1] : nullptr); }
