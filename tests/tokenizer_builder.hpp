#pragma once
/// Small tokenizer.json documents for tests.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/utf8.hpp"
#include "nanovllm/text/vocabulary.hpp"

namespace nanovllm_test {

inline bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

inline std::filesystem::path shared() {
  const char* path = std::getenv("NANOVLLM_SHARED");
  return path != nullptr ? path : "../shared";
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

/// The pattern of Qwen's models.
inline constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Merges = std::vector<std::pair<std::string, std::string>>;

/// A byte-level tokenizer.json: token b is the byte b, then one token for each merge.
struct TokenizerBuilder {
  nlohmann::json file = nlohmann::json::parse(R"({
      "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
      "normalizer": {"type": "NFC"},
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
      "post_processor": null, "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "vocab": {}, "merges": []}})");

  explicit TokenizerBuilder(const Merges& merges = {}) {
    pattern(kQwenPattern);
    nlohmann::json& model = file["model"];
    for (int b = 0; b < 256; ++b) {
      std::string name;
      nanovllm::utf8::append(name, nanovllm::byte_level::kAlphabet[b]);
      model["vocab"][name] = b;
    }
    for (const auto& [left, right] : merges) {
      model["vocab"].emplace(left + right, model["vocab"].size());
      model["merges"].push_back({left, right});
    }
  }

  TokenizerBuilder& pattern(const std::string& regex) {
    file["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", regex}};
    return *this;
  }

  /// Adds a token with the next free id; `flags` holds the names of the flags that are true.
  TokenizerBuilder& added(const std::string& content, const std::vector<std::string>& flags = {}) {
    nlohmann::json token = {{"id", file["model"]["vocab"].size() + file["added_tokens"].size()},
                            {"content", content}};
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"})
      token[flag] = std::find(flags.begin(), flags.end(), flag) != flags.end();
    file["added_tokens"].push_back(token);
    return *this;
  }
};

}  // namespace nanovllm_test
