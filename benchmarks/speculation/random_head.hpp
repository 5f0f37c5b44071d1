#pragma once
// An EAGLE-3 head with random weights, as a directory that `Eagle3Drafter` reads.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/with/eight_bits/checkpoint/safetensors_writer.hpp"

namespace speculation_bench {

namespace nv = nanovllm;

/// Writes a head of a target's shape, with a vocabulary of its own of `draft_vocab` tokens, to
/// `folder`, which is made anew. Its weights are small noise in bfloat16.
template <class ModelConfig>
void write_random_head(const ModelConfig& model, std::int64_t draft_vocab,
                       const std::filesystem::path& folder) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto hidden = static_cast<std::uint64_t>(model.hidden_size);
  const auto inner = static_cast<std::uint64_t>(model.intermediate_size);
  const auto q = static_cast<std::uint64_t>(model.num_attention_heads * model.head_dim);
  const auto kv = static_cast<std::uint64_t>(model.num_key_value_heads * model.head_dim);
  const auto vocab = static_cast<std::uint64_t>(draft_vocab);
  std::ofstream(folder / "config.json") << nv::concat(
      R"({"speculators_model_type": "eagle3", "draft_vocab_size": )", draft_vocab,
      R"(, "norm_before_residual": true, "transformer_layer_config": {"model_type": "llama", )",
      R"("hidden_act": "silu", "rms_norm_eps": 1e-6, "num_hidden_layers": 1, "hidden_size": )",
      hidden, R"(, "intermediate_size": )", inner, R"(, "num_attention_heads": )",
      model.num_attention_heads, R"(, "num_key_value_heads": )", model.num_key_value_heads,
      R"(, "head_dim": )", model.head_dim, R"(, "vocab_size": )", model.vocab_size,
      R"(, "max_position_embeddings": )", model.max_position_embeddings,
      R"(, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}}})");
  std::vector<nv::TensorInfo> tensors;
  const auto add = [&](std::string name, std::vector<std::uint64_t> shape,
                       nv::FileDType dtype = nv::FileDType::bf16) {
    tensors.push_back({.name = std::move(name), .dtype = dtype, .shape = std::move(shape)});
  };
  add("fc.weight", {hidden, 3 * hidden});
  add("layers.0.self_attn.q_proj.weight", {q, 2 * hidden});
  add("layers.0.self_attn.k_proj.weight", {kv, 2 * hidden});
  add("layers.0.self_attn.v_proj.weight", {kv, 2 * hidden});
  add("layers.0.self_attn.o_proj.weight", {hidden, q});
  add("layers.0.mlp.gate_proj.weight", {inner, hidden});
  add("layers.0.mlp.up_proj.weight", {inner, hidden});
  add("layers.0.mlp.down_proj.weight", {hidden, inner});
  for (const char* norm : {"input_layernorm", "hidden_norm", "post_attention_layernorm"})
    add(nv::concat("layers.0.", norm, ".weight"), {hidden});
  add("norm.weight", {hidden});
  add("lm_head.weight", {vocab, hidden});
  add("d2t", {vocab}, nv::FileDType::i64);
  nv::SafetensorsFileWriter file(folder / "model.safetensors", tensors);
  std::vector<std::uint16_t> noise(std::size_t{1} << 20);
  std::uint32_t word = 1;
  for (std::uint16_t& element : noise) {  // between 2^-7 and 2^-6, of either sign
    word = word * 1664525 + 1013904223;
    element = static_cast<std::uint16_t>(0x3c00u | (word >> 16 & 0x807fu));
  }
  const std::vector<std::uint64_t> zeros(vocab);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].dtype == nv::FileDType::i64) {
      file.write(i, 0, std::as_bytes(std::span(zeros)));
      continue;
    }
    std::uint64_t size = 2;
    for (const std::uint64_t extent : tensors[i].shape) size *= extent;
    const auto bytes = std::as_bytes(std::span(noise));
    for (std::uint64_t at = 0; at < size; at += bytes.size())
      file.write(i, at, bytes.first(std::min<std::uint64_t>(bytes.size(), size - at)));
  }
  file.finish();
}

}  // namespace speculation_bench
