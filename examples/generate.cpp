// Offline batches on the CPU; generate_program.hpp is the program.
#include "generate_program.hpp"

int main(int argc, char** argv) {
  using namespace nanovllm;
  return examples::generate_main<PublishedModels>(argc, argv);
}
