// The same as kv_cache_primer.cpp on a GPU.
#include "kv_cache_primer.hpp"

int main(int argc, char** argv) {
  return nanovllm::examples::primer_main<nanovllm::CudaFloat32Policy>(argc, argv);
}
