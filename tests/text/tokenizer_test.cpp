#include "nanovllm/text/tokenizer.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "tokenizer_builder.hpp"

namespace nv = nanovllm;
using nanovllm_test::mentions;
using nanovllm_test::Merges;
using nanovllm_test::read_json;
using nanovllm_test::shared;
using nanovllm_test::TokenizerBuilder;
using nlohmann::json;
using Ids = std::vector<nv::TokenId>;

namespace {

/// Whether a case of one thread is left out, because ThreadSanitizer makes it slow and finds
/// nothing.
bool skip_one_thread() {
#if defined(__SANITIZE_THREAD__)
  std::puts("skipped: one thread, and a minute under ThreadSanitizer");
  return true;
#else
  return false;
#endif
}

/// The tokenizer.json of the small model that comes with the examples.
std::filesystem::path fairytale() {
  const std::filesystem::path shipped = "examples/models/fairytale/tokenizer.json";
  return exists(shipped) ? shipped : shared() / "models" / "fairytale" / "tokenizer.json";
}

/// The message of the LoadError that loading raises; empty if it loads.
std::string load_error(const json& file) {
  try {
    (void)nv::Tokenizer::from_json(file.dump());
    return {};
  } catch (const nv::LoadError& error) {
    return error.what();
  }
}

/// The same for loading from a path.
std::string file_error(const std::filesystem::path& path) {
  try {
    (void)nv::Tokenizer::from_file(path);
    return {};
  } catch (const nv::LoadError& error) {
    return error.what();
  }
}

/// Compares with every case of an oracle file, see tests/oracle/tokenizer_fuzz.py.
void check_against_oracle(const json& oracle, const std::filesystem::path& tokenizer_file) {
  for (const json& suite : oracle["suites"]) {
    json file = read_json(tokenizer_file);
    for (const json& token : suite["extra_added_tokens"]) file["added_tokens"].push_back(token);
    const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(file.dump());
    std::size_t count = 0;
    std::vector<std::string> differences;
    for (const json& item : suite["encode"]) {
      const std::string text = item[0];
      ++count;
      const Ids ids = tokenizer.encode(text);
      if (ids == item[1].get<Ids>()) continue;
      differences.push_back(nv::concat("encode ", item[0].dump(-1, ' ', true), " gives ",
                                       json(ids).dump(), ", expected ", item[1].dump()));
    }
    for (const json& item : suite["decode"]) {
      ++count;
      const std::string text = tokenizer.decode(item[0].get<Ids>(), item[1]);
      if (text == item[2].get<std::string>()) continue;
      differences.push_back(nv::concat("decode ", item[0].dump(), " gives ", json(text).dump(),
                                       ", expected ", item[2].dump()));
    }
    REQUIRE(count > 0);
    for (std::size_t i = 0; i < differences.size() && i < 5; ++i) UNSCOPED_INFO(differences[i]);
    CHECK(differences.size() == 0);
    std::printf("%zu cases against %s\n", count, oracle["about"].get<std::string>().c_str());
  }
}

}  // namespace

TEST_CASE("Random strings get the reference's ids with the fairytale vocabulary", "[tokenizer]") {
  if (!exists(fairytale())) {
    std::puts("skipped: no fairytale model");
    return;
  }
  check_against_oracle(read_json("tests/fixtures/tokenizer_fairytale.json"), fairytale());
}

TEST_CASE("Every string of a given oracle file gets the reference's ids", "[tokenizer]") {
  const char* path = std::getenv("NANOVLLM_TOKENIZER_ORACLE");
  if (path == nullptr) {
    std::puts("skipped: NANOVLLM_TOKENIZER_ORACLE is not set, see tests/oracle/tokenizer_fuzz.py");
    return;
  }
  const json oracle = read_json(path);
  check_against_oracle(oracle, oracle["tokenizer"].get<std::string>());
}

