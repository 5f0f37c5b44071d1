#pragma once
/// The fairytale model as checkpoints without lm_head: embedding models, and classifiers with the
/// heads of tests/oracle/make_score_head_fixture.py.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "memory_checkpoint.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/mapped_file.hpp"
#include "with/pooling/embedding_oracle.hpp"

namespace nanovllm::test {

/// How a checkpoint of the fairytale model is written.
struct Headless {
  std::string architecture = "Qwen3ForCausalLM";
  bool tied = false;
  bool has_prefix = false;                  ///< `model.` in front of the tensors' names
  bool has_lm_head = false;                 ///< a copy of the embedding
  std::vector<std::vector<float>> score{};  ///< rows of score.weight; empty: there is none
};

inline std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), sizeof(float) * values.size()};
}

inline nanovllm_test::MemoryCheckpoint headless_files(const Headless& form) {
  const Checkpoint files = embedding_model();
  nanovllm_test::MemoryCheckpoint out;
  for (const char* file : {"tokenizer.json", "generation_config.json", "tokenizer_config.json"})
    out.texts[file] = files.required_text(file);
  Json config = parse_json(files.required_text("config.json"), "config.json");
  config["architectures"] = Json::array({form.architecture});
  config["tie_word_embeddings"] = form.tied;
  out.texts["config.json"] = config.dump();
  for (const CheckpointTensor& tensor : files.tensors()) {
    const std::string bytes(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    out.add(tensor.name.substr(form.has_prefix ? 0 : 6), tensor.dtype, tensor.shape, bytes);
    if (form.has_lm_head && tensor.name == "model.embed_tokens.weight")
      out.add("lm_head.weight", tensor.dtype, tensor.shape, bytes);
  }
  std::vector<float> score;
  for (const auto& row : form.score) score.insert(score.end(), row.begin(), row.end());
  if (!score.empty())
    out.add("score.weight", FileDType::f32, {form.score.size(), score.size() / form.score.size()},
            bytes_of(score));
  return out;
}

inline Checkpoint headless_model(const Headless& form) { return Checkpoint(headless_files(form)); }

inline Json score_head_oracle() {
  return parse_json(MappedFile("tests/fixtures/score_heads.json").text(), "score_heads.json");
}

/// The classifier of one of the fixture's heads: 0 has one label, 1 has three.
inline Checkpoint classifier_model(std::size_t head) {
  const Json oracle = score_head_oracle();
  Headless form{.architecture = "Qwen3ForSequenceClassification", .tied = true, .has_prefix = true};
  for (const Json& row : oracle["heads"][head]["weight"]) form.score.push_back(numbers<float>(row));
  return headless_model(form);
}

}  // namespace nanovllm::test
