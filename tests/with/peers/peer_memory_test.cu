// The communicator whose sums go through the memory of peers. Empty where there is no NCCL.

#if __has_include(<nccl.h>)

#include "nanovllm/with/peers/peer_memory.cuh"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/spend_time.cuh"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/parallel/thread_group.hpp"
#include "nanovllm/with/peers/peer_table.cuh"
#include "parallel/child.hpp"
#include "parallel/collective_cases.hpp"
#include "with/peers/peer_rig.cuh"

namespace nanovllm::test {

namespace {

__global__ void late_kernel(unsigned long long nanoseconds) { spend_time(nanoseconds); }

/// The first launch of each loads its code.
template <int kIndex>
__global__ void first_used_kernel() {}

/// Of the largest group, 1 or 0 where there are no two GPUs, which says 'skipped'.
int most_ranks() { return has_gpus(2) ? std::min(num_gpus(), 8) : num_gpus(); }

/// What `attach` wants of a backend.
struct Device {
  explicit Device(int device) : guard(device) {}
  [[nodiscard]] const cuda::Context& context() const { return gpu.context; }

  cuda::DeviceGuard guard;
  Gpu gpu;
};

/// Runs `body(comm, device)` on one thread and device a rank. Returns what they threw.
template <class Body>
std::vector<std::string> run_ranks(std::vector<PeerMemory>& ends, const Body& body) {
  std::vector<std::string> errors(ends.size());
  std::vector<std::thread> threads;
  for (PeerMemory& comm : ends) {
    threads.emplace_back([&] {
      try {
        Device device(comm.rank());
        comm.attach(device);
        body(comm, device);
        device.gpu.sync();
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(comm.rank())] = error.what();
        comm.abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<std::string> no_errors(int size) {
  return std::vector<std::string>(static_cast<std::size_t>(size));
}

/// What collective_cases.hpp wants of memory and ranks.
struct DeviceMemory {
  static constexpr std::int64_t kGap = 0;
  static constexpr float kScale = 1.f;
  static constexpr bool kWaits = false;
  static constexpr float kZero = 0.f;  // NCCL's reduce_scatter keeps the sign of -0

  template <class T>
  using Array = GpuArray<T>;

  template <class T>
  std::vector<T> read(GpuArray<T>& array) const {
    device.gpu.sync();
    array.download();
    check(array.guards_intact(), "memory around an operand was written");
    return array.host;
  }

  Device& device;
};

struct PeerRanks {
  template <class Body>
  static std::vector<std::string> run(int size, const Body& body) {
    auto ends = PeerMemory::make(size, {.measures = false});
    return run_ranks(ends, [&](PeerMemory& comm, Device& device) {
      DeviceMemory memory{device};
      body(comm, memory);
    });
  }
};

/// Two processes that share through files, as `join` wants it.
class FileProcesses {
 public:
  [[nodiscard]] int rank() const { return std::atoi(std::getenv("PEER_TEST_RANK")); }
  [[nodiscard]] int size() const { return 2; }
  /// What rank 0 has is there for all.
  void share(std::span<std::byte> bytes) {
    const auto file = folder_ / concat("share_", num_shared_++);
    auto* const data = reinterpret_cast<char*>(bytes.data());
    const auto count = static_cast<std::streamsize>(bytes.size());
    if (rank() == 0) {
      const std::filesystem::path unfinished = file.string() + ".unfinished";
      std::ofstream(unfinished, std::ios::binary).write(data, count);
      std::filesystem::rename(unfinished, file);
      return;
    }
    for (int i = 0; i < 3000 && !std::filesystem::exists(file); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    check(static_cast<bool>(std::ifstream(file, std::ios::binary).read(data, count)),
          "rank 0 has not shared");
  }

 private:
  std::filesystem::path folder_ = std::getenv("PEER_TEST_FOLDER");
  int num_shared_ = 0;
};

template <class T>
std::vector<T> numbers(std::uint32_t seed, int rank, std::int64_t count) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(
        T(number_of(seed, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(i))));
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE("a table of ways takes the fastest, and the rule's are those that fit", "[peer]") {
  using peer::PeerTable;
  using peer::Way;
  constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB;
  const PeerTable two = PeerTable::by_rule(2, 4 * kMiB), eight = PeerTable::by_rule(8, 2 * kMiB);
  CHECK(two.at(16) == Way::one_shot);
  CHECK(two.at(4 * kMiB) == Way::one_shot);
  CHECK(two.at(4 * kMiB + 1) == Way::nccl);
  CHECK(eight.at(256 * kKiB) == Way::one_shot);
  CHECK(eight.at(256 * kKiB + 1) == Way::two_shot);
  CHECK(eight.at(2 * kMiB) == Way::two_shot);
  CHECK(eight.at(2 * kMiB + 1) == Way::nccl);
  PeerTable::Times times;
  for (auto& way : times) way.fill(10.f);
  times[1].fill(std::numeric_limits<float>::infinity());
  times[2][0] = 9.6f;  // not by enough
  times[2][1] = 9.f;
  times[1][2] = 9.f;
  const PeerTable timed = PeerTable::by_time(times, 32 * kKiB);
  CHECK(timed.at(8 * kKiB) == Way::one_shot);
  CHECK(timed.at(16 * kKiB) == Way::nccl);
  CHECK(timed.at(32 * kKiB) == Way::two_shot);
  CHECK(timed.at(64 * kKiB) == Way::nccl);
}

TEMPLATE_TEST_CASE("sums and columns of peers, at once and from a graph", "[peer][nccl]", float,
                   bf16, nanovllm::half) {
  using T = TestType;
  const int most = most_ranks();
  for (int size = 2; size <= most; size *= 2) {
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, std::int64_t{700}}) {
      const std::int64_t width = 1 + 1030 * (rows % 3);  // 1031, 2061, 1031
      INFO(size << " ranks, " << rows << " x " << width);
      std::vector<std::vector<T>> sums(static_cast<std::size_t>(size));
      std::vector<T> columns(static_cast<std::size_t>(rows * width * size));
      {
        auto ends = ThreadGroup::make(size);
        std::vector<std::thread> threads;
        for (ThreadGroup& end : ends) {
          threads.emplace_back([&] {
            auto& mine = sums[static_cast<std::size_t>(end.rank())];
            mine = numbers<T>(3, end.rank(), rows * width);
            end.all_reduce(MatrixView<T>(mine.data(), {rows, width}));
          });
        }
        for (std::thread& thread : threads) thread.join();
        for (int r = 0; r < size; ++r) {
          const auto part = numbers<T>(3, r, rows * width);
          for (std::int64_t i = 0; i < rows; ++i)
            std::copy_n(part.begin() + i * width, width, columns.begin() + (i * size + r) * width);
        }
      }
      std::vector<int> num_wrong(static_cast<std::size_t>(size), 0);
      auto ends = PeerMemory::make(size, {.measures = rows == 1});
      CHECK(run_ranks(ends, [&](PeerMemory& comm, Device& device) {
              GpuArray<T> input(numbers<T>(3, comm.rank(), rows * width));
              GpuArray<T> sum(static_cast<std::size_t>(rows * width));
              GpuArray<T> whole(static_cast<std::size_t>(rows * width * size));
              const auto work = [&] {
                cuda::check_cuda(cudaMemcpyAsync(sum.data(), input.data(), sum.size() * sizeof(T),
                                                 cudaMemcpyDeviceToDevice, device.gpu.stream.get()),
                                 "cudaMemcpyAsync");
                comm.all_reduce(MatrixView<T>(sum.data(), {rows, width}));
                comm.all_gather_columns(MatrixView<const T>(input.data(), {rows, width}),
                                        MatrixView<T>(whole.data(), {rows, width * size}));
              };
              const auto count_wrong = [&] {
                device.gpu.sync();
                sum.download();
                whole.download();
                int& wrong = num_wrong[static_cast<std::size_t>(comm.rank())];
                // NCCL's sums of more than two ranks may have another order.
                const auto way =
                    comm.way_of(16 * peer::num_vectors(MatrixView<T>(sum.data(), {rows, width})));
                if (size == 2 || way != peer::Way::nccl)
                  wrong += same_bits(sum.host, sums[0]) ? 0 : 1;
                wrong += same_bits(whole.host, columns) ? 0 : 1;
                wrong += !sum.guards_intact() + !whole.guards_intact();
              };
              work();
              count_wrong();
              const cuda::Graph graph = cuda::Graph::capture(device.gpu.stream.get(), work);
              for (int round = 0; round < 3; ++round) graph.launch(device.gpu.stream.get());
              count_wrong();
            }) == no_errors(size));
      CHECK(num_wrong == std::vector<int>(static_cast<std::size_t>(size), 0));
    }
  }
}

TEST_CASE("without memory for peers NCCL has all sums", "[peer][nccl]") {
  if (!has_gpus(2)) return;
  auto ends = PeerMemory::make(2, {.max_bytes = 0, .min_overlapped_bytes = 1});
  std::vector<int> num_wrong(2, 0);
  CHECK(run_ranks(ends, [&](PeerMemory& comm, Device& device) {
          GpuArray<float> x(std::vector<float>(4096, 1.f + comm.rank())), norm(x.host), out(x.host);
          const MatrixView<float> sum(x.data(), {4, 1024}), residual(norm.data(), {4, 1024});
          const VectorView<const float> weight(out.data(), {1024});
          check(!comm.reaches_peers() && !comm.overlaps_sum(sum), "memory of peers is used");
          check(!comm.all_reduce_add_norm(sum, residual, weight, 1e-6f, sum), "a sum was normed");
          device.gpu.sync();
          x.download();
          for (const float value : x.host) num_wrong[comm.rank()] += value != 3.f;
        }) == no_errors(2));
  CHECK(num_wrong == std::vector<int>(2, 0));
}

TEST_CASE("of two groups on the same devices the second adds by NCCL", "[peer][nccl]") {
  if (!has_gpus(2)) return;
  int can = 0;
  if (cudaDeviceCanAccessPeer(&can, 0, 1) != cudaSuccess || can == 0) {
    std::cout << "skipped: the GPUs do not reach each other\n";
    return;
  }
  const auto join = [](std::vector<PeerMemory>& ends) {  // returns whether each end reaches peers
    std::vector<int> out(2, 0);
    CHECK(run_ranks(ends, [&](PeerMemory& comm, Device& device) {
            GpuArray<float> x(std::vector<float>(4096, 1.f + comm.rank()));
            comm.all_reduce(MatrixView<float>(x.data(), {1, 4096}));
            device.gpu.sync();
            x.download();
            check(x.host == std::vector<float>(4096, 3.f), "wrong sum");
            out[comm.rank()] = comm.reaches_peers();
          }) == no_errors(2));
    return out;
  };
  const auto make = [] { return PeerMemory::make(2, {.measures = false}); };
  const std::vector<int> peers(2, 1), nccl(2, 0);
  auto first = make();
  REQUIRE(join(first) == peers);
  auto second = make();
  CHECK(join(second) == nccl);
  second.clear();
  auto third = make();
  CHECK(join(third) == nccl);
  first.clear();
  auto fourth = make();
  CHECK(join(fourth) == peers);
  fourth.clear();
  std::optional<cuda::DeviceClaim<cuda::WaitsForPeers>> of_another(std::in_place, 1);
  auto fifth = make();
  CHECK(join(fifth) == nccl);
  of_another.reset();
  auto sixth = make();  // the fifth has not kept its claim of device 0
  CHECK(join(sixth) == peers);
}

TEST_CASE("rows with gaps are summed though they do not fit at once", "[peer][nccl]") {
  if (!has_gpus(2)) return;
  constexpr std::int64_t kRows = 50, kWidth = 100, kStride = 128;
  auto ends = PeerMemory::make(2, {.max_bytes = 8192, .measures = false});
  std::vector<int> num_wrong(2, 0);
  CHECK(run_ranks(ends, [&](PeerMemory& comm, Device& device) {
          auto values = std::vector<float>(kRows * kStride, 1.f + comm.rank());
          GpuArray<float> x(values);
          comm.all_reduce(MatrixView<float>(x.data(), {kRows, kWidth}, {kStride, 1}));
          device.gpu.sync();
          x.download();
          for (std::int64_t i = 0; i < kRows * kStride; ++i) {
            const float expected = i % kStride < kWidth ? 3.f : 1.f + comm.rank();
            num_wrong[comm.rank()] += x.host[i] != expected;
          }
        }) == no_errors(2));
  CHECK(num_wrong == std::vector<int>(2, 0));
}

TEST_CASE("a sum with a norm after it is that of a sum and a norm", "[peer][nccl]") {
  if (!has_gpus(2)) return;
  std::vector<int> num_fused(2, 0), num_wrong(2, 0);
  auto ends = PeerMemory::make(2, {.measures = false});
  CHECK(run_ranks(ends, [&](PeerMemory& comm, Device& device) {
          for (const std::int64_t width : {64, 1024, 4096, 4100}) {
            for (const std::int64_t rows : {1, 9, 256, 600}) {
              const auto count = static_cast<std::size_t>(rows * width);
              GpuArray<bf16> x(numbers<bf16>(5, comm.rank(), rows * width));
              GpuArray<bf16> residual(numbers<bf16>(5, 77, rows * width));
              GpuArray<bf16> sum(x.host), other_residual(residual.host), out(count);
              GpuArray<bf16> weight(numbers<bf16>(5, 78, width));
              const VectorView<const bf16> w(weight.data(), {width});
              const auto view = [&](GpuArray<bf16>& array) {
                return MatrixView<bf16>(array.data(), {rows, width});
              };
              const bool is_done =
                  comm.all_reduce_add_norm(view(x), view(residual), w, 1e-6f, view(x));
              if (!is_done) {
                cuda::add_rms_norm(
                    AddRmsNormArgs<bf16>{
                        .x = view(x), .residual = view(residual), .weight = w, .out = view(x)},
                    device.context());
              }
              num_fused[comm.rank()] += is_done;
              comm.all_reduce(view(sum));
              cuda::add_rms_norm(AddRmsNormArgs<bf16>{.x = view(sum),
                                                      .residual = view(other_residual),
                                                      .weight = w,
                                                      .out = view(out)},
                                 device.context());
              device.gpu.sync();
              for (auto* array : {&x, &residual, &other_residual, &out}) array->download();
              num_wrong[comm.rank()] += !same_bits(x.host, out.host);
              num_wrong[comm.rank()] += !same_bits(residual.host, other_residual.host);
            }
          }
        }) == no_errors(2));
  CHECK(num_wrong == std::vector<int>(2, 0));
  CHECK(num_fused[0] == num_fused[1]);
  if (ends[0].reaches_peers()) CHECK(num_fused[0] >= 2);
}

TEST_CASE("sums beside other ops have the bits of a sum with a norm after it", "[peer][nccl]") {
  if (!has_gpus(2)) return;
  constexpr std::int64_t kMostRows = 40;
  const std::int64_t width = GENERATE(576, 4096);
  std::vector<int> num_wrong(2, 0), num_made(2, 0);
  auto ends = PeerMemory::make(2, {.measures = false, .min_overlapped_bytes = 1});
  CHECK(
      run_ranks(ends, [&](PeerMemory& comm, Device& device) {
        const int rank = comm.rank();
        GpuArray<bf16> weight(numbers<bf16>(5, 78, width));
        const VectorView<const bf16> w(weight.data(), {width});
        GpuArray<bf16> input(numbers<bf16>(5, rank, 2 * kMostRows * width));
        GpuArray<bf16> added(numbers<bf16>(5, 77, 2 * kMostRows * width));
        GpuArray<bf16> x(input.host), residual(added.host), y(input.host), other(added.host);
        const auto rows_of = [&](GpuArray<bf16>& array, std::int64_t begin, std::int64_t end) {
          return MatrixView<bf16>(array.data(), {2 * kMostRows, width}).slice(begin, end);
        };
        if (!comm.overlaps_sum(rows_of(x, 0, 1))) return;
        // More often than there are words, and now and then one rank is late.
        for (std::uint32_t i = 0; i < 600; ++i) {
          const auto words = philox4x32(9, {i, 0, 0, 0});
          const std::int64_t middle = 1 + words[0] % kMostRows,
                             end = middle + 1 + words[1] % middle;
          for (GpuArray<bf16>* array : {&x, &y, &residual, &other}) {
            GpuArray<bf16>& from = array == &x || array == &y ? input : added;
            cuda::check_cuda(cudaMemcpyAsync(array->data(), from.data(), 2 * end * width,
                                             cudaMemcpyDeviceToDevice, device.gpu.stream.get()),
                             "cudaMemcpyAsync");
          }
          const auto late = [&](std::uint32_t when) {
            if (words[2] % 8 == when) late_kernel<<<1, 1, 0, device.gpu.stream.get()>>>(300'000);
          };
          late(static_cast<std::uint32_t>(rank));
          comm.begin_sum(rows_of(x, 0, middle), kMostRows);
          late(static_cast<std::uint32_t>(rank) + 2);
          comm.begin_sum(rows_of(x, middle, end), kMostRows);
          for (const auto& [a, b] : {std::pair{std::int64_t{0}, middle}, std::pair{middle, end}}) {
            comm.finish_sum_add_norm(rows_of(x, a, b), rows_of(residual, a, b), w, 1e-6f,
                                     rows_of(x, a, b));
          }
          check(comm.all_reduce_add_norm(rows_of(y, 0, end), rows_of(other, 0, end), w, 1e-6f,
                                         rows_of(y, 0, end)),
                "there is no norm to compare with");
          if (i % 10 != 9) continue;
          device.gpu.sync();
          for (GpuArray<bf16>* array : {&x, &y, &residual, &other}) array->download();
          num_wrong[rank] += !same_bits(x.host, y.host) + !same_bits(residual.host, other.host);
          ++num_made[rank];
        }
      }) == no_errors(2));
  CHECK(num_wrong == std::vector<int>(2, 0));
  if (ends[0].reaches_peers()) CHECK(num_made == std::vector<int>(2, 60));
}

TEST_CASE("a sum beside other ops has room, and what cannot be is refused", "[peer][nccl]") {
  for (const std::int64_t bytes :
       {std::int64_t{-8192}, std::int64_t{4096}, std::int64_t{12288}, std::int64_t{1} << 23})
    CHECK_THROWS_AS(PeerMemory::make(2, {.max_bytes = bytes}), ConfigError);
  if (!has_gpus(2)) return;
  auto ends = PeerMemory::make(2, {.measures = false, .min_overlapped_bytes = 1});
  const auto errors = run_ranks(ends, [&](PeerMemory& comm, Device& device) {
    GpuArray<float> x(std::vector<float>(2048, 1.f)), residual(x.host), weight(x.host);
    const MatrixView<float> two(x.data(), {2, 1024}), one = two.slice(0, 1);
    if (!comm.overlaps_sum(two)) throw Error("skipped");
    const auto finish = [&] {
      comm.finish_sum_add_norm(one, MatrixView<float>(residual.data(), {1, 1024}),
                               VectorView<const float>(weight.data(), {1024}), 1e-6f, one);
    };
    const auto is_refused = [](const auto& call) {
      try {
        call();
      } catch (const ShapeError&) {
        return true;
      }
      return false;
    };
    check(is_refused(finish), "a sum that has not begun is finished");
    comm.begin_sum(one, 1);
    check(is_refused([&] { comm.begin_sum(two, 1); }), "a sum without room begins");
    finish();
    check(is_refused(finish), "a sum is finished twice");
    device.gpu.sync();
  });
  if (errors == std::vector<std::string>(2, "skipped")) {
    std::cout << "skipped: the GPUs do not reach each other\n";
    return;
  }
  CHECK(errors == no_errors(2));
}

TEST_CASE("a sum beside other ops ends when the other rank does not come, or aborts",
          "[peer][nccl]") {
  if (!has_gpus(2)) return;
  const bool aborts = GENERATE(false, true);
  auto ends = PeerMemory::make(
      2, {.limit = aborts ? 60 : 0.2, .measures = false, .min_overlapped_bytes = 1});
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run_ranks(ends, [&](PeerMemory& comm, Device& device) {
    GpuArray<float> x(std::vector<float>(1024, 1.f)), residual(x.host), weight(x.host);
    const MatrixView<float> rows(x.data(), {1, 1024});
    if (!comm.overlaps_sum(rows)) throw Error("skipped");
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && comm.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        if (aborts) throw Error("this one fails");
        break;
      }
      comm.begin_sum(rows, 1);
      comm.finish_sum_add_norm(rows, MatrixView<float>(residual.data(), {1, 1024}),
                               VectorView<const float>(weight.data(), {1024}), 1e-6f, rows);
    }
    device.gpu.sync();
    comm.throw_if_late();
    comm.begin_sum(rows, 1);
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  if (errors == std::vector<std::string>(2, "skipped")) {
    std::cout << "skipped: the GPUs do not reach each other\n";
    return;
  }
  CHECK_THAT(errors[0], Catch::Matchers::Contains("another rank failed"));
}

TEST_CASE("a kernel that is launched first after a sum does not keep the other rank from it",
          "[peer][nccl]") {
  if (!has_gpus(2)) return;
  auto ends = PeerMemory::make(2, {.limit = 10, .measures = false, .min_overlapped_bytes = 1});
  CHECK(run_ranks(ends, [&](PeerMemory& comm, Device& device) {
          GpuArray<float> x(std::vector<float>(1024, 1.f)), residual(x.host), weight(x.host);
          const MatrixView<float> rows(x.data(), {1, 1024});
          if (!comm.overlaps_sum(rows)) return;
          void (*const kernels[])() = {first_used_kernel<0>, first_used_kernel<1>,
                                       first_used_kernel<2>, first_used_kernel<3>};
          for (int i = 0; i < 4; ++i) {
            const bool is_late = comm.rank() == i % 2;
            if (is_late) std::this_thread::sleep_for(std::chrono::milliseconds(200));
            comm.begin_sum(rows, 1);
            comm.finish_sum_add_norm(rows, MatrixView<float>(residual.data(), {1, 1024}),
                                     VectorView<const float>(weight.data(), {1024}), 1e-6f, rows);
            if (!is_late) kernels[i]<<<1, 1, 0, device.gpu.stream.get()>>>();
          }
          device.gpu.sync();
          comm.throw_if_late();
        }) == no_errors(2));
}

TEST_CASE("a rank that aborts releases one that waits for its sum, in a graph or not",
          "[peer][nccl]") {
  if (!has_gpus(2)) return;
  const bool in_graph = GENERATE(false, true);
  auto ends = PeerMemory::make(2);
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run_ranks(ends, [&](PeerMemory& comm, Device& device) {
    GpuArray<float> x(std::vector<float>(1024, 1.f));
    const auto work = [&] {
      for (int i = 0; i < 8; ++i) comm.all_reduce(MatrixView<float>(x.data(), {1, 1024}));
    };
    work();
    device.gpu.sync();
    const cuda::Graph graph = cuda::Graph::capture(device.gpu.stream.get(), work);
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      comm.abort();
    } else if (in_graph) {
      graph.launch(device.gpu.stream.get());
      device.gpu.sync();
    } else {
      work();
      device.gpu.sync();
    }
    while (true) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      comm.all_reduce(MatrixView<float>(x.data(), {1, 1024}));
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  for (const std::string& error : errors)
    CHECK_THAT(error, Catch::Matchers::Contains("another rank failed"));
  // A new group takes the place of the old one, end by end.
  const bool reaches = ends[0].reaches_peers();
  auto fresh = PeerMemory::make(2);
  for (std::size_t i = 0; i < 2; ++i) ends[i] = std::move(fresh[i]);
  CHECK(run_ranks(ends, [&](PeerMemory& comm, Device& device) {
          GpuArray<float> x(std::vector<float>(1024, 1.f));
          comm.all_reduce(MatrixView<float>(x.data(), {1, 1024}));
          device.gpu.sync();
          x.download();
          check(x.host == std::vector<float>(1024, 2.f), "wrong sum in the new group");
          check(comm.reaches_peers() == reaches, "the new group goes another way");
        }) == no_errors(2));
}

TEST_CASE("a rank that does not come within the limit is an error of those that wait",
          "[peer][nccl]") {
  if (!has_gpus(2)) return;
  auto ends = PeerMemory::make(2, {.limit = 0.2, .measures = false});
  const auto errors = run_ranks(ends, [&](PeerMemory& comm, Device& device) {
    if (!comm.reaches_peers()) throw Error("skipped");
    GpuArray<float> x(std::vector<float>(1024, 1.f));
    comm.throw_if_late();
    if (comm.rank() == 0) {
      comm.all_reduce(MatrixView<float>(x.data(), {1, 1024}));
    } else {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    device.gpu.sync();
    comm.throw_if_late();
  });
  if (errors == std::vector<std::string>(2, "skipped")) {
    std::cout << "skipped: the GPUs do not reach each other\n";
    return;
  }
  for (const std::string& error : errors)
    CHECK_THAT(error, Catch::Matchers::Contains("failed to come within 200 ms"));
}

/// Not a test by itself: rank PEER_TEST_RANK of two, in a process of its own.
TEST_CASE("a process that is a peer", "[.]") {
  if (std::getenv("PEER_TEST_RANK") == nullptr) return;
  const auto processes = std::make_shared<FileProcesses>();
  Device device(processes->rank());
  PeerMemory comm =
      PeerMemory::join(processes, {.limit = 20, .measures = false, .min_overlapped_bytes = 1});
  comm.attach(device);
  std::cout << "rank " << comm.rank() << " in a process reaches its peer: " << comm.reaches_peers()
            << "\n";
  int num_wrong = 0;
  for (std::uint32_t i = 0; i < 200; ++i) {
    const std::int64_t rows = 1 + i % 7, width = 512 + 8 * (i % 50);
    GpuArray<float> x(numbers<float>(i, comm.rank(), rows * width));
    comm.all_reduce(MatrixView<float>(x.data(), {rows, width}));
    device.gpu.sync();
    x.download();
    const auto zero = numbers<float>(i, 0, rows * width), one = numbers<float>(i, 1, rows * width);
    for (std::size_t j = 0; j < x.size(); ++j) num_wrong += x.host[j] != zero[j] + one[j];
  }
  const std::int64_t width = 1024;  // fused sums, and halves beside other ops
  GpuArray<bf16> weight(numbers<bf16>(5, 78, width));
  const VectorView<const bf16> w(weight.data(), {width});
  for (std::uint32_t i = 0; i < 20 && comm.reaches_peers(); ++i) {
    GpuArray<bf16> x(numbers<bf16>(i, comm.rank(), 4 * width)), y(x.host);
    GpuArray<bf16> residual(numbers<bf16>(i, 77, 4 * width)), other(residual.host);
    const MatrixView<bf16> all(x.data(), {4, width}), added(residual.data(), {4, width});
    check(comm.overlaps_sum(all), "there are no halves");
    for (const int half : {0, 2}) comm.begin_sum(all.slice(half, half + 2), 2);
    for (const int half : {0, 2}) {
      comm.finish_sum_add_norm(all.slice(half, half + 2), added.slice(half, half + 2), w, 1e-6f,
                               all.slice(half, half + 2));
    }
    const MatrixView<bf16> whole(y.data(), {4, width});
    check(comm.all_reduce_add_norm(whole, MatrixView<bf16>(other.data(), {4, width}), w, 1e-6f,
                                   whole),
          "there is no norm to compare with");
    device.gpu.sync();
    for (GpuArray<bf16>* array : {&x, &y, &residual, &other}) array->download();
    num_wrong += !same_bits(x.host, y.host) + !same_bits(residual.host, other.host);
  }
  comm.throw_if_late();
  CHECK(num_wrong == 0);
}

TEST_CASE("ranks in processes reach each other's memory", "[peer][nccl]") {
  if (!has_gpus(2)) return;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / concat("nanovllm_peers_", ::getpid());
  std::filesystem::create_directories(folder);
  std::vector<std::unique_ptr<Child>> children;
  for (const char* rank : {"0", "1"}) {
    children.push_back(std::make_unique<Child>(
        "a process that is a peer", std::map<std::string, std::string>{
                                        {"PEER_TEST_RANK", rank}, {"PEER_TEST_FOLDER", folder}}));
  }
  for (auto& child : children) CHECK(child->wait(std::chrono::seconds(90)) == 0);
  std::filesystem::remove_all(folder);
}

TEMPLATE_TEST_CASE("rows of peers, summed, gathered and exchanged", "[peer][nccl][collectives]",
                   float, bf16) {
  for (int size = 1, most = std::min(4, most_ranks()); size <= most; ++size) {
    check_sums_of_rows<TestType, PeerRanks>(size);
    check_all_to_all<TestType, PeerRanks>(size);
  }
}

TEST_CASE("an abort releases peers that wait for rows", "[peer][nccl][collectives]") {
  if (!has_gpus(2)) return;
  check_abort_releases<PeerRanks>(2, "another rank failed");
}

}  // namespace nanovllm::test

#endif
