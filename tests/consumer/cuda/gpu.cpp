// Engines on the GPU in a translation unit of the host's compiler: one that nanovllm::cuda_engines
// has, and one that shares its kernels and has a scheduling of its own. Without a GPU they say so.
#include <nanovllm/cuda_policy.hpp>
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#if defined(__CUDACC__)
#error "this is to be compiled without nvcc"
#endif

struct PrefillFirstPolicy : nanovllm::CudaPolicy {
  using Scheduling = nanovllm::PrefillFirst;
};

template <class Policy>
std::string try_engine(const char* checkpoint) {
  try {
    nanovllm::Engine<nanovllm::Qwen3<nanovllm::shapes::qwen3_any>, Policy> engine(
        {.model = checkpoint, .max_num_seqs = 4, .max_model_len = 64});
    const std::vector<nanovllm::Prompt> prompts{std::vector<nanovllm::TokenId>{1, 2, 3}};
    const auto outputs =
        engine.generate(prompts, {.temperature = 0.f, .max_tokens = 4, .ignore_eos = true});
    return std::to_string(outputs.at(0).token_ids.size()) + " tokens";
  } catch (const std::exception& error) {
    return error.what();
  }
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int failed = 0;
  for (const std::string& said :
       {try_engine<nanovllm::CudaPolicy>(argv[1]), try_engine<PrefillFirstPolicy>(argv[1])}) {
    std::printf("%s\n", said.c_str());
    if (said != "4 tokens" && said.find("CUDA") == std::string::npos &&
        said.find("cuda") == std::string::npos) {
      failed = 1;
    }
  }
  return failed;
}
