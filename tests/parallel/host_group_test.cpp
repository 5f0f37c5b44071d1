#include "nanovllm/parallel/host_group.hpp"

#include <bit>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "parallel/collective_cases.hpp"
#include "parallel/process_rig.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// The bits of what a rank has after both operations, on rows with gaps between them.
template <class T>
std::vector<std::uint32_t> compute(HostGroup& comm) {
  constexpr std::int64_t kRows = 3, kWidth = 5, kStride = 7;
  std::vector<T> values(kRows * kStride, T(-1.f));
  const MatrixView<T> x(values.data(), {kRows, kWidth}, {kStride, 1});
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i < kWidth; ++i) {
      const auto rank = static_cast<float>(comm.rank()),
                 place = static_cast<float>(kWidth * row + i);
      *x.at(row, i) = T(0.37f * (rank + 1.f) - 0.11f * place);
    }
  }
  *x.at(1, 2) = T(-0.f);  // on all ranks
  comm.all_reduce(x);
  comm.all_reduce(MatrixView<T>(nullptr, {0, kWidth}));
  std::vector<T> whole(static_cast<std::size_t>(kRows * kWidth * comm.size()));
  comm.all_gather_columns(MatrixView<const T>(x),
                          MatrixView<T>(whole.data(), {kRows, kWidth * comm.size()}));
  values.insert(values.end(), whole.begin(), whole.end());
  std::vector<std::uint32_t> out;
  for (const T value : values)
    out.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  return out;
}

template <class T>
void compare(int size) {
  std::vector<std::vector<std::uint32_t>> threads(static_cast<std::size_t>(size)),
      processes = threads;
  std::vector<std::thread> running;
  for (HostGroup& end : HostGroup::make(size)) {
    running.emplace_back([&threads, comm = std::move(end)]() mutable {
      threads[static_cast<std::size_t>(comm.rank())] = compute<T>(comm);
    });
  }
  for (std::thread& thread : running) thread.join();
  const auto errors = run_group(size, [&](const std::shared_ptr<ProcessGroup>& group) {
    HostGroup comm = HostGroup::join(group);
    processes[static_cast<std::size_t>(comm.rank())] = compute<T>(comm);
  });
  CHECK(errors == std::vector<std::string>(static_cast<std::size_t>(size)));
  CHECK(threads == processes);
}

/// The ranks of collective_cases.hpp.
struct ThreadRanks {
  template <class Body>
  static std::vector<std::string> run(int size, const Body& body) {
    return run_ends(HostGroup::make(size), body);
  }
};
struct ProcessRanks {
  template <class Body>
  static std::vector<std::string> run(int size, const Body& body) {
    return run_group(size, [&](const std::shared_ptr<ProcessGroup>& group) {
      HostGroup comm = HostGroup::join(group);
      HostMemory memory;
      try {
        body(comm, memory);
      } catch (...) {
        comm.abort();
        throw;
      }
    });
  }
};

}  // namespace

TEST_CASE("processes and threads give the same bits", "[host_group]") {
  const int size = GENERATE(1, 2, 3, 4);
  compare<float>(size);
  compare<bf16>(size);
}

TEST_CASE("a process that aborts releases the others with an error", "[host_group]") {
  const auto errors = run_group(3, [](const std::shared_ptr<ProcessGroup>& group) {
    HostGroup comm = HostGroup::join(group);
    if (comm.rank() == 1) comm.abort();
    std::vector<float> x(4, 1.f);
    comm.all_reduce(MatrixView<float>(x.data(), {2, 2}));
  });
  CHECK(errors == std::vector<std::string>(3, "rank 1: cannot go on"));
}

TEMPLATE_TEST_CASE("rows summed, gathered and exchanged by processes", "[host_group][collectives]",
                   float, bf16) {
  for (int size : {1, 2, 3, 4}) {
    check_sums_of_rows<TestType, ProcessRanks>(size);
    check_all_to_all<TestType, ProcessRanks>(size);
  }
  check_sums_of_rows<TestType, ThreadRanks>(3);
  check_all_to_all<std::int32_t, ProcessRanks>(3);
  check_all_to_all<std::int32_t, ThreadRanks>(3);
}

TEST_CASE("operands that do not fit are an error of all processes", "[host_group][collectives]") {
  check_mismatches<ProcessRanks>(3);
}

TEST_CASE("an abort releases processes that wait for rows", "[host_group][collectives]") {
  check_abort_releases<ProcessRanks>(3, "rank 1: cannot go on");
}
