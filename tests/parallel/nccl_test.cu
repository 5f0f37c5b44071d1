// Sums and columns through NCCL, and its end. Empty where there is no NCCL.

#if __has_include(<nccl.h>)

#include "nanovllm/parallel/nccl.cuh"

#include <chrono>
#include <thread>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/elementwise/step_boundary.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/parallel/thread_group.hpp"
#include "parallel/collective_cases.hpp"

namespace nanovllm::test {

namespace {

/// Of the largest group, 1 or 0 where there are no two GPUs, which says 'skipped'.
int most_ranks() { return has_gpus(2) ? std::min(num_gpus(), 4) : num_gpus(); }

/// What `attach` wants of a backend.
struct Device {
  explicit Device(int device) : guard(device) {}
  [[nodiscard]] const cuda::Context& context() const { return gpu.context; }

  cuda::DeviceGuard guard;
  Gpu gpu;
};

/// Runs `body(comm, device)` on one thread and device a rank.
template <class Body>
void run_ranks(std::vector<Nccl>& ends, const Body& body) {
  std::vector<std::thread> threads;
  for (Nccl& comm : ends) {
    threads.emplace_back([&] {
      Device device(comm.rank());
      comm.attach(device);
      body(comm, device);
      device.gpu.sync();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Small numbers that every sum and every element type holds exactly.
template <class T>
std::vector<T> numbers(int rank, std::int64_t count) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(T(static_cast<float>((i * (rank + 3)) % 17 - 8)));
  return out;
}

/// What collective_cases.hpp wants of memory and ranks.
struct DeviceMemory {
  static constexpr std::int64_t kGap = 0;
  static constexpr float kScale = 1.f;
  static constexpr bool kWaits = false;

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

struct NcclRanks {
  template <class Body>
  static std::vector<std::string> run(int size, const Body& body) {
    std::vector<std::string> errors(static_cast<std::size_t>(size));
    auto ends = Nccl::make(size);
    run_ranks(ends, [&](Nccl& comm, Device& device) {
      try {
        DeviceMemory memory{device};
        body(comm, memory);
        device.gpu.sync();
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(comm.rank())] = error.what();
        comm.abort();
      }
    });
    return errors;
  }
};

}  // namespace

TEST_CASE("groups of several ranks are counted", "[nccl]") {
  if (!has_gpu()) return;
  const auto alone = Nccl::make(1);
  CHECK(cuda::WaitingGroup::num_alive() == 0);
  {
    const auto two = Nccl::make(2), three = Nccl::make(3);
    CHECK(cuda::WaitingGroup::num_alive() == 2);
  }
  CHECK(cuda::WaitingGroup::num_alive() == 0);
}

TEMPLATE_TEST_CASE("sums and columns of all ranks, at once and from a graph", "[nccl]", float, bf16,
                   nanovllm::half) {
  const int size = most_ranks();
  if (size < 2) return;
  constexpr std::int64_t kRows = 5, kWidth = 96;
  std::vector<float> sums(kRows * kWidth, 0.f), columns(kRows * kWidth * size);
  for (int rank = 0; rank < size; ++rank) {
    const auto mine = numbers<TestType>(rank, kRows * kWidth);
    for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
      const auto value = static_cast<float>(mine[i]);
      sums[i] += value;
      columns[(i / kWidth) * kWidth * size + rank * kWidth + i % kWidth] = value;
    }
  }
  std::vector<int> num_wrong(size, 0);
  auto ends = Nccl::make(size);
  run_ranks(ends, [&](Nccl& comm, Device& device) {
    GpuArray<TestType> input(numbers<TestType>(comm.rank(), kRows * kWidth));
    GpuArray<TestType> sum(kRows * kWidth), whole(kRows * kWidth * size);
    const auto work = [&] {
      cuda::check_cuda(cudaMemcpyAsync(sum.data(), input.data(), sum.size() * sizeof(TestType),
                                       cudaMemcpyDeviceToDevice, device.gpu.stream.get()),
                       "cudaMemcpyAsync");
      comm.all_reduce(MatrixView<TestType>(sum.data(), {kRows, kWidth}));
      comm.all_gather_columns(MatrixView<const TestType>(input.data(), {kRows, kWidth}),
                              MatrixView<TestType>(whole.data(), {kRows, kWidth * size}));
    };
    const auto count_wrong = [&] {
      device.gpu.sync();
      sum.download();
      whole.download();
      int& wrong = num_wrong[comm.rank()];
      for (std::size_t i = 0; i < sums.size(); ++i)
        wrong += static_cast<float>(sum.host[i]) != sums[i];
      for (std::size_t i = 0; i < columns.size(); ++i)
        wrong += static_cast<float>(whole.host[i]) != columns[i];
      wrong += !sum.guards_intact() + !whole.guards_intact();
    };
    work();
    count_wrong();
    const cuda::Graph graph = cuda::Graph::capture(device.gpu.stream.get(), work);
    for (int round = 0; round < 3; ++round) graph.launch(device.gpu.stream.get());
    count_wrong();
  });
  CHECK(num_wrong == std::vector<int>(size, 0));
}

TEST_CASE("a graph that holds sums begins with the kernel ahead of them, and takes its arguments",
          "[nccl]") {
  if (!has_gpus(2)) return;
  constexpr std::int64_t kCount = 1024;
  std::vector<int> num_wrong(2, 0);
  auto ends = Nccl::make(2);
  run_ranks(ends, [&](Nccl& comm, Device& device) {
    const cuda::Context& context = device.context();
    int& wrong = num_wrong[static_cast<std::size_t>(comm.rank())];
    std::vector<GpuArray<float>> inputs;
    for (int i = 0; i < 3; ++i) inputs.emplace_back(numbers<float>(comm.rank() + i, kCount));
    GpuArray<float> x(kCount);
    const auto args = [&](int i) {
      UnpackStepArgs out;
      out.add_column(VectorView<const float>(inputs[static_cast<std::size_t>(i)].data(), {kCount}),
                     VectorView<float>(x.data(), {kCount}));
      return out;
    };
    const auto work = [&] {
      cuda::unpack_step(args(0), context);
      for (int i = 0; i < 3; ++i)  // of more kernels than one, as in a step
        comm.all_reduce(MatrixView<float>(x.data(), {1, kCount}));
    };
    work();
    device.gpu.sync();
    const cuda::Graph graph = cuda::Graph::capture(context.stream, work);
    const bool begins = graph.begins_with_kernel();
    wrong += begins ? 0 : 1;
    for (const int i : {1, 2, 0, 2}) {
      if (begins) graph.set_first(cuda::unpack_grid(args(i)), args(i));
      graph.launch(context.stream);
      device.gpu.sync();
      x.download();
      const auto one = numbers<float>(i, kCount), other = numbers<float>(i + 1, kCount);
      for (std::size_t j = 0; j < x.size(); ++j)
        wrong += x.host[j] == 4 * (one[j] + other[j]) ? 0 : 1;
      wrong += x.guards_intact() ? 0 : 1;
    }
  });
  CHECK(num_wrong == std::vector<int>(2, 0));
}

TEST_CASE("a rank that aborts releases one that waits on its device, in a graph or not", "[nccl]") {
  if (!has_gpus(2)) return;
  const bool in_graph = GENERATE(false, true);
  std::vector<std::string> errors(2);
  auto ends = Nccl::make(2);
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(ends, [&](Nccl& comm, Device& device) {
    GpuArray<float> x(1024);
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
    try {
      while (true) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        comm.all_reduce(MatrixView<float>(x.data(), {1, 1024}));
      }
    } catch (const CudaError& error) {
      errors[comm.rank()] = error.what();
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  for (const std::string& error : errors)
    CHECK_THAT(error, Catch::Matchers::Contains("another rank failed"));
}

TEMPLATE_TEST_CASE("rows of all ranks, summed, gathered and exchanged", "[nccl][collectives]",
                   float, bf16) {
  for (int size = 1, most = most_ranks(); size <= most; ++size) {
    check_sums_of_rows<TestType, NcclRanks>(size);
    check_all_to_all<TestType, NcclRanks>(size);
    check_all_to_all<std::int32_t, NcclRanks>(size);
  }
}

TEST_CASE("ranks compare their calls as they come, and one that does not fit ends the group",
          "[nccl][collectives]") {
  detail::NcclGroup group(3, 0, 3);
  const auto come = [&](int rank, std::int64_t rows) {
    group.compare(rank,
                  detail::RowExchange::even("all_gather", 3, MatrixView<float>(nullptr, {rows, 2}),
                                            MatrixView<float>(nullptr, {3 * rows, 2})));
  };
  for (int rank : {0, 2, 1}) {
    for (const std::int64_t rows : {1, 5, 0}) come(rank, rows);  // each is ahead of the next
  }
  CHECK(group.calls.empty());
  come(2, 4);
  CHECK(group.calls.size() == 1);
  const char* const error = "all_gather: rank 2 expected [4, 2] of rank 0, got [3, 2]";
  CHECK_THROWS_WITH(come(0, 3), error);
  for (int rank : {0, 1, 2}) CHECK_THROWS_WITH(come(rank, 4), error);
  CHECK(group.aborted);
}

TEST_CASE("operands that do not fit are an error of all ranks on GPUs", "[nccl][collectives]") {
  if (!has_gpus(2)) return;
  const std::vector<std::string> expected = mismatches(2);
  for (std::size_t which = 0; which < expected.size(); ++which) {
    const auto errors = NcclRanks::run(2, [&](Nccl& comm, DeviceMemory& memory) {
      GpuArray<float> x(4);
      try {
        call_mismatched(which, comm, memory);
        for (;;) {  // until the other rank has made its call
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          comm.all_reduce(MatrixView<float>(x.data(), {2, 2}));
        }
      } catch (const ShapeError& error) {
        throw Error(concat("ShapeError: ", error.what()));
      }
    });
    CHECK(errors == std::vector<std::string>(2, "ShapeError: " + expected[which]));
  }
}

TEST_CASE("an abort releases ranks that wait for rows on their GPUs", "[nccl][collectives]") {
  const int size = most_ranks();
  if (size < 2) return;
  check_abort_releases<NcclRanks>(size, "another rank failed");
}

}  // namespace nanovllm::test

#endif
