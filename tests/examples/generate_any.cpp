// examples/generate.cpp with the models whose sizes come from config.json, so that it needs no
// compiled engine of a published size.
#include "generate_program.hpp"

int main(int argc, char** argv) {
  using namespace nanovllm;
  return examples::generate_main<AllModels>(argc, argv);
}
