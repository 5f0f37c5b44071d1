// A small model with noise for weights: nothing is read, and the tokens are the same everywhere.
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <vector>

int main() {
  nanovllm::Qwen3Config config;
  config.vocab_size = 64;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 64;
  config.max_position_embeddings = 64;
  config.rms_norm_eps = 1e-6;
  nanovllm::Engine<nanovllm::Qwen3<nanovllm::shapes::qwen3_any>> engine(
      config, nanovllm::RandomWeights{}, {.max_num_seqs = 2});
  const std::vector<nanovllm::Prompt> prompts{std::vector<nanovllm::TokenId>{1, 2, 3}};
  const auto outputs =
      engine.generate(prompts, {.temperature = 0.f, .max_tokens = 8, .ignore_eos = true});
  std::printf("%zu tokens\n", outputs.at(0).token_ids.size());
  return outputs.at(0).token_ids.size() == 8 ? 0 : 1;
}
