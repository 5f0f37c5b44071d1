#include "nanovllm/with/gguf/gguf_file.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "safetensors_writer.hpp"
#include "with/gguf/gguf_writer.hpp"

using namespace nanovllm;
using nanovllm_test::GgufWriter;
using nanovllm_test::raw;
using nanovllm_test::TempDirectory;
using Type = GgufValueType;

namespace {

constexpr std::uint32_t kF32 = 0, kQ8_0 = 8, kQ4_K = 12, kI8 = 24;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// The message of the LoadError that reading raises; empty if the file can be read.
std::string error_of(const std::string& file) {
  try {
    static_cast<void>(GgufFile::parse(bytes_of(file), "some.gguf"));
    return {};
  } catch (const LoadError& error) {
    return error.what();
  }
}

std::string error_of(const GgufWriter& writer) { return error_of(writer.bytes()); }

/// Fails unless the message names the file and has `part`.
void check_error(const std::string& error, std::string_view part) {
  INFO(error << "\n  expected: " << part);
  CHECK(error.starts_with("'some.gguf'"));
  CHECK(error.find(part) != error.npos);
}

/// A file with a value of each type and three tensors.
GgufWriter full_file() {
  GgufWriter out;
  out.add("u8", Type::u8, std::uint8_t{200}).add("i8", Type::i8, std::int8_t{-3});
  out.add("u16", Type::u16, std::uint16_t{50000}).add("i16", Type::i16, std::int16_t{-300});
  out.add("u32", Type::u32, 4'000'000'000u).add("i32", Type::i32, std::int32_t{-70000});
  out.add("f32", 1e-6f).add("yes", true).add("no", false).add("text", "h\xC3\xA9llo");
  out.add("u64", Type::u64, std::uint64_t{1} << 40).add("i64", Type::i64, std::int64_t{-5});
  out.add("f64", Type::f64, 0.1).add_strings("words", {"", "a", "bc"}).add_strings("none", {});
  out.add_array("numbers", Type::i16, std::vector<std::int16_t>{1, -2, 3});
  out.add_tensor("a", kF32, {2, 3}, std::string(24, 'a'));
  out.add_tensor("b", kQ8_0, {2, 64}, std::string(136, 'b'));
  out.add_tensor("c", kI8, {}, "c");
  return out;
}

}  // namespace

TEST_CASE("a GGUF file has its metadata and tensors by name", "[gguf]") {
  GgufWriter writer = full_file();
  writer.version = GENERATE(2u, 3u);
  const std::string bytes = writer.bytes();
  GgufFile parsed = GgufFile::parse(bytes_of(bytes));
  const GgufFile file = std::move(parsed);
  const GgufMetadata& metadata = file.metadata();
  CHECK(metadata.size() == 16);
  CHECK(metadata.integer("u8") == 200);
  CHECK(metadata.integer("i8") == -3);
  CHECK(metadata.integer("u16") == 50000);
  CHECK(metadata.integer("i16") == -300);
  CHECK(metadata.integer("u32") == 4'000'000'000);
  CHECK(metadata.integer("i32") == -70000);
  CHECK(metadata.integer("u64") == std::int64_t{1} << 40);
  CHECK(metadata.integer("i64") == -5);
  CHECK(metadata.number("f32") == 1e-6);  // what the decimal means, not what the float is
  CHECK(metadata.number("f64") == 0.1);
  CHECK(metadata.number("i8") == -3.0);
  CHECK(metadata.boolean("yes") == true);
  CHECK(metadata.boolean("no") == false);
  CHECK(metadata.string("text") == "h\xC3\xA9llo");
  CHECK(metadata.strings("words") == std::vector<std::string_view>{"", "a", "bc"});
  CHECK(metadata.strings("none")->empty());
  CHECK(metadata.integers("numbers") == std::vector<std::int64_t>{1, -2, 3});
  CHECK_FALSE(metadata.integer("missing").has_value());
  CHECK_FALSE(metadata.strings("missing").has_value());

  REQUIRE(file.tensors().size() == 3);
  const GgufTensor* const b = file.find("b");
  REQUIRE(b == &file.tensors()[1]);
  CHECK(b->type->name == "Q8_0");
  CHECK(b->shape == std::vector<std::uint64_t>{2, 64});
  CHECK(file.data(*b).size() == 136);
  CHECK(static_cast<char>(file.data(*b)[0]) == 'b');
  CHECK(file.find("c")->shape.empty());
  CHECK(file.data(*file.find("c")).size() == 1);
  CHECK(file.find("d") == nullptr);
  CHECK(file.mapping() == nullptr);
}

TEST_CASE("a GGUF file is mapped, and its tensors may lie in any order", "[gguf]") {
  GgufWriter writer;
  writer.alignment = 64;
  writer.add("general.alignment", 64u);
  writer.describe("second", kF32, {1}, 64).describe("empty", kF32, {0, 5}, 64);
  writer.add_tensor("first", kF32, {2}, "12345678");
  writer.add_tensor("", kF32, {1}, "abcd");  // a name of no letters, where "second" begins
  TempDirectory directory;
  CHECK_THROWS_WITH(GgufFile(directory.path() / "none.gguf"),
                    Catch::Matchers::Contains("none.gguf"));
  const auto path = directory.write("model.gguf", writer.bytes());
  CHECK_THROWS_WITH(GgufFile(path), Catch::Matchers::Contains(path.string()) &&
                                        Catch::Matchers::Contains("ends at 68"));

  GgufWriter apart;
  apart.add_tensor("first", kF32, {2}, "12345678").add_tensor("last", kF32, {1}, "abcd");
  apart.describe("empty", kF32, {0, 5}, 32);
  const GgufFile file(directory.write("apart.gguf", apart.bytes()));
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "first");
  CHECK(file.mapping() != nullptr);
  CHECK(static_cast<char>(file.data(*file.find("last"))[3]) == 'd');
  CHECK(file.data(*file.find("empty")).empty());
}

TEST_CASE("a GGUF file that is cut off anywhere is refused", "[gguf]") {
  const std::string whole = full_file().bytes();
  CHECK(error_of(whole).empty());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string error = error_of(whole.substr(0, size));
    INFO(size << " of " << whole.size() << " bytes");
    REQUIRE(error.starts_with("'some.gguf'"));
  }
  check_error(error_of(std::string("GG")), "byte 0: \"GGUF\" needs 4 bytes, but 2 follow");
  check_error(error_of(std::string("GGUF\3\0\0", 7)), "byte 4: the version needs 4 bytes");
}

