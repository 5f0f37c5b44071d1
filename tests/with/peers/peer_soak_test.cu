// Many sums of peers in graphs, with ranks that come late, and the end of a group.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/spend_time.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/with/peers/sum.cuh"
#include "with/peers/peer_rig.cuh"

namespace nanovllm::test {

namespace {

constexpr float kEps = 1e-6f;
constexpr std::uint32_t kOfResidual = 77, kOfWeight = 78;
constexpr std::int64_t kMaxElements = 1 << 17;

/// One sum of a graph: n x width, with or without a norm after it.
struct Sum {
  std::int64_t rows, width;
  bool has_norm;
  peer::Shots shots;
  std::uint32_t index;

  [[nodiscard]] __host__ __device__ std::int64_t count() const { return rows * width; }
};

/// What numbers a call is made of: `round` counts replays.
__device__ std::uint32_t seed_of(const std::uint32_t* round, const Sum& sum) {
  return *round * 4096 + sum.index;
}

template <class T>
__device__ float number_at(std::uint32_t seed, std::uint32_t rank, std::int64_t i) {
  return cuda::to_float(cuda::from_float<T>(number_of(seed, rank, static_cast<std::uint32_t>(i))));
}

/// Writes a rank's operands; now and then a rank takes its time.
template <class T>
__global__ void fill_kernel(const std::uint32_t* round, Sum sum, std::uint32_t rank, T* x,
                            T* residual) {
  const std::uint32_t seed = seed_of(round, sum);
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    const float chance = number_of(seed, rank + 1000, 0);
    if (chance > 1.6f) spend_time(static_cast<unsigned long long>((chance - 1.6f) * 100'000));
  }
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < sum.count();
       i += gridDim.x * blockDim.x) {
    x[i] = cuda::from_float<T>(number_of(seed, rank, static_cast<std::uint32_t>(i)));
    residual[i] = cuda::from_float<T>(number_of(seed, kOfResidual, static_cast<std::uint32_t>(i)));
  }
}

/// Counts elements that are not the sum in rank order, or too far from it in float64; a row a block
template <class T>
__global__ void check_kernel(const std::uint32_t* round, Sum sum, int size, const T* x,
                             const T* residual, const T* out, const T* weight,
                             unsigned long long* num_wrong) {
  __shared__ double squares;
  const std::uint32_t seed = seed_of(round, sum);
  for (std::int64_t row = blockIdx.x; row < sum.rows; row += gridDim.x) {
    if (threadIdx.x == 0) squares = 0;
    __syncthreads();
    double mine = 0;
    for (std::int64_t j = threadIdx.x; j < sum.width; j += blockDim.x) {
      const std::int64_t i = row * sum.width + j;
      float total = 0.f;
      double exact = 0, magnitude = 0;
      for (int r = 0; r < size; ++r) {
        const float part = number_at<T>(seed, static_cast<std::uint32_t>(r), i);
        total = __fadd_rn(total, part);
        exact += part;
        magnitude += fabs(static_cast<double>(part));
      }
      T want = cuda::from_float<T>(total);
      if (sum.has_norm) {
        const float before = number_at<T>(seed, kOfResidual, i);
        want = cuda::from_float<T>(__fadd_rn(cuda::to_float(want), before));
        exact += before;
        magnitude += fabs(static_cast<double>(before));
      }
      const T got = sum.has_norm ? residual[i] : x[i];
      const double value = cuda::to_float(got);
      mine += value * value;
      const double bound = (sizeof(T) == 4 ? 4 : 2) * kUnit<T> * magnitude;
      if (cuda::to_float(got) != cuda::to_float(want) || !(fabs(value - exact) <= bound))
        atomicAdd(num_wrong, 1ull);
    }
    atomicAdd(&squares, mine);
    __syncthreads();
    if (sum.has_norm) {
      const double inverse = 1 / sqrt(squares / static_cast<double>(sum.width) + kEps);
      for (std::int64_t j = threadIdx.x; j < sum.width; j += blockDim.x) {
        const std::int64_t i = row * sum.width + j;
        const double want = cuda::to_float(residual[i]) * inverse * cuda::to_float(weight[j]);
        const double got = cuda::to_float(out[i]);
        if (!(fabs(got - want) <= (sizeof(T) == 4 ? 16 : 4) * kUnit<T> * fabs(want) + 1e-6))
          atomicAdd(num_wrong, 1ull);
      }
    }
    __syncthreads();
  }
}

__global__ void next_round_kernel(std::uint32_t* round) { ++*round; }

/// A graph a rank, with `kSums` sums of random sizes.
template <class T>
class Soak {
 public:
  static constexpr int kSums = 64;

