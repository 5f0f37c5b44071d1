// Fuzzes the tokeniser. The first byte of the input chooses what the rest is:
//   0  a tokenizer.json
//   1  a JSON merge patch for a small valid tokenizer.json
//   2  a pattern, a zero byte, a text to split with it
//   3  a text to encode and, as bytes, ids to decode
// Bad input must end in a nanovllm::Error; what loads must keep the laws checked here.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "nanovllm/text/detokenizer.hpp"
#include "nanovllm/text/tokenizer.hpp"
#include "tokenizer_builder.hpp"

namespace nv = nanovllm;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::string lossy_nfc(std::string_view text) {
  std::string valid, storage;
  nv::utf8::append_lossy(valid, text);
  return std::string(nv::nfc(valid, storage));
}

const nanovllm_test::TokenizerBuilder& small() {
  static const auto builder = [] {
    nanovllm_test::TokenizerBuilder b(nanovllm_test::Merges{
        {"t", "h"}, {"th", "e"}, {"\u0120", "the"}, {"\u0120", "\u0120"}, {"l", "l"}, {"1", "2"}});
    b.added("<|end|>", {"special"}).added("<think>").added("<thin", {"single_word"});
    return b;
  }();
  return builder;
}

/// Any tokenizer keeps this for any text and ids.
void use(const nv::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<nv::TokenId> ids = tokenizer.encode(text);
  for (nv::TokenId id : ids)
    require(id >= 0 && static_cast<std::size_t>(id) < tokenizer.vocab_size());
  require(tokenizer.encode(text) == ids);  // the second time from the word cache
  std::vector<nv::TokenId> any;
  for (char byte : text) any.push_back(3 * byte);
  for (const auto& list : {ids, any}) {
    for (bool skip : {false, true}) {
      nv::Detokenizer stream(tokenizer, skip);
      std::string streamed;
      for (nv::TokenId id : list) streamed += stream.push(id);
      streamed += stream.flush();
      require(streamed == tokenizer.decode(list, skip));
    }
  }
}

void load(const std::string& json) {
  try {
    const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(json);
    use(tokenizer, "Hello, the  <|end|> th\xFF \u00E9e\u0301\n12");
    use(tokenizer, std::string_view(json).substr(0, 200));
  } catch (const nv::Error&) {
  }
}

void split(std::string_view pattern, std::string_view text) {
  try {
    const nv::SplitPattern split = nv::SplitPattern::regex(pattern);
    std::string valid, joined;
    nv::utf8::append_lossy(valid, text.substr(0, 100));
    nv::RegexScratch scratch;
    split.split(valid, scratch, [&](std::string_view piece) {
      require(!piece.empty());
      joined += piece;
    });
    require(joined == valid);
  } catch (const nv::Error&) {
  }
}

void encode(std::string_view text) {
  static const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(small().file.dump());
  use(tokenizer, text);
  // An added token cuts the text before NFC, so the law holds for text without one.
  if (text.find('<') == text.npos)
    require(tokenizer.decode(tokenizer.encode(text), false) == lossy_nfc(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: load(std::string(rest)); break;
    case 1: {
      const auto patch = nlohmann::json::parse(rest, nullptr, false);
      if (patch.is_discarded()) break;
      nlohmann::json file = small().file;
      file.merge_patch(patch);
      load(file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
      break;
    }
    case 2: {
      const std::size_t zero = rest.find('\0');
      if (zero != rest.npos) split(rest.substr(0, zero), rest.substr(zero + 1));
      break;
    }
    default: encode(rest);
  }
  return 0;
}