TEST_CASE("what a GGUF file must not be is named", "[gguf]") {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  check_error(error_of(std::string(64, 'x')), "must begin with \"GGUF\"");
  GgufWriter writer;
  writer.version = 1;
  check_error(error_of(writer), "the version must be 2 or 3, got 1");
  writer.version = 0x03000000;
  check_error(error_of(writer), "big-endian");

  SECTION("counts") {
    GgufWriter tensors;
    tensors.more_tensors = kMost / 2;
    check_error(error_of(tensors), "claims 9223372036854775807 tensors");
    GgufWriter entries;
    entries.more_entries = 1000;
    check_error(error_of(entries), "claims 1000 metadata entries");
    GgufWriter one_more = full_file();
    one_more.more_entries = 1;
    CHECK_FALSE(error_of(one_more).empty());
  }
  SECTION("metadata") {
    check_error(error_of(GgufWriter().add("k", 1u).add("k", 2u)), "'k' comes twice");
    check_error(error_of(GgufWriter().add_raw("k", 13, raw(0))), "must be in [0, 13), got 13");
    check_error(error_of(GgufWriter().add_raw("\xFF", 4, raw(1u))), "must be UTF-8");
    check_error(error_of(GgufWriter().add_raw("k", 8, raw(kMost))),
                "'k' needs 18446744073709551615");
    check_error(error_of(GgufWriter().add_raw("k", 9, raw(4u) + raw(kMost / 2))),
                "'k' has 9223372036854775807 values of 4 bytes");
    check_error(error_of(GgufWriter().add_raw("k", 9, raw(8u) + raw(kMost))),
                "the length of 'k' needs 8 bytes");
    check_error(error_of(GgufWriter().add_raw("k", 9, raw(9u) + raw(std::uint64_t{1}))),
                "'k' is an array of arrays");
  }
  SECTION("alignment") {
    for (const std::uint32_t alignment : {0u, 3u, 48u, 0x80000000u})
      check_error(error_of(GgufWriter().add("general.alignment", alignment)),
                  "must be a power of two up to 2^30, got");
    check_error(error_of(GgufWriter().add("general.alignment", "32")),
                "'general.alignment' must be an integer below 2^63, got string");
  }
  SECTION("tensors") {
    const auto described = [](std::uint32_t type, std::vector<std::uint64_t> shape,
                              std::uint64_t offset) {
      GgufWriter out;
      out.add_tensor("here", kF32, {16}, std::string(64, 'x'));
      out.describe("t", type, shape, offset);
      return error_of(out);
    };
    CHECK(described(kF32, {0}, 64).empty());
    check_error(described(kF32, {1, 1, 1, 1, 1}, 64), "'t' has 5 dimensions; at most 4");
    check_error(described(4, {1}, 64), "'t' is of type 4, which is not known");
    check_error(described(kQ8_0, {2, 33}, 64),
                "Q8_0 with rows of 33 elements; they must be a "
                "multiple of 32");
    check_error(described(kQ4_K, {}, 64), "Q4_K with rows of 1 elements");
    check_error(described(kF32, {kMost, kMost}, 64), "has more than 2^64 bytes");
    check_error(described(kF32, {kMost / 4 + 1}, 64), "has more than 2^64 bytes");
    check_error(described(kQ8_0, {kMost / 32 / 32, 32 * 32}, 64), "has more than 2^64 bytes");
    check_error(described(kF32, {4}, 64), "(F32 [4], 16 bytes) is 64, but only 64 bytes follow");
    check_error(described(kF32, {4}, kMost - 31), "is 18446744073709551584, but only 64 bytes");
    check_error(described(kF32, {kMost / 4 - 7}, 64),  // whose end overflows
                "18446744073709551584 bytes) is 64, but only 64 bytes follow");
    check_error(described(kF32, {4}, 8), "is 8; it must be a multiple of 32");
    check_error(described(kF32, {4}, 32), "'t' (F32 [4], 16 bytes) is 32, but 'here' ends at 64");
    check_error(
        error_of(
            GgufWriter().add_tensor("t", kF32, {1}, "1234").add_tensor("t", kF32, {1}, "1234")),
        "has the tensor 't' twice");
    check_error(error_of(GgufWriter().add_tensor("\xC3", kF32, {1}, "1234")), "must be UTF-8");
  }
}

