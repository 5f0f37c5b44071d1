// One program, two shared libraries with the engine inside, and a header of ours as well. Both
// libraries give the same tokens, also when they run at the same time, and an exception of the
// library thrown in one of them is caught here by its type.
#include <nanovllm/core/error.hpp>

#include <array>
#include <cstdio>
#include <thread>

#include "library_engine.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::array<int, 8> left, right;
  left.fill(-1);
  right.fill(-2);
  std::thread other([&] { left_generate(argv[1], 8, left.data()); });
  right_generate(argv[1], 8, right.data());
  other.join();
  if (left != right) {
    std::printf("the libraries disagree: %d ... and %d ...\n", left[0], right[0]);
    return 1;
  }
  try {
    left_generate("/no/such/folder", 8, left.data());
  } catch (const nanovllm::LoadError& error) {
    std::printf("caught: %s\n", error.what());
    return 0;
  }
  std::printf("a LoadError was expected\n");
  return 1;
}
