#pragma once
/// GPT-2 checkpoints whose weights are a formula: the one of tests/oracle/make_gpt2_fixtures.py, bit
/// by bit, so that no weights need to be stored.

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "safetensors_writer.hpp"

namespace nanovllm::test {

/// `name` is the tensor's without "transformer.".
inline std::vector<float> gpt2_weight(const std::string& name,
                                      const std::vector<std::int64_t>& shape, std::uint64_t seed) {
  std::uint64_t key = 0xCBF29CE484222325u;  // FNV-1a of the name
  for (const char c : name) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  key ^= seed;
  const bool bias = name.ends_with(".bias");
  const bool norm = name.find("ln_") != std::string::npos;
  const bool embedding =
      name.starts_with("wte") || name.starts_with("wpe") || name.starts_with("lm_head");
  const double factor = embedding ? 3 : name.find("c_attn") != std::string::npos ? 5 : 4;
  const auto width = static_cast<double>(embedding ? shape.back() : shape.front());
  const auto scale = static_cast<float>(factor / std::sqrt(width));
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  std::vector<float> out;
  for (std::int64_t i = 0; i < size; ++i) {
    std::uint64_t x = static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15u ^ key;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    const float noise = static_cast<float>(x >> 40) * 0x1p-24f - 0.5f;
    out.push_back(bias ? noise * 0.5f : norm ? noise + 1.f : noise * scale);
  }
  return out;
}

/// How the files of a checkpoint may differ.
struct Gpt2FileStyle {
  std::string prefix = "transformer.";
  bool masks = false;      ///< with the buffers that old files have
  bool tied_head = false;  ///< with a copy of the tied lm_head
  bool out_in = false;     ///< dense layers are [out, in], as in GGUF files
};

/// Name without prefix and shape of every weight.
inline std::vector<std::pair<std::string, std::vector<std::int64_t>>> gpt2_tensors(
    const nlohmann::json& config) {
  const std::int64_t w = config["n_embd"], vocab = config["vocab_size"];
  const std::int64_t inner = config.value("n_inner", nlohmann::json()).is_null()
                                 ? 4 * w
                                 : config["n_inner"].get<std::int64_t>();
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> out = {
      {"wte.weight", {vocab, w}}, {"wpe.weight", {config["n_positions"], w}}};
  const auto add = [&](const std::string& name, std::int64_t in, std::int64_t size) {
    if (in == 0) {
      out.push_back({name + ".weight", {size}});
    } else {
      out.push_back({name + ".weight", {in, size}});
    }
    out.push_back({name + ".bias", {size}});
  };
  for (int i = 0; i < config["n_layer"].get<int>(); ++i) {
    const std::string prefix = "h." + std::to_string(i) + ".";
    add(prefix + "ln_1", 0, w), add(prefix + "attn.c_attn", w, 3 * w);
    add(prefix + "attn.c_proj", w, w), add(prefix + "ln_2", 0, w);
    add(prefix + "mlp.c_fc", w, inner), add(prefix + "mlp.c_proj", inner, w);
  }
  add("ln_f", 0, w);
  if (!config.value("tie_word_embeddings", true)) out.push_back({"lm_head.weight", {vocab, w}});
  return out;
}

/// A directory with config.json and model.safetensors, in float32.
class Gpt2Files {
 public:
  Gpt2Files(const nlohmann::json& config, std::uint64_t seed, const Gpt2FileStyle& style = {}) {
    nanovllm_test::SafetensorsWriter file;
    for (const auto& [name, shape] : gpt2_tensors(config)) {
      const std::string prefix = name.starts_with("lm_head") ? "" : style.prefix;
      const std::vector<float> weight = gpt2_weight(name, shape, seed);
      if (style.out_in && shape.size() == 2 && name.find(".c_") != name.npos) {
        file.add(prefix + name, "F32", {shape[1], shape[0]}, transposed(weight, shape[1]));
      } else {
        file.add(prefix + name, "F32", shape, weight);
      }
    }
    if (style.tied_head) {
      const auto [table, shape] = gpt2_tensors(config).front();
      file.add("lm_head.weight", "F32", shape, gpt2_weight(table, shape, seed));
    }
    for (int i = 0; style.masks && i < config["n_layer"].get<int>(); ++i) {
      const std::string attention = style.prefix + "h." + std::to_string(i) + ".attn.";
      file.add(attention + "bias", "U8", {1, 1, 2, 2}, std::vector<char>{1, 0, 1, 1});
      file.add(attention + "masked_bias", "F32", {}, std::vector<float>{-1e4f});
    }
    directory_.write("config.json", config.dump());
    directory_.write("model.safetensors", file.bytes());
  }

  [[nodiscard]] const std::filesystem::path& path() const { return directory_.path(); }

 private:
  static std::vector<float> transposed(const std::vector<float>& from, std::int64_t columns) {
    std::vector<float> out;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto rows = from.size() / static_cast<std::size_t>(columns);
      out.push_back(from[i % rows * static_cast<std::size_t>(columns) + i / rows]);
    }
    return out;
  }

  nanovllm_test::TempDirectory directory_;
};

}  // namespace nanovllm::test
