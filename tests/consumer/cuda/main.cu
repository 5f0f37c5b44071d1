// The engine in a translation unit of nvcc, next to one of the host compiler (../main.cpp, which
// has main), and the libraries that nanovllm::cuda links. Needs no GPU.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <nanovllm/engine.hpp>

static_assert(__cplusplus >= 202002L, "nanovllm::cuda asks for C++20");

// No alias 'nv' here: CUDA's own headers have a namespace of that name.
using EngineUnderTest =
    nanovllm::Engine<nanovllm::Qwen3<nanovllm::shapes::qwen3_any>, nanovllm::Float32Policy>;

// Never called: it makes the linker merge both compilers' copies of the same functions.
std::size_t count_tokens(EngineUnderTest& engine, const std::vector<nanovllm::Prompt>& prompts) {
  return engine.generate(prompts).size() + cublasLtGetVersion();
}

int cuda_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}
