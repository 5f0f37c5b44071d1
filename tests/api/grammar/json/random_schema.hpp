#pragma once
/// Random JSON Schemas, and random texts under any constraint.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "api/grammar/vocabularies.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm_test {

/// Schemas out of all that structured output usually needs. The same for a seed on every machine.
struct RandomSchema {
  explicit RandomSchema(unsigned seed) : random(seed) {}

  std::mt19937 random;
  bool numbers = true;  ///< such as 4e999, which not every parser takes

  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }
  bool coin() { return below(2) == 0; }

  nlohmann::json schema(int depth) {
    switch (below(depth > 0 ? 12 : 8)) {
      case 0: return {{"type", "boolean"}};
      case 1: return {{"type", "null"}};
      case 2: return numbers ? number() : integer();
      case 3: return integer();
      case 4:
      case 5: return string();
      case 6: {
        nlohmann::json values = nlohmann::json::array();
        for (int i = 1 + below(4); i > 0; --i) values.push_back(value(1));
        return {{"enum", values}};
      }
      case 7: return {{"const", value(2)}};
      case 8: {
        nlohmann::json choices = nlohmann::json::array();
        for (int i = 2 + below(2); i > 0; --i) choices.push_back(schema(depth - 1));
        return {{"anyOf", choices}};
      }
      case 9: return array(depth);
      default: return object(depth);
    }
  }

  nlohmann::json object(int depth) {
    nlohmann::json properties = nlohmann::json::object(), required = nlohmann::json::array();
    for (int i = below(5); i > 0; --i) {
      const std::string name = text(6);
      properties[name] = schema(depth - 1);
    }
    for (const auto& [name, ignored] : properties.items())
      if (coin()) required.push_back(name);
    nlohmann::json out = {{"type", "object"}, {"properties", properties}};
    if (!required.empty()) out["required"] = required;
    switch (below(4)) {
      case 0: out["additionalProperties"] = false; break;
      case 1: out["additionalProperties"] = {{"type", "integer"}}; break;
      default: break;
    }
    return out;
  }

  nlohmann::json array(int depth) {
    nlohmann::json out = {{"type", "array"}, {"items", schema(depth - 1)}};
    const int least = below(4);
    if (coin()) out["minItems"] = least;
    if (coin()) out["maxItems"] = least + below(4);
    return out;
  }

  nlohmann::json integer() {
    nlohmann::json out = {{"type", "integer"}};
    const int low = below(2000) - 1000;
    if (coin()) out[below(4) ? "minimum" : "exclusiveMinimum"] = low;
    if (coin()) out[below(4) ? "maximum" : "exclusiveMaximum"] = low + 2 + below(1500);
    return out;
  }

  nlohmann::json number() {
    nlohmann::json out = {{"type", "number"}};
    if (below(3) == 0) {
      const int low = below(200) - 100;
      out["minimum"] = low;
      out["maximum"] = low + 1 + below(300);
    }
    return out;
  }

  nlohmann::json string() {
    nlohmann::json out = {{"type", "string"}};
    if (coin()) {
      static const std::vector<std::string> patterns{"^[a-z]{2,5}$",
                                                     "^\\d{3}-\\d{4}$",
                                                     "^(foo|bar|b[aeiou]z)+$",
                                                     "^[A-Z][a-z]*( [A-Z][a-z]*)?$",
                                                     "^#[0-9a-fA-F]{6}$",
                                                     "^\\w+@\\w+\\.(com|org)$",
                                                     "^[äöü]+$",
                                                     "^.{1,4}$"};
      out["pattern"] = patterns[static_cast<std::size_t>(below(static_cast<int>(patterns.size())))];
    } else {
      const int least = below(5);
      if (coin()) out["minLength"] = least;
      if (coin()) out["maxLength"] = least + below(8);
    }
    return out;
  }

  /// Any JSON.
  nlohmann::json value(int depth) {
    switch (below(depth > 0 ? 8 : 6)) {
      case 0: return nullptr;
      case 1: return coin();
      case 2: return below(2'000'000) - 1'000'000;
      case 3: return (below(2000) - 1000) / 8.0;
      case 6: {
        nlohmann::json out = nlohmann::json::array();
        for (int i = below(3); i > 0; --i) out.push_back(value(depth - 1));
        return out;
      }
      case 7: {
        nlohmann::json out = nlohmann::json::object();
        for (int i = below(3); i > 0; --i) out[text(4)] = value(depth - 1);
        return out;
      }
      default: return text(8);
    }
  }

  /// Letters, and now and then what JSON must escape.
  std::string text(int max) {
    static const std::vector<std::string> letters{"a", "b", "z", "X", "0",  " ",  "_",  "-",
                                                  "é", "€", "😀", "/", "\"", "\\", "\n", "{"};
    std::string out;
    for (int i = 1 + below(max); i > 0; --i)
      out += letters[static_cast<std::size_t>(below(below(3) == 0 ? 16 : 8))];
    return out;
  }
};

/// A text out of allowed tokens, drawn evenly, and after `patience` tokens the ones that end it
/// first. Nothing where it has no end after `max_tokens`. `steps` counts the masks.
inline std::optional<std::string> random_walk(const nanovllm::TokenMaskSource& source,
                                              const nanovllm::GrammarVocabulary& vocabulary,
                                              std::mt19937& random, int patience, int max_tokens,
                                              long& steps) {
  const auto matcher = source.matcher();
  std::string text;
  for (int step = 0; step < max_tokens; ++step, ++steps) {
    const auto tokens = allowed_tokens(*matcher, vocabulary.vocab_size());
    if (tokens.empty()) throw std::logic_error("no token is allowed behind " + text);
    nanovllm::TokenId drawn = tokens[random() % tokens.size()];
    if (step >= patience) {
      static const std::string_view closing[] = {"\"", "}", "]", "]}", "}}"};
      std::size_t best = std::size(closing);
      for (nanovllm::TokenId token : tokens) {  // such as the @ after letters
        const std::string_view bytes = vocabulary.bytes(token);
        if (bytes.size() == 1 && std::string_view("@.,:").find(bytes) != bytes.npos) drawn = token;
      }
      for (nanovllm::TokenId token : tokens) {
        if (vocabulary.is_stop(token)) {
          drawn = token;
          break;
        }
        for (std::size_t i = 0; i < best; ++i) {
          if (vocabulary.bytes(token) != closing[i]) continue;
          drawn = token;
          best = i;
        }
      }
    } else if (vocabulary.is_stop(tokens.front()) && random() % 4 == 0) {
      drawn = tokens.front();
    }
    if (!matcher->accept(drawn)) throw std::logic_error("a token of the mask is refused");
    if (vocabulary.is_stop(drawn)) return text;
    text += vocabulary.bytes(drawn);
  }
  return std::nullopt;
}

}  // namespace nanovllm_test
