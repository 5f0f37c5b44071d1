#include "nanovllm/text/detokenizer.hpp"

#include <cstdio>
#include <random>

#include "catch.hpp"
#include "tokenizer_builder.hpp"

namespace nv = nanovllm;
using nanovllm_test::Merges;
using nanovllm_test::read_json;
using nanovllm_test::shared;
using nanovllm_test::TokenizerBuilder;
using nlohmann::json;
using Ids = std::vector<nv::TokenId>;

namespace {

std::string streamed(nv::Detokenizer& stream, const Ids& ids) {
  std::string text;
  for (nv::TokenId id : ids) text += stream.push(id);
  return text + stream.flush();
}

/// Token b is the byte b; a few more span characters.
nv::Tokenizer byte_tokenizer() {
  TokenizerBuilder builder(
      Merges{{"\u00E2", "\u0124"}, {"\u0124", "\u00AC"}, {"\u00C3", "\u00A9"}});
  builder.added("<|end|>", {"special"}).added("<think>");
  return nv::Tokenizer::from_json(builder.file.dump());
}

}  // namespace

TEST_CASE("A character comes out whole with its last token", "[detokenizer]") {
  nv::Detokenizer stream(byte_tokenizer());
  CHECK(stream.push('a') == "a");
  CHECK(stream.push(0xE4) == "");
  CHECK(stream.push(0xBD) == "");
  CHECK(stream.push(0xA0) == "\u4F60");
  CHECK(stream.push(0xF0) == "");
  CHECK(stream.push(0x9F) == "");
  CHECK(stream.push('x') == "\uFFFDx");  // the two bytes will not become a character any more
  CHECK(stream.push(0x80) == "\uFFFD");
  CHECK(stream.push(0xFF) == "\uFFFD");
  CHECK(stream.push(0xC3) == "");
  CHECK(stream.push(260) == "\uFFFD<think>");
  CHECK(stream.push(0xE4) == "");
  CHECK(stream.flush() == "\uFFFD");
  CHECK(stream.flush() == "");
  CHECK(stream.push('b') == "b");
}

TEST_CASE("Special tokens and unknown ids add nothing, and bytes join across them",
          "[detokenizer]") {
  const nv::Tokenizer tokenizer = byte_tokenizer();
  const nv::TokenId end = *tokenizer.token_to_id("<|end|>");
  nv::Detokenizer skipping(tokenizer), keeping(tokenizer, false);
  CHECK(streamed(skipping, {0xC3, end, 0xA9, 100000, -5, end}) == "\u00E9");
  CHECK(streamed(keeping, {0xC3, end, 0xA9, 'a', end}) == "\uFFFD<|end|>\uFFFDa<|end|>");
}

TEST_CASE("Streamed text equals the decoded text for any ids", "[detokenizer]") {
  const nv::Tokenizer tokenizer = byte_tokenizer();
  std::mt19937 random(1);
  for (int round = 0; round < 50000; ++round) {
    Ids ids(random() % 14);
    for (nv::TokenId& id : ids)
      id = static_cast<nv::TokenId>(random() % 3 ? 0x80 + random() % 0x80 : random() % 264);
    const bool skip = round % 2 == 0;
    nv::Detokenizer stream(tokenizer, skip);
    std::string text;
    for (nv::TokenId id : ids) {
      const std::string more = stream.push(id);
      REQUIRE(nv::utf8::valid_prefix(more) == more.size());
      text += more;
    }
    REQUIRE(tokenizer.decode(ids, skip).starts_with(text));
    REQUIRE(text + stream.flush() == tokenizer.decode(ids, skip));
  }
}

TEST_CASE("The reference's streams concatenate to the same text", "[detokenizer]") {
  const auto file = shared() / "qwen3" / "tokenizer.json";
  const auto cases_file = shared() / "cases" / "tokenizer_cases.json";
  if (!exists(file) || !exists(cases_file)) {
    std::puts("skipped: no shared reference data");
    return;
  }
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_file(file);
  const json cases = read_json(cases_file);
  CHECK(cases["streaming"].size() >= 13);
  for (const json& item : cases["streaming"]) {
    INFO(item["name"]);
    const bool skip = item["skip_special_tokens"];
    nv::Detokenizer stream(tokenizer, skip);
    std::string ours, reference;
    for (std::size_t i = 0; i < item["ids"].size(); ++i) {
      ours += stream.push(item["ids"][i]);
      if (item["steps"][i].is_string()) reference += item["steps"][i];
      CHECK(ours.starts_with(reference));  // never later than the reference
    }
    ours += stream.flush();
    CHECK(ours == item["full"]);
    CHECK(tokenizer.decode(item["ids"].get<Ids>(), skip) == item["full"]);
  }
  for (const char* list : {"cases", "decode_only"}) {
    for (const json& item : cases[list]) {
      INFO(item["name"]);
      nv::Detokenizer keeping(tokenizer, false), skipping(tokenizer);
      CHECK(streamed(keeping, item["ids"]) == item["decoded"]);
      CHECK(streamed(skipping, item["ids"]) == item["decoded_skip_special"]);
    }
  }
}