  Soak(PeerRig& rig, unsigned seed) : rig_(rig) {
    std::mt19937 random(seed);
    std::vector<Sum> sums;
    for (int i = 0; i < kSums; ++i) {
      const auto below = [&](unsigned most) { return static_cast<std::int64_t>(random() % most); };
      Sum sum{.rows = 1 + below(40),
              .width = 1 + below(3000),
              .has_norm = below(2) == 0,
              .shots = below(3) == 0 ? peer::Shots::two : peer::Shots::one,
              .index = static_cast<std::uint32_t>(i)};
      if (sum.has_norm) sum.width = std::array{528, 1024, 2048, 3072}[random() % 4];
      if (random() % 3 == 0) sum.rows = 1;
      sums.push_back(sum);
    }
    rig.on_all([&](RigRank& rank) {
      ranks_.push_back(std::make_unique<Operands>());
      Operands& mine = *ranks_.back();
      mine.round.host[0] = mine.num_wrong.host[0] = 0;
      mine.round.upload();
      mine.num_wrong.upload();
      for (std::size_t j = 0; j < mine.weight.size(); ++j)
        mine.weight.host[j] = T(number_of(1, kOfWeight, static_cast<std::uint32_t>(j)));
      mine.weight.upload();
      // The modules of all kernels are loaded: that may wait for the device, and so for a rank.
      check_kernel<T><<<1, 32, 0, rank.gpu.stream.get()>>>(
          mine.round.data(), {0, 1, true, {}, 0}, 1, mine.x.data(), mine.residual.data(),
          mine.out.data(), mine.weight.data(), mine.num_wrong.data());
      fill_kernel<T><<<1, 32, 0, rank.gpu.stream.get()>>>(mine.round.data(), {0, 1, true, {}, 0}, 0,
                                                          mine.x.data(), mine.residual.data());
      rank.gpu.sync();
    });
    rig.on_all([&](RigRank& rank) {
      Operands& mine = *ranks_[static_cast<std::size_t>(rank.view.rank)];
      mine.graph = cuda::Graph::capture(rank.gpu.stream.get(), [&] {
        for (const Sum& sum : sums) enqueue(rank, mine, sum);
        next_round_kernel<<<1, 1, 0, rank.gpu.stream.get()>>>(mine.round.data());
      });
    });
  }

  void launch() {
    rig_.on_all([&](RigRank& rank) {
      ranks_[static_cast<std::size_t>(rank.view.rank)]->graph.launch(rank.gpu.stream.get());
    });
  }

  /// When all is done.
  void check_results(std::uint32_t rounds) {
    rig_.sync();
    CHECK(*rig_.ending() == peer::kGoesOn);
    rig_.on_all([&](RigRank& rank) {
      Operands& mine = *ranks_[static_cast<std::size_t>(rank.view.rank)];
      INFO("rank " << rank.view.rank << " of " << rig_.size());
      mine.num_wrong.download();
      mine.round.download();
      CHECK(mine.num_wrong.host[0] == 0);
      CHECK(mine.round.host[0] == rounds);
      CHECK(mine.x.guards_intact());
      CHECK(mine.residual.guards_intact());
      CHECK(mine.out.guards_intact());
    });
  }

 private:
  struct Operands {
    GpuArray<T> x{kMaxElements}, residual{kMaxElements}, out{kMaxElements}, weight{4096};
    GpuArray<std::uint32_t> round{1};
    GpuArray<unsigned long long> num_wrong{1};
    cuda::Graph graph;
  };

  void enqueue(RigRank& rank, Operands& mine, const Sum& sum) {
    const cudaStream_t stream = rank.gpu.stream.get();
    fill_kernel<T><<<8, 256, 0, stream>>>(mine.round.data(), sum,
                                          static_cast<std::uint32_t>(rank.view.rank), mine.x.data(),
                                          mine.residual.data());
    const MatrixView<T> x(mine.x.data(), {sum.rows, sum.width});
    const MatrixView<T> residual(mine.residual.data(), {sum.rows, sum.width});
    const MatrixView<T> out(mine.out.data(), {sum.rows, sum.width});
    const VectorView<const T> weight(mine.weight.data(), {sum.width});
    if (sum.has_norm) {
      peer::all_reduce_add_norm(rank.view, rig_.launch(sum.shots), x, residual, weight, kEps, out,
                                rank.gpu.context);
    } else {
      peer::all_reduce(rank.view, rig_.launch(sum.shots), x, rank.gpu.context);
    }
    check_kernel<T><<<8, 256, 0, stream>>>(mine.round.data(), sum, rig_.size(), mine.x.data(),
                                           mine.residual.data(), mine.out.data(),
                                           mine.weight.data(), mine.num_wrong.data());
    cuda::check_cuda(cudaGetLastError(), "kernel launch");
  }