TEST_CASE("The published Qwen3 tokenizer encodes and decodes every reference case", "[tokenizer]") {
  const auto file = shared() / "qwen3" / "tokenizer.json";
  const auto cases_file = shared() / "cases" / "tokenizer_cases.json";
  if (!exists(file) || !exists(cases_file)) {
    std::puts("skipped: no shared reference data");
    return;
  }
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_file(file);
  CHECK(tokenizer.vocab_size() == 151669);
  const json cases = read_json(cases_file);
  for (const json& item : cases["cases"]) {
    INFO(item["name"]);
    CHECK(tokenizer.encode(item["text"].get<std::string>()) == item["ids"].get<Ids>());
    CHECK(tokenizer.decode(item["ids"].get<Ids>(), false) == item["decoded"]);
    CHECK(tokenizer.decode(item["ids"].get<Ids>()) == item["decoded_skip_special"]);
    for (std::size_t i = 0; i < item["ids"].size(); ++i)
      CHECK(tokenizer.token_to_id(item["tokens"][i].get<std::string>()) == item["ids"][i]);
  }
  for (const json& item : cases["decode_only"]) {
    INFO(item["name"]);
    CHECK(tokenizer.decode(item["ids"].get<Ids>(), false) == item["decoded"]);
    CHECK(tokenizer.decode(item["ids"].get<Ids>()) == item["decoded_skip_special"]);
  }
  CHECK(cases["cases"].size() >= 244);
  CHECK(cases["decode_only"].size() >= 29);
}

TEST_CASE("A small vocabulary encodes by its merges and decodes by its bytes", "[tokenizer]") {
  const TokenizerBuilder builder(Merges{{"l", "l"}, {"h", "e"}, {"he", "ll"}, {"\u0120", "w"}});
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(builder.file.dump());
  CHECK(tokenizer.encode("hello wll") == Ids{258, 'o', 259, 256});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.decode(Ids{258, 'o', 259, 256}) == "hello wll");
  CHECK(tokenizer.decode(Ids{}).empty());
  CHECK(tokenizer.token_bytes(259) == " w");
  CHECK(tokenizer.token_bytes(0xE4) == "\xE4");
  CHECK(tokenizer.token_bytes(-1).empty());
  CHECK(tokenizer.token_bytes(260).empty());
  CHECK(tokenizer.token_to_id("\u0120w") == 259);
  CHECK(tokenizer.token_to_id(" w") == std::nullopt);
  CHECK(tokenizer.token_to_id("") == std::nullopt);
  CHECK(tokenizer.vocab_size() == 260);
  CHECK(!tokenizer.is_special(3));
  CHECK(!tokenizer.is_special(-1));
  const nv::Tokenizer copy = tokenizer;
  CHECK(copy.token_bytes(259).data() == tokenizer.token_bytes(259).data());
}

TEST_CASE("Both spellings of merges and any order of the file give the same ids", "[tokenizer]") {
  TokenizerBuilder builder(Merges{{"l", "l"}, {"h", "e"}, {"he", "ll"}, {"\u0120", "w"}});
  const Ids expected = nv::Tokenizer::from_json(builder.file.dump()).encode("hello wll");
  json merges = json::array({"#version: 0.2"});
  for (const json& pair : builder.file["model"]["merges"])
    merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
  builder.file["model"]["merges"] = merges;
  CHECK(nv::Tokenizer::from_json(builder.file.dump()).encode("hello wll") == expected);
  // The model before all else, and in it the merges before the vocabulary.
  const std::string reordered =
      nv::concat(R"({"model": {"merges": )", merges.dump(), R"(, "vocab": )",
                 builder.file["model"]["vocab"].dump(), R"(, "type": "BPE"}, "pre_tokenizer": )",
                 builder.file["pre_tokenizer"].dump(), R"(, "decoder": {"type": "ByteLevel"}})");
  CHECK(nv::Tokenizer::from_json(reordered).encode("hello wll") == expected);
}

