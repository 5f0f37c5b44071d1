#pragma once
/// The fairytale model with the post-processor of Qwen3-Embedding, and what transformers makes of
/// it: tests/oracle/make_embedding_fixture.py.

#include <string>
#include <utility>
#include <vector>

#include "memory_checkpoint.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nanovllm::test {

inline Json embedding_oracle() {
  return parse_json(MappedFile("tests/fixtures/embeddings.json").text(), "embeddings.json");
}

/// The model; its tokeniser puts `<|endoftext|>` after a text.
inline Checkpoint embedding_model() {
  const Checkpoint files("examples/models/fairytale");
  auto model = nanovllm_test::MemoryCheckpoint::copy_of(files);
  for (const char* file : {"chat_template.jinja", "tokenizer_config.json"})
    model.texts[file] = files.required_text(file);
  std::string& text = model.texts["tokenizer.json"];
  Json tokenizer = parse_json(text, "tokenizer.json");
  const Json oracle = embedding_oracle();
  tokenizer["post_processor"] = Json(oracle["templates"][0]["post_processor"]);
  text = tokenizer.dump();
  return Checkpoint(std::move(model));
}

template <class T>
std::vector<T> numbers(const Json& list) {
  std::vector<T> out;
  for (const Json& element : list) out.push_back(static_cast<T>(element.get<double>()));
  return out;
}

inline std::vector<std::string> strings(const Json& list, const char* key) {
  std::vector<std::string> out;
  for (const Json& element : list) out.push_back(element[key].string());
  return out;
}

}  // namespace nanovllm::test
