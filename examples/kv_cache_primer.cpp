// GPT-2 with and without its KV cache, on the CPU; kv_cache_primer.hpp is the program, and
// docs/kv_cache_primer.md the page. Usage: kv_cache_primer [--model DIR | --random] [--prompt TEXT]
// [--tokens N] [--svg FILE]
#include "kv_cache_primer.hpp"

int main(int argc, char** argv) {
  return nanovllm::examples::primer_main<nanovllm::Float32Policy>(argc, argv);
}
