#pragma once
/// Qwen3 mixtures of experts whose weights are a formula: the one of
/// tests/oracle/make_qwen3_moe_fixtures.py, bit by bit, so that no weights need to be stored.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/with/moe/qwen3_moe/config.hpp"
#include "safetensors_writer.hpp"

namespace nanovllm::test {

/// `name` is the tensor's.
inline std::vector<float> moe_weight(const std::string& name,
                                     const std::vector<std::int64_t>& shape, std::uint64_t seed) {
  std::uint64_t key = 0xCBF29CE484222325u;  // FNV-1a of the name
  for (const char c : name) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  key ^= seed;
  const bool is_norm = name.ends_with("norm.weight");
  const bool is_router = name.find(".gate.weight") != name.npos;
  const double factor = is_router ? 6 : std::count(name.begin(), name.end(), '.') < 3 ? 3 : 5;
  const auto scale = static_cast<float>(factor / std::sqrt(static_cast<double>(shape.back())));
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  std::vector<float> out;
  for (std::int64_t i = 0; i < size; ++i) {
    std::uint64_t x = static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15u ^ key;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    const float noise = static_cast<float>(x >> 40) * 0x1p-24f - 0.5f;
    out.push_back(is_norm ? noise + 1.f : noise * scale);
  }
  return out;
}

/// Name and shape of every weight.
inline std::vector<std::pair<std::string, std::vector<std::int64_t>>> moe_tensors(
    const nlohmann::json& json) {
  const Qwen3MoeConfig config = Qwen3MoeConfig::from_json(json.dump());
  const std::int64_t w = config.hidden_size, d = config.head_dim;
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> out = {
      {"model.embed_tokens.weight", {config.vocab_size, w}}, {"model.norm.weight", {w}}};
  const auto add_mlp = [&](const std::string& prefix, std::int64_t width) {
    out.push_back({prefix + "gate_proj.weight", {width, w}});
    out.push_back({prefix + "up_proj.weight", {width, w}});
    out.push_back({prefix + "down_proj.weight", {w, width}});
  };
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    const std::int64_t q = config.num_attention_heads * d, kv = config.num_key_value_heads * d;
    out.push_back({layer + "input_layernorm.weight", {w}});
    out.push_back({attention + "q_proj.weight", {q, w}});
    out.push_back({attention + "k_proj.weight", {kv, w}});
    out.push_back({attention + "v_proj.weight", {kv, w}});
    out.push_back({attention + "o_proj.weight", {w, q}});
    out.push_back({attention + "q_norm.weight", {d}});
    out.push_back({attention + "k_norm.weight", {d}});
    out.push_back({layer + "post_attention_layernorm.weight", {w}});
    if (!config.is_sparse(i)) {
      add_mlp(mlp, config.intermediate_size);
      continue;
    }
    out.push_back({mlp + "gate.weight", {config.num_experts, w}});
    for (std::int64_t e = 0; e < config.num_experts; ++e)
      add_mlp(mlp + "experts." + std::to_string(e) + ".", config.moe_intermediate_size);
  }
  if (!config.tie_word_embeddings) out.push_back({"lm_head.weight", {config.vocab_size, w}});
  return out;
}

/// The values in bfloat16; in matrices of experts their size changes by powers of two every 64 rows
/// and columns, so that scales of blocks of 128 that are mixed up show.
inline std::vector<float> uneven(const std::string& name, std::vector<float> values,
                                 const std::vector<std::int64_t>& shape) {
  const bool is_expert = name.find(".experts.") != name.npos;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i), cols = shape.back();
    const auto power = static_cast<int>((at / cols / 64 + at % cols / 64) % 4);
    values[i] = static_cast<float>(bf16(std::ldexp(values[i], is_expert ? 1 - power : 0)));
  }
  return values;
}

/// A directory with config.json and model.safetensors, in float32.
class MoeFiles {
 public:
  /// @param is_uneven  make the weights `uneven`.
  MoeFiles(const nlohmann::json& config, std::uint64_t seed, bool is_uneven = false) {
    nanovllm_test::SafetensorsWriter file;
    for (const auto& [name, shape] : moe_tensors(config)) {
      std::vector<float> values = moe_weight(name, shape, seed);
      if (is_uneven) values = uneven(name, std::move(values), shape);
      file.add(name, "F32", shape, values);
    }
    directory_.write("config.json", config.dump());
    directory_.write("model.safetensors", file.bytes());
  }

  [[nodiscard]] const std::filesystem::path& path() const { return directory_.path(); }

 private:
  nanovllm_test::TempDirectory directory_;
};

}  // namespace nanovllm::test