TEST_CASE("The pre-tokenizer runs its steps one after the other", "[tokenizer]") {
  TokenizerBuilder builder(Merges{{"\u0120", "a"}, {"a", "b"}, {"1", "2"}, {"ab", "12"}});
  json& steps = builder.file["pre_tokenizer"]["pretokenizers"];
  const auto encode = [&](std::string_view text) {
    return nv::Tokenizer::from_json(builder.file.dump()).encode(text);
  };
  builder.pattern("x");
  CHECK(encode("ab12xab") == Ids{259, 'x', 257});
  steps.insert(steps.begin() + 1, steps[0]);
  steps[1]["pattern"] = {{"Regex", "\\p{N}"}};
  CHECK(encode("ab12xab") == Ids{257, '1', '2', 'x', 257});
  steps[1]["pattern"] = {{"String", "b1"}};
  CHECK(encode("ab12xab") == Ids{'a', 'b', '1', '2', 'x', 257});
  builder.file["pre_tokenizer"] = steps[2];  // ByteLevel alone
  CHECK(encode("ab12 ab") == Ids{259, 256, 'b'});
  builder.file["pre_tokenizer"]["use_regex"] = true;  // GPT-2's pattern
  CHECK(encode("ab12 ab") == Ids{257, 258, 256, 'b'});
  builder.file["pre_tokenizer"].erase("use_regex");
  CHECK(encode("ab12 ab") == Ids{257, 258, 256, 'b'});
}

TEST_CASE("Added tokens come before normalisation, and those marked so after", "[tokenizer]") {
  TokenizerBuilder builder;
  builder.added("<|end|>", {"special"}).added("e\u0301!", {"normalized"}).added("e\u0301?");
  nv::Tokenizer tokenizer = nv::Tokenizer::from_json(builder.file.dump());
  CHECK(tokenizer.encode("x<|end|>y") == Ids{'x', 256, 'y'});
  CHECK(tokenizer.encode("e\u0301!\u00E9!") == Ids{257, 257});
  CHECK(tokenizer.encode("e\u0301?\u00E9?") == Ids{258, 0xC3, 0xA9, '?'});
  CHECK(tokenizer.encode("e<|end|>\u0301") == Ids{'e', 256, 0xCC, 0x81});
  CHECK(tokenizer.is_special(256));
  CHECK(!tokenizer.is_special(257));
  CHECK(tokenizer.decode(Ids{'a', 256, 258}) == "ae\u0301?");
  CHECK(tokenizer.decode(Ids{'a', 256, 258}, false) == "a<|end|>e\u0301?");
  CHECK(tokenizer.token_to_id("<|end|>") == 256);

  builder.file["normalizer"] = nullptr;
  tokenizer = nv::Tokenizer::from_json(builder.file.dump());
  CHECK(tokenizer.encode("e\u0301") == Ids{'e', 0xCC, 0x81});
  // A token that the vocabulary has already, now found in raw text.
  builder.file["added_tokens"][0]["content"] = "a";
  builder.file["added_tokens"][0]["id"] = 'a';
  CHECK(nv::Tokenizer::from_json(builder.file.dump()).is_special('a'));
}

TEST_CASE("A template adds the reference's tokens to a text", "[tokenizer]") {
  if (!exists(fairytale())) return;
  const json oracle = read_json("tests/fixtures/embeddings.json");
  json file = read_json(fairytale());
  for (const json& suite : oracle["templates"]) {
    file["post_processor"] = suite["post_processor"];
    const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(file.dump());
    for (const json& item : suite["encode"]) {
      const std::string text = item[0];
      const Ids expected = item[1].get<Ids>();
      CAPTURE(text, suite["post_processor"].dump());
      CHECK(tokenizer.encode_with_template(text) == expected);
      CHECK(tokenizer.sequence_template().wrap(tokenizer.encode(text)) == expected);
      CHECK(tokenizer.encode_with_template(text, expected.size()) == expected);
      CHECK_THROWS_AS(tokenizer.encode_with_template(text, expected.size() - 1),
                      nv::ContextLengthError);
    }
  }
}

TEST_CASE("Malformed UTF-8 is read as replacement characters", "[tokenizer]") {
  TokenizerBuilder builder;
  builder.added("<|end|>");
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(builder.file.dump());
  CHECK(tokenizer.encode("a\xFFz") == tokenizer.encode("a\uFFFDz"));
  CHECK(tokenizer.encode("\xF0\x9F<|end|>\xC3") == tokenizer.encode("\uFFFD<|end|>\uFFFD"));
  CHECK(tokenizer.decode(tokenizer.encode(std::string_view("\0\x80", 2))) ==
        std::string("\0\uFFFD", 4));
}

