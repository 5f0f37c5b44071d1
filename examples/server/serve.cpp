// An OpenAI-compatible server; serve_program.hpp is the program.
#include "engine_factory.hpp"
#include "serve_program.hpp"

int main(int argc, char** argv) {
  return nanovllm::examples::serve_main(argc, argv, nanovllm::examples::make_engine);
}
