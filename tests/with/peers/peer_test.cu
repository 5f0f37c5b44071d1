// Sums through the memory of peers. Ranks are streams of one device, and also of two devices where
// there are two.

#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/parallel/thread_group.hpp"
#include "nanovllm/with/peers/exchange.cuh"
#include "nanovllm/with/peers/sum.cuh"
#include "with/peers/peer_rig.cuh"

namespace nanovllm::test {

namespace {

constexpr float kEps = 1e-6f;

template <class T>
std::vector<T> numbers(std::uint32_t seed, int rank, std::int64_t count) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const float x =
        number_of(seed, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(i));
    out.push_back(T(i % 13 == 5 ? -0.f : x));
  }
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// What ranks in threads make of it, [rank][element].
template <class T>
std::vector<std::vector<T>> sums_on_cpu(std::vector<std::vector<T>> inputs) {
  auto ends = ThreadGroup::make(static_cast<int>(inputs.size()));
  std::vector<std::thread> threads;
  for (ThreadGroup& end : ends) {
    threads.emplace_back([&] {
      auto& mine = inputs[static_cast<std::size_t>(end.rank())];
      end.all_reduce(MatrixView<T>(mine.data(), {1, static_cast<std::int64_t>(mine.size())}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return inputs;
}

/// Numbers of devices that groups are put on.
std::vector<int> device_counts(int size) {
  if (num_gpus() >= 2 && size % 2 == 0) return {1, 2};
  return {1};
}

struct Shape {
  std::int64_t rows, width, gap, shift;
};

template <class T>
void check_plain_sums(int size, int devices, peer::Shots shots) {
  PeerRig rig(size, devices);
  std::uint32_t seed = 0;
  for (const auto [rows, width, gap, shift] : {Shape{1, 4096, 0, 0},
                                               {3, 1000, 0, 0},
                                               {5, 33, 0, 0},
                                               {2, 96, 32, 0},
                                               {7, 96, 3, 0},
                                               {1, 1, 0, 0},
                                               {9, 64, 0, 1},
                                               {64, 1024, 0, 0},
                                               {1, 4096, 0, 0}}) {
    INFO(size << " ranks, " << rows << " x " << width << ", gap " << gap << ", shift " << shift);
    ++seed;
    const std::int64_t stride = width + gap, count = shift + rows * stride;
    std::vector<std::vector<T>> inputs;
    std::vector<GpuArray<T>> arrays;
    rig.on_all([&](RigRank& rank) {
      inputs.push_back(numbers<T>(seed, rank.view.rank, count));
      arrays.emplace_back(inputs.back());
    });
    rig.on_all([&](RigRank& rank) {
      const MatrixView<T> x(arrays[static_cast<std::size_t>(rank.view.rank)].data() + shift,
                            {rows, width}, {stride, 1});
      peer::all_reduce(rank.view, rig.launch(shots), x, rank.gpu.context);
    });
    rig.sync();
    const auto sums = sums_on_cpu(inputs);
    for (int r = 0; r < size; ++r) {
      auto& array = arrays[static_cast<std::size_t>(r)];
      auto expected = inputs[static_cast<std::size_t>(r)];
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto begin = static_cast<std::size_t>(shift + i * stride);
        for (std::size_t j = begin; j < begin + static_cast<std::size_t>(width); ++j)
          expected[j] = sums[static_cast<std::size_t>(r)][j];
      }
      array.download();
      CHECK(same_bits(array.host, expected));
      CHECK(array.guards_intact());
    }
  }
}

template <class T>
struct NormCase {
  NormCase(std::uint32_t seed, int rank, std::int64_t rows, std::int64_t width)
      : x(numbers<T>(seed, rank, rows * width)),
        residual(numbers<T>(seed, 77, rows * width)),
        weight(numbers<T>(seed, 78, width)),
        out(static_cast<std::size_t>(rows * width)) {}
  GpuArray<T> x, residual, weight, out;
};

/// Fused sums against a sum on the CPU with `add_rms_norm` after it, bit by bit, and both against
/// float64.
template <class T>
void check_norms(int size, int devices, peer::Shots shots, std::vector<std::int64_t> widths) {
  PeerRig rig(size, devices);
  std::uint32_t seed = 0;
  for (const std::int64_t width : widths) {
    for (const std::int64_t rows : {1, 3, 40}) {
      INFO(size << " ranks, " << rows << " x " << width);
      ++seed;
      std::vector<NormCase<T>> cases;
      rig.on_all([&](RigRank& rank) { cases.emplace_back(seed, rank.view.rank, rows, width); });
      const bool in_place = rows == 3;
      rig.on_all([&](RigRank& rank) {
        auto& mine = cases[static_cast<std::size_t>(rank.view.rank)];
        const MatrixView<T> x(mine.x.data(), {rows, width}), out(mine.out.data(), {rows, width});
        const MatrixView<T> residual(mine.residual.data(), {rows, width});
        const VectorView<const T> weight(mine.weight.data(), {width});
        REQUIRE(peer::fits_norm(x, residual, weight, out));
        peer::all_reduce_add_norm(rank.view, rig.launch(shots), x, residual, weight, kEps,
                                  in_place ? x : out, rank.gpu.context);
      });
      rig.sync();
      std::vector<std::vector<T>> inputs;
      for (int r = 0; r < size; ++r) inputs.push_back(numbers<T>(seed, r, rows * width));
      const cuda::DeviceGuard guard(0);
      const Gpu gpu;
      NormCase<T> alone(seed, 0, rows, width);
      alone.x.host = sums_on_cpu(inputs)[0];
      alone.x.upload();
      cuda::add_rms_norm(AddRmsNormArgs<T>{.x = MatrixView<T>(alone.x.data(), {rows, width}),
                                           .residual = {alone.residual.data(), {rows, width}},
                                           .weight = {alone.weight.data(), {width}},
                                           .eps = kEps,
                                           .out = {alone.out.data(), {rows, width}}},
                         gpu.context);
      gpu.sync();
      alone.residual.download();
      alone.out.download();
      for (NormCase<T>& mine : cases) {
        auto& out = in_place ? mine.x : mine.out;
        out.download();
        mine.residual.download();
        CHECK(same_bits(mine.residual.host, alone.residual.host));
        CHECK(same_bits(out.host, alone.out.host));
        CHECK(mine.residual.guards_intact());
        CHECK(out.guards_intact());
      }
      const auto before = numbers<T>(seed, 77, rows * width), w = numbers<T>(seed, 78, width);
      double worst = 0;
      for (std::int64_t i = 0; i < rows; ++i) {
        std::vector<double> row;
        double squares = 0;
        for (std::int64_t j = 0; j < width; ++j) {
          const auto at = static_cast<std::size_t>(i * width + j);
          double sum = static_cast<float>(before[at]);
          for (const auto& input : inputs) sum += static_cast<float>(input[at]);
          row.push_back(sum);
          squares += sum * sum;
        }
        const double inverse = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
        for (std::int64_t j = 0; j < width; ++j) {
          const double want = row[static_cast<std::size_t>(j)] * inverse *
                              static_cast<float>(w[static_cast<std::size_t>(j)]);
          const double got =
              static_cast<float>(alone.out.host[static_cast<std::size_t>(i * width + j)]);
          worst = std::max(worst, std::abs(got - want));
        }
      }
      CHECK(worst < (sizeof(T) == 4 ? 200 : 40) * kUnit<T>);
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("sums of peers have the bits of ranks in threads", "[peer]", float, bf16,
                   nanovllm::half) {
  if (!has_gpu()) return;
  for (const int size : {2, 3, 4, 8}) {
    for (const int devices : device_counts(size)) {
      check_plain_sums<TestType>(size, devices, peer::Shots::one);
      check_plain_sums<TestType>(size, devices, peer::Shots::two);
    }
  }
}

TEMPLATE_TEST_CASE("the norm after a sum of peers has the bits of add_rms_norm", "[peer]", float,
                   bf16) {
  if (!has_gpu()) return;
  for (const int size : {2, 4, 8}) {
    for (const int devices : device_counts(size)) {
      check_norms<TestType>(size, devices, peer::Shots::one, {520, 1024, 4096});
      check_norms<TestType>(size, devices, peer::Shots::two, {1024, 2560});
    }
  }
}

TEMPLATE_TEST_CASE("columns of peers lie side by side", "[peer]", float, bf16) {
  if (!has_gpu()) return;
  using T = TestType;
  for (const int size : {2, 3, 8}) {
    for (const int devices : device_counts(size)) {
      PeerRig rig(size, devices);
      std::uint32_t seed = 0;
      for (const auto [rows, width, gap, shift] :
           {Shape{1, 4096, 0, 0}, {3, 1000, 0, 0}, {5, 33, 2, 1}, {1, 4096, 0, 0}, {2, 8, 8, 0}}) {
        INFO(size << " ranks, " << rows << " x " << width << ", gap " << gap);
        ++seed;
        const std::int64_t stride = width + gap;
        std::vector<std::vector<T>> inputs;
        std::vector<GpuArray<T>> parts, wholes;
        rig.on_all([&](RigRank& rank) {
          inputs.push_back(numbers<T>(seed, rank.view.rank, shift + rows * stride));
          parts.emplace_back(inputs.back());
          wholes.emplace_back(static_cast<std::size_t>(rows * width * size));
        });
        rig.on_all([&](RigRank& rank) {
          const auto r = static_cast<std::size_t>(rank.view.rank);
          peer::all_gather_columns(
              rank.view, MatrixView<const T>(parts[r].data() + shift, {rows, width}, {stride, 1}),
              MatrixView<T>(wholes[r].data(), {rows, width * size}), rank.gpu.context,
              rig.launch(peer::Shots::one).max_blocks);
        });
        rig.sync();
        std::vector<T> expected;
        for (std::int64_t i = 0; i < rows; ++i) {
          for (const std::vector<T>& input : inputs) {
            const auto begin = input.begin() + shift + i * stride;
            expected.insert(expected.end(), begin, begin + width);
          }
        }
        for (GpuArray<T>& whole : wholes) {
          whole.download();
          CHECK(same_bits(whole.host, expected));
          CHECK(whole.guards_intact());
        }
      }
    }
  }
}

TEST_CASE("values that look like words that have not arrived are NaN, and nobody waits for them",
          "[peer]") {
  if (!has_gpu()) return;
  for (const peer::Shots shots : {peer::Shots::one, peer::Shots::two}) {
    PeerRig rig(2);
    std::vector<GpuArray<std::uint16_t>> arrays;
    std::vector<std::uint16_t> bits(64, 0x3f80);  // 1
    for (std::size_t i = 8; i < 16; ++i) bits[i] = 0xffff;
    for (std::size_t i = 16; i < 24; ++i) bits[i] = 0x8000;  // -0
    bits[33] = 0xffff;
    rig.on_all([&](RigRank&) { arrays.emplace_back(bits); });
    rig.on_all([&](RigRank& rank) {
      auto* const x =
          reinterpret_cast<bf16*>(arrays[static_cast<std::size_t>(rank.view.rank)].data());
      peer::all_reduce(rank.view, rig.launch(shots), MatrixView<bf16>(x, {1, 64}),
                       rank.gpu.context);
    });
    rig.sync();
    for (auto& array : arrays) {
      array.download();
      for (std::size_t i = 0; i < bits.size(); ++i) {
        const int expected = bits[i] == 0xffff ? 0x7fff : bits[i] == 0x8000 ? 0 : 0x4000;
        CHECK(array.host[i] == expected);
      }
    }
  }
}

// The kernels of one rank alone, with what the other one sends there already: a tool may run
// kernels one after the other.
TEST_CASE("sums of peers, tiny", "[peer][racecheck]") {
  if (!has_gpu()) return;
  constexpr std::int64_t kRows = 3, kWidth = 1024;
  PeerRig rig(2);
  RigRank& rank = rig[0];
  NormCase<bf16> mine(1, 0, kRows, kWidth), other(1, 1, kRows, kWidth);
  const MatrixView<bf16> x(mine.x.data(), {kRows, kWidth}), out(mine.out.data(), x.extents);
  const auto arrive = [&](std::uint32_t call) {
    const std::size_t place = std::size_t{16} * PeerRig::kVectors * (2 * (call % 2) + 1);
    cuda::check_cuda(cudaMemcpy(rank.buffer.data() + place, other.x.data(), 2 * kRows * kWidth,
                                cudaMemcpyDeviceToDevice),
                     "cudaMemcpy");
    cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  };
  arrive(0);
  peer::all_reduce(rank.view, {}, x, rank.gpu.context);
  rig.sync();
  mine.x.download();
  const auto sums =
      sums_on_cpu<bf16>({numbers<bf16>(1, 0, kRows * kWidth), numbers<bf16>(1, 1, kRows * kWidth)});
  CHECK(same_bits(mine.x.host, sums[0]));
  arrive(1);
  const peer::Launch two_blocks{.max_blocks = 2};
  peer::all_reduce_add_norm(
      rank.view, two_blocks, x, MatrixView<bf16>(mine.residual.data(), x.extents),
      VectorView<const bf16>(mine.weight.data(), {kWidth}), kEps, out, rank.gpu.context);
  rig.sync();
  arrive(2);
  peer::all_gather_columns(rank.view, MatrixView<const bf16>(x).slice(0, 1),
                           MatrixView<bf16>(mine.out.data(), {1, 2 * kWidth}), rank.gpu.context, 2);
  rig.sync();
  CHECK(*rig.ending() == peer::kGoesOn);
}

}  // namespace nanovllm::test