TEST_CASE("Several threads may use one tokenizer", "[tokenizer]") {
  if (!exists(fairytale())) {
    std::puts("skipped: no fairytale model");
    return;
  }
  const json oracle = read_json("tests/fixtures/tokenizer_fairytale.json");
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_file(fairytale().parent_path());
  std::atomic<int> differences = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const json& item : oracle["suites"][0]["encode"]) {
        const Ids expected = item[1].get<Ids>();
        const Ids ids = tokenizer.encode(item[0].get<std::string>());
        differences += ids != expected || tokenizer.decode(ids, false).empty() != ids.empty();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(differences == 0);
}

TEST_CASE("A file that asks for something else is refused by name", "[tokenizer]") {
  struct Case {
    std::string pointer;
    const char* value;  // JSON
    std::vector<std::string> message;
  };
  const std::string steps = "/pre_tokenizer/pretokenizers";
  const std::string split = steps + "/0", byte_level = steps + "/1", added = "/added_tokens/0";
  const Case cases[] = {
      {"/normalizer", R"({"type": "NFKC"})", {"NFKC", "NFC"}},
      {"/normalizer",
       R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})",
       {"Lowercase"}},
      {"/normalizer", R"("NFC")", {"normalizer", "not supported"}},
      {"/pre_tokenizer", "null", {"pre_tokenizer", "ByteLevel"}},
      {"/pre_tokenizer", R"({"type": "Metaspace"})", {"Metaspace", "ByteLevel"}},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": []})", {"ends in ByteLevel"}},
      {byte_level, R"({"type": "Split"})", {"ends in ByteLevel"}},
      {split, R"({"type": "Digits"})", {"Digits", "Split"}},
      {split, "7", {"pre_tokenizer", "7"}},
      {split + "/behavior", R"("Removed")", {"Removed", "Isolated"}},
      {split + "/invert", "true", {"invert", "false"}},
      {split + "/pattern", R"("a")", {"Split.pattern", "Regex"}},
      {split + "/pattern/Regex", R"("\\w")", {"\\w", "supported"}},
      {split + "/pattern/Regex", R"("(")", {"not a valid regular expression"}},
      {byte_level + "/add_prefix_space", "true", {"add_prefix_space", "false"}},
      {byte_level + "/add_prefix_space", "null", {"add_prefix_space", "null"}},
      {byte_level + "/use_regex", "1", {"use_regex", "true or false"}},
      {"/post_processor",
       R"({"type": "BertProcessing"})",
       {"BertProcessing", "TemplateProcessing"}},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": 1}, {"Sequence": 1}]})",
       {"SpecialToken must be an object", "1"}},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]})",
       {"the Sequence A", "\"B\""}},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": []})",
       {"must have the text once, got []"}},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|x|>"}}]})",
       {"adds '<|x|>'", "special_tokens"}},
      {"/post_processor",
       R"({"type": "Sequence", "processors": [
           {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}},
            {"SpecialToken": {"id": "b"}}], "special_tokens": {"b": {"ids": [1]}}},
           {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "b"}},
            {"Sequence": {"id": "A"}}], "special_tokens": {"b": {"ids": [1]}}}]})",
       {"two templates that add tokens"}},
      {"/decoder", "null", {"decoder", "ByteLevel"}},
      {"/decoder", R"({"type": "WordPiece"})", {"WordPiece", "ByteLevel"}},
      {"/model/type", R"("Unigram")", {"Unigram", "BPE"}},
      {"/model/dropout", "0.1", {"dropout", "0.1"}},
      {"/model/ignore_merges", "1", {"ignore_merges", "true or false"}},
      {"/model/continuing_subword_prefix", R"("##")", {"continuing_subword_prefix", "##"}},
      {"/model/end_of_word_suffix", R"("</w>")", {"end_of_word_suffix", "</w>"}},
      {"/model/vocab", "[]", {"model.vocab", "missing"}},
      {"/model/vocab/a", R"("x")", {"model.vocab", "string"}},
      {"/model/vocab/a", "-1", {"'a'", "-1"}},
      {"/model/vocab/a", "5000000", {"'a'", "5000000"}},
      {"/model/vocab/a", "98", {"same id 98"}},
      {"/model/vocab/a", "{}", {"flat"}},
      {"/model/merges", "{}", {"model.merges", "missing"}},
      {"/model/merges/0", R"("ab")", {"merge 0", "'ab'"}},
      {"/model/merges/0", R"("a b c")", {"merge 0", "'a b c'"}},
      {"/model/merges/0", R"(["a"])", {"merge 0", "one side"}},
      {"/model/merges/0", R"(["a", "b", "c"])", {"merge 0", "more than two"}},
      {"/model/merges/0", R"(["a", 7])", {"model.merges", "number"}},
      {"/model/merges/0", R"(["a", "zz"])", {"merge 0", "'zz'"}},
      {"/model/merges/0", R"(["a", "c"])", {"merge 0", "'ac'"}},
      {"/added_tokens", "3", {"added_tokens", "array"}},
      {added, "3", {"added_tokens", "objects"}},
      {added + "/id", "-3", {"id", "-3"}},
      {added + "/id", "5", {"same id 5"}},
      {added + "/content", R"("a")", {"'a'", "two ids"}},
      {added + "/content", R"("")", {"no content"}},
      {added + "/content", "null", {"content", "string"}},
      {added + "/lstrip", R"("no")", {"lstrip", "true or false"}},
  };
  TokenizerBuilder builder(Merges{{"a", "b"}});
  builder.added("<|end|>");
  CHECK(load_error(builder.file).empty());
  for (const Case& c : cases) {
    json file = builder.file;
    file[json::json_pointer(c.pointer)] = json::parse(c.value);
    const std::string message = load_error(file);
    INFO(c.pointer << " = " << c.value << ": " << message);
    CHECK(!message.empty());
    for (const std::string& part : c.message) CHECK(mentions(message, part));
  }
}

