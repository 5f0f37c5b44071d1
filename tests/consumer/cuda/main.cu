// The engine in a translation unit of nvcc, next to one of the host compiler (../main.cpp, which
// has main), and the libraries that nanovllm::cuda links. Needs no GPU.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <nanovllm/engine.hpp>

static_assert(__cplusplus >= 202002L, "nanovllm::cuda asks for C++20");

namespace nv = nanovllm;

using EngineUnderTest = nv::Engine<nv::Qwen3<nv::shapes::qwen3_any>, nv::Float32Policy>;

// Never called: it makes the linker merge both compilers' copies of the same functions.
std::size_t count_tokens(EngineUnderTest& engine, const std::vector<nv::Prompt>& prompts) {
  return engine.generate(prompts).size() + cublasLtGetVersion();
}

int cuda_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}