TEST_CASE("a value of another type than is wanted is named", "[gguf]") {
  const std::string bytes = full_file().bytes();
  const GgufFile file = GgufFile::parse(bytes_of(bytes), "some.gguf");
  const GgufMetadata& metadata = file.metadata();
  CHECK_THROWS_WITH(metadata.integer("text"),
                    "'some.gguf': 'text' must be an integer below 2^63, got string");
  CHECK_THROWS_WITH(metadata.integer("numbers"),
                    "'some.gguf': 'numbers' must be an integer below 2^63, got array of int16");
  CHECK_THROWS_AS(metadata.integer("f32"), LoadError);
  CHECK_THROWS_AS(metadata.number("yes"), LoadError);
  CHECK_THROWS_AS(metadata.number("words"), LoadError);
  CHECK_THROWS_AS(metadata.boolean("u8"), LoadError);
  CHECK_THROWS_AS(metadata.string("words"), LoadError);
  CHECK_THROWS_AS(metadata.strings("text"), LoadError);
  CHECK_THROWS_AS(metadata.integers("words"), LoadError);
  CHECK_THROWS_AS(metadata.integers("u8"), LoadError);
  const std::string broken =
      GgufWriter().add("one", "a\xFF").add_strings("list", {"b", "a\xFF"}).bytes();
  const GgufFile not_text = GgufFile::parse(bytes_of(broken), "some.gguf");
  CHECK_THROWS_WITH(not_text.metadata().string("one"),
                    "'some.gguf': 'one' must be UTF-8, and is not at byte 1 of 'a'");
  CHECK_THROWS_AS(not_text.metadata().strings("list"), LoadError);
  const std::string huge = GgufWriter().add("k", Type::u64, ~std::uint64_t{0}).bytes();
  CHECK_THROWS_AS(GgufFile::parse(bytes_of(huge)).metadata().integer("k"), LoadError);
}

TEST_CASE("a GGUF file with altered bytes is refused or keeps to its bytes", "[gguf]") {
  const std::string whole = full_file().bytes();
  std::minstd_rand random(1);
  int num_refused = 0;
  for (int run = 0; run < 20000; ++run) {
    std::string file = whole;
    for (int i = run % 3; i >= 0; --i) file[random() % file.size()] = static_cast<char>(random());
    try {
      const GgufFile parsed = GgufFile::parse(bytes_of(file));
      for (const GgufTensor& tensor : parsed.tensors())
        REQUIRE(parsed.data(tensor).size() == tensor.size);
    } catch (const LoadError&) {
      ++num_refused;
    }
  }
  CHECK(num_refused > 5000);
  CHECK(num_refused < 20000);
}