TEST_CASE("What a trainer leaves in the file changes no ids", "[tokenizer]") {
  TokenizerBuilder builder(Merges{{"a", "b"}, {"ab", "c"}});
  builder.added("<|end|>", {"special"});
  const std::string text = "abc ab  abcab <|end|> abc abc abc 1234567890 abcabcabcabcabc";
  const Ids ids = nv::Tokenizer::from_json(builder.file.dump()).encode(text);
  REQUIRE(ids.size() > 30);
  const std::pair<const char*, const char*> kLeft[] = {
      {"/truncation",
       R"({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0})"},
      {"/padding", R"({"strategy": {"Fixed": 64}, "direction": "Right", "pad_id": 7,
                       "pad_to_multiple_of": null, "pad_type_id": 0, "pad_token": "x"})"},
      {"/padding", R"({"strategy": "BatchLongest", "pad_to_multiple_of": 64})"},
      {"/model/byte_fallback", "true"},
      {"/model/ignore_merges", "false"},
      {"/model/ignore_merges", "null"},
      {"/model/unk_token", R"("a")"},
      {"/model/fuse_unk", "true"},
      {"/model/dropout", "0.0"},
      {"/model/of_a_newer_version", R"({"a": [1]})"},
      {"/normalizer/of_a_newer_version", "1"},
      {"/decoder/of_a_newer_version", "1"},
      {"/added_tokens/0/of_a_newer_version", "1"},
      {"/pre_tokenizer/pretokenizers/0/of_a_newer_version", "1"}};
  json all = builder.file;
  for (const auto& [pointer, value] : kLeft) {
    json file = builder.file;
    file[json::json_pointer(pointer)] = all[json::json_pointer(pointer)] = json::parse(value);
    CAPTURE(pointer, value);
    CHECK(load_error(file).empty());
    CHECK(nv::Tokenizer::from_json(file.dump()).encode(text) == ids);
  }
  CHECK(nv::Tokenizer::from_json(all.dump()).encode_with_template(text) == ids);
}

