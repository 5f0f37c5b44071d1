#pragma once
/// The processes of a test program that mpirun has started. Every one runs the same test cases.

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "catch.hpp"
#include "nanovllm/with/mpi/process_group.hpp"

namespace nanovllm::test {

using Group = std::shared_ptr<ProcessGroup>;

/// All processes, until the program ends; null when there is one.
inline const Group& world() {
  static const Group group = ProcessGroup::world();
  return group;
}

/// Whether there are `size` processes, or any number but one. Says 'skipped' if not.
inline bool processes_present(int size = 0) {
  const int present = world() == nullptr ? 1 : world()->size();
  if (size == 0 ? present > 1 : present == size) return true;
  std::printf("skipped: this is for %d processes, there are %d\n", size == 0 ? 2 : size, present);
  return false;
}

/// Calls `body`. What it throws ends the job: other ranks may wait for this one.
template <class Body>
void run_rank(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    world()->fail(error.what());
  }
}

/// The message of the `Expected` that `body` throws, or an empty text. Other exceptions end the job.
template <class Expected, class Body>
std::string error_of(const Body& body) {
  std::string text;
  run_rank([&] {
    try {
      body();
    } catch (const Expected& error) {
      text = error.what();
    }
  });
  return text;
}

}  // namespace nanovllm::test
