#include "nanovllm/core/utf8.hpp"

#include <chrono>
#include <random>
#include <vector>

#include "catch.hpp"

namespace utf8 = nanovllm::utf8;
using utf8::Status;

namespace {

/// All valid sequences, by the definition: the shortest encoding of each scalar value.
std::string encoded(char32_t c) {
  std::string out;
  utf8::append(out, c);
  return out;
}

std::string lossy(std::string_view bytes) {
  std::string out;
  utf8::append_lossy(out, bytes);
  return out;
}

/// `bytes` is a proper prefix of some valid sequence, found by trying all continuations.
bool can_become_valid(const std::string& bytes, int more = 3) {
  for (int b = 0x80; b <= 0xBF && more > 0; ++b) {
    const std::string longer = bytes + static_cast<char>(b);
    const utf8::Char c = utf8::decode(longer, 0);
    if (c.status == Status::kValid && c.size == longer.size()) return true;
    if (longer.size() < 4 && can_become_valid(longer, more - 1)) return true;
  }
  return false;
}

std::string random_bytes(std::mt19937& random) {
  static constexpr unsigned char kInteresting[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                                   0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED,
                                                   0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  std::string bytes(random() % 12, '\0');
  for (char& c : bytes) c = static_cast<char>(kInteresting[random() % std::size(kInteresting)]);
  return bytes;
}

}  // namespace

TEST_CASE("Every scalar value survives encoding and decoding", "[utf8]") {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string bytes = encoded(c);
    const utf8::Char read = utf8::decode(bytes, 0);
    REQUIRE(read.code_point == c);
    REQUIRE(read.size == bytes.size());
    REQUIRE(read.status == Status::kValid);
    REQUIRE(bytes.size() == (c < 0x80 ? 1u : c < 0x800 ? 2u : c < 0x10000 ? 3u : 4u));
  }
}

TEST_CASE("Exactly the encodings of scalar values are valid", "[utf8]") {
  std::size_t valid = 0;
  for (std::uint32_t word = 0; word < 0x1000000; ++word) {  // all texts of one to three bytes
    const char bytes[3] = {static_cast<char>(word), static_cast<char>(word >> 8),
                           static_cast<char>(word >> 16)};
    for (std::size_t size = 1; size <= 3; ++size) {
      if (size < 3 && word >> (8 * size) != 0) continue;
      const std::string_view text(bytes, size);
      const utf8::Char c = utf8::decode(text, 0);
      if (c.status == Status::kValid && c.size == size) ++valid;
    }
  }
  CHECK(valid == 0x10000 - 0x800);  // the scalar values below U+10000
}

TEST_CASE("An incomplete sequence is told from an invalid one", "[utf8]") {
  std::mt19937 random(1);
  int truncated = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string bytes = random_bytes(random).substr(0, 3);
    if (bytes.empty()) continue;
    const utf8::Char c = utf8::decode(bytes, 0);
    const bool expected = c.status != Status::kValid && can_become_valid(bytes);
    INFO(i);
    CHECK((c.status == Status::kTruncated) == expected);
    truncated += expected;
  }
  CHECK(truncated > 100);
}

TEST_CASE("Each maximal invalid subpart becomes one replacement character", "[utf8]") {
  const std::string r(utf8::kReplacementBytes);
  CHECK(lossy("abc") == "abc");
  CHECK(lossy("\xE4\xBD\xA0") == "\xE4\xBD\xA0");
  CHECK(lossy("\xE4\xBD") == r);
  CHECK(lossy("\xF0\x9F\x41") == r + "A");
  CHECK(lossy("\x80\x81") == r + r);
  CHECK(lossy("\xC0\x80") == r + r);
  CHECK(lossy("\xED\xA0\x80") == r + r + r);
  CHECK(lossy("\xF4\x90\x80\x80") == r + r + r + r);
  // The example of the Unicode Standard, table 3-11.
  CHECK(lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == r + r + r + r + "A");
  CHECK(lossy(std::string("x\0\xFFy", 4)) == std::string("x\0", 2) + r + "y");
}

TEST_CASE("Text cut anywhere reads the same when the incomplete rest is carried over", "[utf8]") {
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    const std::string bytes = random_bytes(random) + random_bytes(random);
    const std::size_t cut = random() % (bytes.size() + 1);
    const std::string_view head = std::string_view(bytes).substr(0, cut);
    const std::size_t complete = utf8::complete_prefix(head);
    REQUIRE(head.size() - complete <= 3);
    REQUIRE(lossy(head.substr(0, complete)) + lossy(std::string_view(bytes).substr(complete)) ==
            lossy(bytes));
    // No more than necessary is kept: what is kept may indeed become one character.
    if (complete < head.size()) REQUIRE(can_become_valid(std::string(head.substr(complete))));
  }
}

TEST_CASE("The valid prefix ends at the first invalid byte, wherever it stands", "[utf8]") {
  for (std::size_t size = 0; size < 40; ++size) {
    for (std::size_t bad = 0; bad <= size; ++bad) {
      std::string text(size, 'a');
      if (bad < size) text[bad] = '\xFF';
      REQUIRE(utf8::valid_prefix(text) == bad);
    }
  }
  CHECK(utf8::valid_prefix("caf\xC3\xA9") == 5);
  CHECK(utf8::valid_prefix("caf\xC3") == 3);
  CHECK(utf8::previous("a\xE4\xBD\xA0", 4) == 1);
  CHECK(utf8::previous("a\xE4\xBD\xA0", 1) == 0);
}