TEST_CASE("With ignore_merges a piece that is a token of the vocabulary is that token",
          "[tokenizer]") {
  TokenizerBuilder builder(Merges{{"a", "b"}, {"c", "d"}});
  json& vocab = builder.file["model"]["vocab"];
  const std::string longest(60, 'x');
  for (const char* word : {"abcd", "\u0120abcd", "\u00c3\u00a9t\u00c3\u00a9", longest.c_str()})
    vocab.emplace(word, vocab.size());
  builder.added("yz", {"single_word"}).added("!!");
  const auto encode = [&](std::string_view text) {
    const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(builder.file.dump());
    const Ids ids = tokenizer.encode(text);
    CHECK(tokenizer.encode(text) == ids);  // from the word cache
    return ids;
  };
  const nv::TokenId ab = 256, cd = 257, abcd = 258, spaced = 259, ete = 260, xs = 261,
                    exclaim = 263;
  CHECK(encode("abcd") == Ids{ab, cd});
  builder.file["model"]["ignore_merges"] = true;
  CHECK(encode("abcd abcd abcde") == Ids{abcd, spaced, ' ', ab, cd, 'e'});
  CHECK(encode("\u00e9t\u00e9") == Ids{ete});
  CHECK(encode(longest) == Ids{xs});
  CHECK(encode(longest + "x").size() == longest.size() + 1);
  // An added token is none of the model's: as a piece it is merged like any other.
  CHECK(encode("!!yz") == Ids{exclaim, 262});
  builder.pattern("yz|[^y]+");
  CHECK(encode("yzq") == Ids{'y', 'z', 'q'});
}

TEST_CASE("What is not a tokenizer file is refused", "[tokenizer]") {
  const auto error = [](std::string_view text) -> std::string {
    try {
      (void)nv::Tokenizer::from_json(text);
      return {};
    } catch (const nv::LoadError& e) {
      return e.what();
    }
  };
  CHECK(mentions(error(""), "not valid JSON"));
  CHECK(mentions(error("{"), "not valid JSON"));
  CHECK(mentions(error("[]"), "expected a JSON object, got a array"));
  CHECK(mentions(error("{}"), "model.vocab"));
  CHECK(mentions(error(R"({"model": {"vocab": {}}})"), "model.merges"));
  CHECK(mentions(error(R"({"model": {"vocab": {}, "merges": []}})"), "model"));
  CHECK(mentions(error(R"({"model": {"vocab": {}, "vocab": {}, "merges": []}})"), "twice"));
  json no_z = TokenizerBuilder().file;
  no_z["model"]["vocab"].erase("z");
  CHECK(mentions(load_error(no_z), "no token for the byte 122, spelt 'z'"));
  CHECK(mentions(file_error("no/such/tokenizer.json"), "no/such/tokenizer.json"));
  CHECK(mentions(file_error("docs"), "docs/tokenizer.json"));
}

namespace {

/// The message of the RequestError that encoding raises; empty if it does not.
std::string encode_error(const nv::Tokenizer& tokenizer, std::string_view text,
                         std::size_t max_tokens) {
  try {
    (void)tokenizer.encode(text, max_tokens);
    return {};
  } catch (const nv::RequestError& error) {
    return error.what();
  }
}

/// Resident memory of this process.
[[maybe_unused]] std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

std::string repeated(std::string_view text, std::size_t num_bytes) {
  std::string out;
  while (out.size() < num_bytes) out += text;
  return out;
}

}  // namespace

