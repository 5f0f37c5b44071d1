// A shape of the program's own, whose engine the library has, and a model of its own, which is
// compiled here; and what a wing does with an engine.
#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/with/pooling.hpp>

#include "consumer.hpp"

inline constexpr nanovllm::Qwen3Shape kOwnShape{.hidden_size = 256, .head_dim = 128};

struct OwnModel : nanovllm::Qwen3<kOwnShape> {};

std::string consumer::text_of_own_shape(const std::string& model) {
  nanovllm::Engine<nanovllm::Qwen3<kOwnShape>> engine({.model = model});
  return engine.generate(kPrompt, {.temperature = 0.f, .max_tokens = 12}).text;
}

std::string consumer::text_of_own_model(const std::string& model) {
  nanovllm::Engine<OwnModel> engine({.model = model});
  return engine.generate(kPrompt, {.temperature = 0.f, .max_tokens = 12}).text;
}

std::size_t consumer::size_of_embedding(const std::string& model) {
  nanovllm::Engine<nanovllm::Qwen3<kOwnShape>> engine({.model = model});
  return nanovllm::embed(engine, kPrompt).size();
}