  PeerRig& rig_;
  std::vector<std::unique_ptr<Operands>> ranks_;
};

template <class T>
void soak(int size, int devices, std::uint32_t rounds) {
  INFO(size << " ranks on " << devices << " devices");
  PeerRig rig(size, devices);
  Soak<T> work(rig, static_cast<unsigned>(size));
  for (std::uint32_t round = 0; round < rounds; ++round) {
    work.launch();
    if (round % 16 == 15) rig.sync();  // no rank's queue is full while another waits for its launch
  }
  work.check_results(rounds);
}

/// One small sum of all ranks but `absent`.
void enqueue_sum(PeerRig& rig, std::vector<GpuArray<float>>& arrays, int absent = -1) {
  rig.on_all([&](RigRank& rank) {
    if (rank.view.rank == absent) return;
    float* const x = arrays[static_cast<std::size_t>(rank.view.rank)].data();
    peer::all_reduce(rank.view, rig.launch(peer::Shots::one), MatrixView<float>(x, {1, 64}),
                     rank.gpu.context);
  });
}

std::vector<GpuArray<float>> ones(PeerRig& rig) {
  std::vector<GpuArray<float>> out;
  rig.on_all([&](RigRank&) { out.emplace_back(std::vector<float>(64, 1.f)); });
  return out;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("10^5 sums of peers in graphs, with ranks that come late", "[peer][soak]") {
  if (!has_gpu()) return;
  soak<bf16>(2, 1, 1250);
  soak<bf16>(4, 1, 200);
  soak<bf16>(8, 1, 100);
  soak<float>(3, 1, 50);
  if (num_gpus() < 2) return;
  soak<bf16>(2, 2, 800);
  soak<bf16>(4, 2, 100);
}

TEST_CASE("two groups of peers on the same devices at a time", "[peer]") {
  if (!has_gpu()) return;
  for (int devices = 1; devices <= std::min(2, num_gpus()); ++devices) {
    PeerRig one(2, devices, 2), other(2, devices, 2);
    Soak<bf16> first(one, 11), second(other, 12);
    constexpr std::uint32_t kRounds = 50;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      first.launch();
      second.launch();
      if (round % 16 == 15) one.sync(), other.sync();
    }
    first.check_results(kRounds);
    second.check_results(kRounds);
  }
}

TEST_CASE("the host ends ranks that wait for one that does not come, and a new group works",
          "[peer]") {
  if (!has_gpu()) return;
  for (int devices = 1; devices <= std::min(2, num_gpus()); ++devices) {
    PeerRig rig(2, devices);
    auto arrays = ones(rig);
    enqueue_sum(rig, arrays);
    rig.sync();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) enqueue_sum(rig, arrays, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(cudaStreamQuery(rig[0].gpu.stream.get()) == cudaErrorNotReady);
    *rig.ending() = peer::kAborted;
    rig.sync();
    CHECK(seconds_since(begin) < 2);
    enqueue_sum(rig, arrays);  // nobody waits any more
    rig.sync();
    PeerRig fresh(2, devices);
    auto sums = ones(fresh);
    enqueue_sum(fresh, sums);
    fresh.sync();
    for (auto& sum : sums) {
      sum.download();
      CHECK(sum.host == std::vector<float>(64, 2.f));
    }
  }
}

TEST_CASE("a rank that is late beyond the limit ends the group by itself", "[peer]") {
  if (!has_gpu()) return;
  PeerRig rig(2, 1, 1, 100'000'000);
  auto arrays = ones(rig);
  enqueue_sum(rig, arrays);
  rig.sync();
  CHECK(*rig.ending() == peer::kGoesOn);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) enqueue_sum(rig, arrays, 0);
  rig.sync();
  const double seconds = seconds_since(begin);
  CHECK(seconds > 0.09);
  CHECK(seconds < 2);
  CHECK(*rig.ending() == peer::kLate);
}

}  // namespace nanovllm::test