TEST_CASE("defect 4: texts refused for their length cost no memory and leave none behind",
          "[tokenizer]") {
  if (skip_one_thread()) return;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::size_t kBytes = std::size_t{2} << 20;  // the resident size is not looked at
#else
  constexpr std::size_t kBytes = std::size_t{16} << 20;
#endif
  TokenizerBuilder builder(Merges{{"t", "h"}, {"th", "e"}, {"\u0120", "the"}});
  const nv::Tokenizer bounded = nv::Tokenizer::from_json(builder.file.dump());
  // A token that swallows white space: a text of any length may be one token.
  builder.added("<|x|>", {"rstrip"});
  const nv::Tokenizer unbounded = nv::Tokenizer::from_json(builder.file.dump());
  CHECK(bounded.min_tokens(kBytes) > kBytes / 17);
  CHECK(unbounded.min_tokens(kBytes) == 0);

  const std::string texts[] = {repeated("a", kBytes), repeated("the cat, the dog\n", kBytes),
                               repeated("\xFF\xC3", kBytes), repeated("e\u0301 ", kBytes)};
  [[maybe_unused]] const std::size_t before = resident_bytes();
  for (const nv::Tokenizer& tokenizer : {bounded, unbounded}) {
    for (const std::string& text : texts) {
      const auto start = std::chrono::steady_clock::now();
      const std::string message = encode_error(tokenizer, text, 40960);
      CAPTURE(message);
      CHECK(mentions(message, nv::concat("the text of ", text.size(), " bytes has at least ")));
      CHECK(mentions(message, "at most 40960 are accepted"));
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
      CHECK(tokenizer.idle_scratch_bytes() <= nv::Tokenizer::kMaxIdleScratch);
    }
  }
  CHECK(unbounded.encode("<|x|>" + std::string(kBytes, ' '), 1) == Ids{259});
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(resident_bytes() < before + (std::size_t{200} << 20));
#endif
  // What is accepted, however long, leaves no more.
  CHECK(bounded.encode(texts[0]).size() == texts[0].size());
  CHECK(bounded.encode(texts[3]).size() > kBytes / 2);
  CHECK(bounded.idle_scratch_bytes() <= nv::Tokenizer::kMaxIdleScratch);
}

namespace {

/// Processor time of this thread.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The processor time of an encoding that is stopped after `delay` seconds, the least of several
/// until it is below `enough`. On busy cores the stop may come late, or not at all, but not each
/// time.
double seconds_until_stopped(const nv::Tokenizer& tokenizer, const std::string& text, double delay,
                             double enough) {
  double least = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < 20 && least >= enough; ++attempt) {
    std::stop_source stop;
    const std::jthread stopper([&] {
      std::this_thread::sleep_for(std::chrono::duration<double>(delay));
      stop.request_stop();
    });
    const double begin = thread_seconds();
    try {
      (void)tokenizer.encode(text, std::size_t(-1), stop.get_token());
    } catch (const nv::Cancelled&) {
      least = std::min(least, thread_seconds() - begin);
    }
  }
  return least;
}

}  // namespace

TEST_CASE("An encoding that is stopped ends soon, and the tokenizer works on", "[tokenizer]") {
  if (skip_one_thread()) return;
  TokenizerBuilder builder(Merges{{"t", "h"}, {"th", "e"}, {"\u0120", "the"}, {"a", "b"}});
  builder.added("<|x|>");
  builder.added("<|y|>", {"single_word"});
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(builder.file.dump());
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  constexpr auto kAll = std::size_t(-1);
  std::stop_source stopped;
  stopped.request_stop();
  CHECK_THROWS_AS(tokenizer.encode("the cat", kAll, stopped.get_token()), nv::Cancelled);
  CHECK_THROWS_AS(tokenizer.encode_with_template("the", kAll, stopped.get_token()), nv::Cancelled);
  const std::stop_source never;
  for (const char* const part : {"the cat, the dog\n", "ab", "<|x|>", "<|y|>a", "<|", "e\u0301",
                                 "e\u0323\u0301 ", "\u1112\u1161", "\xFF\xC3 x"}) {
    CAPTURE(part);
    const std::string text = repeated(part, kBytes);
    const double begin = thread_seconds();
    const Ids whole = tokenizer.encode(text);
    const double seconds = thread_seconds() - begin;
    CHECK(tokenizer.encode(text, kAll, never.get_token()) == whole);

    CHECK(seconds_until_stopped(tokenizer, text, 0.1 * seconds, 0.7 * seconds) < 0.7 * seconds);
    CHECK(tokenizer.idle_scratch_bytes() <= nv::Tokenizer::kMaxIdleScratch);
    CHECK(tokenizer.encode(text) == whole);
  }
}

