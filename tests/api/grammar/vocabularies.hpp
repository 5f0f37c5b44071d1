#pragma once
/// Vocabularies for the tests of grammars.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm_test {

/// Token 0 stops, token 1 stands for nothing, token 2 + b is the byte b, the rest is `words`.
inline std::shared_ptr<const nanovllm::GrammarVocabulary> byte_vocabulary(
    const std::vector<std::string>& words = {}) {
  std::string all_bytes(256, '\0');
  for (int b = 0; b < 256; ++b) all_bytes[static_cast<std::size_t>(b)] = static_cast<char>(b);
  std::vector<std::string_view> tokens{"</s>", ""};
  for (std::size_t b = 0; b < 256; ++b) tokens.push_back(std::string_view(all_bytes).substr(b, 1));
  tokens.insert(tokens.end(), words.begin(), words.end());
  const nanovllm::TokenId stop = 0;
  return std::make_shared<const nanovllm::GrammarVocabulary>(tokens, std::span(&stop, 1));
}

inline std::vector<nanovllm::TokenId> allowed_tokens(const nanovllm::TokenMatcher& matcher,
                                                     int vocab_size) {
  std::vector<std::uint32_t> bits(nanovllm::num_mask_words(static_cast<std::size_t>(vocab_size)));
  matcher.fill(bits);
  std::vector<nanovllm::TokenId> tokens;
  for (std::size_t i = 0; i < bits.size(); ++i)
    for (std::uint32_t word = bits[i]; word != 0; word &= word - 1)
      tokens.push_back(static_cast<nanovllm::TokenId>(32 * i) + __builtin_ctz(word));
  return tokens;
}

}  // namespace nanovllm_test
