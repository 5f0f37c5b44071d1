// Offline batches on the CPU; generate_program.hpp is the program.
#include "generate_program.hpp"

namespace nv = nanovllm;

int main(int argc, char** argv) {
  using namespace nv::shapes;
  return nv::examples::generate_main(
      argc, argv,
      {{"cpu", [] { return true; },
        nv::examples::run_dtype<nv::FullFloat32Policy, nv::FullPolicy, fairytale, qwen3_0_6b,
                                qwen3_1_7b, qwen3_4b, qwen3_8b, qwen3_14b, qwen3_32b>}});
}