TEST_CASE("A limit is met exactly", "[tokenizer]") {
  TokenizerBuilder builder(Merges{{"t", "h"}, {"th", "e"}, {"\u0120", "the"}});
  builder.added("<|end|>", {"special"});
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(builder.file.dump());
  for (const std::string& text :
       {std::string(), std::string("the"), std::string("<|end|>"), std::string("a<|end|>the the"),
        std::string("\xFF"), std::string(100, 'a'), repeated("the ", 300),
        std::string("\u1FBE\u0308\u0301\u212A")}) {
    CAPTURE(text);
    const Ids ids = tokenizer.encode(text);
    CHECK(tokenizer.min_tokens(text.size()) <= ids.size());
    CHECK(tokenizer.encode(text, ids.size()) == ids);
    if (ids.empty()) continue;
    CHECK(mentions(encode_error(tokenizer, text, ids.size() - 1),
                   nv::concat("at most ", ids.size() - 1, " are accepted")));
  }
}

TEST_CASE("No text has fewer tokens than the bound says", "[tokenizer]") {
  // The longest token is the composed character of the longest spelling: 7 bytes become 2.
  TokenizerBuilder builder(Merges{{"\u00CE", "\u0132"}});  // the bytes CE 90
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_json(builder.file.dump());
  const std::string spelling = "\u1FBE\u0308\u0301";
  REQUIRE(tokenizer.encode(spelling) == Ids{256});
  for (std::size_t n = 1; n < 200; ++n) {
    const std::string text = repeated(spelling, n * spelling.size());
    CHECK(tokenizer.min_tokens(text.size()) <= tokenizer.encode(text).size());
    CHECK(tokenizer.encode(text, n).size() == n);
  }
  CHECK(tokenizer.min_tokens(0) == 0);
  CHECK(tokenizer.min_tokens(1) == 1);
}

TEST_CASE("defect 7: tokenizer files that nest deeply or hold many steps are refused",
          "[tokenizer]") {
  if (skip_one_thread()) return;
  const auto error = [](std::string_view text) -> std::string {
    try {
      (void)nv::Tokenizer::from_json(text);
      return {};
    } catch (const nv::LoadError& e) {
      return e.what();
    }
  };
  TokenizerBuilder builder(Merges{{"a", "b"}});
  builder.added("<|end|>");
  // Brackets wherever a value may stand, the name of a step for instance.
  const char* places[] = {"/normalizer",
                          "/normalizer/type",
                          "/pre_tokenizer",
                          "/pre_tokenizer/type",
                          "/pre_tokenizer/pretokenizers/0/type",
                          "/pre_tokenizer/pretokenizers/0/pattern/Regex",
                          "/post_processor",
                          "/decoder/type",
                          "/model/type",
                          "/model/dropout",
                          "/model/vocab/a",
                          "/model/merges/0",
                          "/added_tokens/0",
                          "/added_tokens/0/content",
                          "/added_tokens/0/id",
                          "/truncation",
                          "/padding",
                          "/model/unknown",
                          "/unknown"};
  for (const char* place : places) {
    json file = builder.file;
    file[json::json_pointer(place)] = "HERE";
    const std::string text = file.dump();
    const std::size_t at = text.find("\"HERE\"");
    const auto with_depth = [&](int depth) {
      const std::string nested = nv::concat(std::string(depth, '['), std::string(depth, ']'));
      return nv::concat(text.substr(0, at), nested, text.substr(at + 6));
    };
    CAPTURE(place);
    const std::string shallow = error(with_depth(200)), deep = error(with_depth(1000000));
    const bool is_ignored =
        mentions(place, "unknown") || mentions(place, "/truncation") || mentions(place, "/padding");
    CHECK(shallow.empty() == is_ignored);
    CHECK(shallow.size() < 300);
    CHECK((mentions(deep, "nested more than 256 levels deep") || mentions(deep, "flat") ||
           mentions(deep, "two sides")));
  }
  json& steps = builder.file["pre_tokenizer"]["pretokenizers"];
  const json split = steps[0], byte_level = steps[1];
  const auto with_splits = [&](std::size_t count) {
    steps = json::array();
    for (std::size_t i = 0; i < count; ++i) steps.push_back(split);
    steps.push_back(byte_level);
    return builder.file.dump();
  };
  CHECK(mentions(error(with_splits(200000)), "must have at most 64 Splits, got 200000"));
  CHECK(mentions(error(with_splits(65)), "must have at most 64 Splits, got 65"));
  CHECK(nv::Tokenizer::from_json(with_splits(64)).encode("ab ab") == Ids{256, ' ', 256});
}
