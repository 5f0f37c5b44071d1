// Sums and rows of CPU ranks in processes. mpi_tests.cmake starts the program with mpirun.

#include "nanovllm/with/mpi/host_group.hpp"

#include <bit>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "parallel/collective_cases.hpp"
#include "with/mpi/world.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// The bits of what a rank has after both operations, on rows with gaps between them.
template <class T>
std::vector<std::uint32_t> compute(HostGroup& comm, std::int64_t rows, std::int64_t width) {
  const std::int64_t stride = width + 2;
  std::vector<T> values(static_cast<std::size_t>(rows * stride), T(-1.f));
  const MatrixView<T> x(values.data(), {rows, width}, {stride, 1});
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i) {
      const auto rank = static_cast<float>(comm.rank());
      const auto place = static_cast<float>((width * row + i) % 1009);
      // Of many magnitudes, so that another order of the sum has other bits.
      *x.at(row, i) = T((0.37f * (rank + 1.f) - 0.11f * place) * (comm.rank() % 2 == 0 ? 1e3f : 1));
    }
  }
  *x.at(1, 2) = T(-0.f);  // on all ranks
  std::vector<T> whole(static_cast<std::size_t>(rows * width * comm.size()));
  comm.all_gather_columns(MatrixView<const T>(x),
                          MatrixView<T>(whole.data(), {rows, width * comm.size()}));
  comm.all_reduce(x);
  comm.all_reduce(MatrixView<T>(nullptr, {0, width}));
  values.insert(values.end(), whole.begin(), whole.end());
  std::vector<std::uint32_t> out;
  for (const T value : values)
    out.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  return out;
}

template <class T>
void compare(int size, std::int64_t rows, std::int64_t width) {
  std::vector<std::vector<std::uint32_t>> threads(static_cast<std::size_t>(size));
  std::vector<std::thread> running;
  for (HostGroup& end : HostGroup::make(size)) {
    running.emplace_back([&, comm = std::move(end)]() mutable {
      threads[static_cast<std::size_t>(comm.rank())] = compute<T>(comm, rows, width);
    });
  }
  for (std::thread& thread : running) thread.join();
  run_rank([&] {
    HostGroup comm = HostGroup::join(world());
    check(compute<T>(comm, rows, width) == threads[static_cast<std::size_t>(comm.rank())],
          "the bits of threads");
  });
}

/// The ranks of collective_cases.hpp: threads of this process.
struct OnThreads {
  template <class Body>
  static std::vector<std::string> run(int size, const Body& body) {
    return run_ends(HostGroup::make(size), body);
  }
};
/// All processes. There is no error to return: it ends the job.
struct OnProcesses {
  template <class Body>
  static std::vector<std::string> run(int size, const Body& body) {
    run_rank([&] {
      HostGroup comm = HostGroup::join(world());
      HostMemory memory;
      body(comm, memory);
    });
    return std::vector<std::string>(static_cast<std::size_t>(size));
  }
};

}  // namespace

TEMPLATE_TEST_CASE("processes and threads give the same bits", "[host_group]", float, bf16) {
  if (!processes_present()) return;
  compare<TestType>(world()->size(), 3, 5);
  compare<TestType>(world()->size(), 70, 2001);  // in several pieces
}

TEMPLATE_TEST_CASE("rows summed, gathered and exchanged by processes", "[host_group][collectives]",
                   float, bf16) {
  if (!processes_present()) return;
  const int size = world()->size();
  check_sums_of_rows<TestType, OnProcesses>(size);
  check_all_to_all<TestType, OnProcesses>(size);
  check_all_to_all<std::int32_t, OnProcesses>(size);
  check_sums_of_rows<TestType, OnThreads>(size);
  check_all_to_all<TestType, OnThreads>(size);
}

TEST_CASE("operands that do not fit are an error of all processes", "[host_group][collectives]") {
  if (!processes_present()) return;
  check_mismatches<OnProcesses>(world()->size());
}
