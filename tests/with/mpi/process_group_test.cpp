// Processes of MPI and what they tell each other. mpi_tests.cmake starts the program with mpirun.

#include "nanovllm/with/mpi/process_group.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "with/mpi/world.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Tag = ProcessGroup::Tag;
using std::chrono::milliseconds;

namespace {

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("places, shared bytes, minima and gathered bytes", "[process_group]") {
  if (!processes_present()) return;
  ProcessGroup& group = *world();
  CHECK(group.local_rank() == group.rank());  // mpirun started all of them here
  CHECK(group.local_size() == group.size());
  run_rank([&] {
    std::array<int, 4> shared{group.rank(), 1 + group.rank(), 2, 3};
    group.share(bytes_of(shared));
    check(shared == std::array{0, 1, 2, 3}, "share");
    check(group.minimum(10 - group.rank()) == 11 - group.size(), "minimum");
    check(group.minimum(std::int64_t{1} << (40 + group.rank())) == std::int64_t{1} << 40,
          "minimum");
    for (const std::size_t unit : {0u, 1u, 100'000u}) {
      const std::vector<std::byte> mine(unit * static_cast<std::size_t>(group.rank()),
                                        std::byte(group.rank()));
      const auto all = group.gather(mine);
      check(all.size() == static_cast<std::size_t>(group.size()), "gather");
      for (std::size_t r = 0; r < all.size(); ++r)
        check(all[r] == std::vector<std::byte>(unit * r, std::byte(r)), "gather of rank ", r);
    }
  });
}

TEST_CASE("messages of rank 0 come in order, of any size", "[process_group]") {
  if (!processes_present()) return;
  ProcessGroup& group = *world();
  run_rank([&] {
    std::vector<std::byte> got;
    int number = 0;
    for (const std::size_t size : {0u, 5u, 4096u, 10'000'000u, 1u}) {
      const std::vector<std::byte> message(size, std::byte(++number));
      const Tag tag = size == 5 ? Tag::logits : Tag::step;
      if (group.rank() == 0) {
        group.broadcast(tag, std::span(message).first(size / 2),
                        std::span(message).subspan(size / 2));
      } else {
        if (size == 4096) {
          while (!group.wait_for_message(milliseconds(1))) {
          }
        }
        check(group.receive(got) == tag && got == message, "message of ", size, " bytes");
      }
    }
  });
}

TEST_CASE("a message that does not come is waited for as long as was said, without the core",
          "[process_group]") {
  if (!processes_present()) return;
  ProcessGroup& group = *world();
  run_rank([&] {
    static_cast<void>(group.minimum(0));
    std::vector<std::byte> got;
    if (group.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(1500));
      return group.broadcast(Tag::sample, {});
    }
    const auto begin = std::chrono::steady_clock::now();
    check(!group.wait_for_message(milliseconds(200)), "there is no message");
    const double waited = seconds_since(begin);
    check(waited >= 0.2, "it waited for ", waited, " s");
    const std::clock_t clocks = std::clock();
    check(group.receive(got) == Tag::sample && got.empty(), "message");
    const double busy = static_cast<double>(std::clock() - clocks) / CLOCKS_PER_SEC;
    check(busy < 0.15, "waiting for 1.3 s took ", busy, " s of a core");
  });
}

TEST_CASE("a group of some of the processes", "[process_group]") {
  if (!processes_present()) return;
  run_rank([&] {
    const int rank = world()->rank();
    MPI_Comm half = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);  // in reverse order
    ProcessGroup group(half);
    MPI_Comm_free(&half);  // the group has its own
    const int size = (world()->size() + 1 - rank % 2) / 2;
    check(group.size() == size && group.rank() == size - 1 - rank / 2, "place");
    int first = rank;
    group.share(bytes_of(first));
    check(first == 2 * (size - 1) + rank % 2, "rank 0 of the half is the last of all");
  });
}
