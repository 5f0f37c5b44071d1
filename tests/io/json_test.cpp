#include "nanovllm/io/json.hpp"

#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "catch.hpp"

namespace nv = nanovllm;
using nv::Json;

namespace {

std::string error_of(std::string_view text) {
  try {
    (void)nv::parse_json_value(text);
    return {};
  } catch (const nv::JsonError& error) {
    return error.what();
  }
}

/// Whether both values are the same, down to the kinds of numbers and the order of members. Big
/// integers are floats to nlohmann.
bool same(const Json& ours, const nlohmann::ordered_json& theirs) {
  using Kind = Json::Kind;
  switch (ours.kind()) {
    case Kind::null: return theirs.is_null();
    case Kind::boolean: return theirs.is_boolean() && ours.boolean() == theirs.get<bool>();
    case Kind::integer:
      return theirs.is_number_integer() && !theirs.is_number_unsigned() &&
             ours.get<std::int64_t>() == theirs.get<std::int64_t>();
    case Kind::unsigned_integer:
      return theirs.is_number_unsigned() &&
             ours.get<std::uint64_t>() == theirs.get<std::uint64_t>();
    case Kind::real: {
      const auto a = ours.get<double>();
      const auto b = theirs.get<double>();
      return theirs.is_number_float() && a == b && std::signbit(a) == std::signbit(b);
    }
    case Kind::big_integer: return theirs.is_number_float();
    case Kind::string: return theirs.is_string() && ours.string() == theirs.get<std::string>();
    case Kind::array:
      if (!theirs.is_array() || ours.size() != theirs.size()) return false;
      for (std::size_t i = 0; i < ours.size(); ++i) {
        if (!same(ours[i], theirs[i])) return false;
      }
      return true;
    case Kind::object: break;
  }
  if (!theirs.is_object() || ours.size() != theirs.size()) return false;
  auto member = theirs.begin();
  for (const auto& [key, value] : ours.items()) {
    if (key != member.key() || !same(value, *member)) return false;
    ++member;
  }
  return true;
}

/// Reads `text` here and with nlohmann's parser, which must agree.
void compare(const std::string& text, int& num_valid) {
  if (text.find('\0') != text.npos) return;  // nlohmann's lexer takes it for the end
  const auto theirs = nlohmann::ordered_json::parse(text, nullptr, false);
  const std::string error = error_of(text);
  if (error.empty() == theirs.is_discarded()) {
    FAIL("'" << text << "': " << (error.empty() ? "read here only" : error));
  }
  if (!error.empty()) return;
  ++num_valid;
  if (!same(nv::parse_json_value(text), theirs)) FAIL("'" << text << "' is read differently");
}

}  // namespace

TEST_CASE("Texts are read as another parser reads them", "[json]") {
  int num_valid = 0;
  const std::string pieces[] = {"{",
                                "}",
                                "[",
                                "]",
                                ",",
                                ":",
                                "\"",
                                "\"a\"",
                                "\"b\":",
                                "0",
                                "-",
                                "1",
                                "12",
                                ".5",
                                "e",
                                "E+3",
                                "e-2",
                                "1e308",
                                "1e309",
                                "1e-400",
                                "true",
                                "false",
                                "null",
                                "nul",
                                " ",
                                "\n",
                                "\t",
                                "\\",
                                "\\n",
                                "\\u00e9",
                                "\\ud83e\\udd99",
                                "\\ud800",
                                "\\udc00",
                                "é",
                                "🦙",
                                "\x80",
                                "\xC3",
                                "\xED\xA0\x80",
                                "/",
                                "\x01",
                                "\x7F",
                                "18446744073709551615",
                                "18446744073709551616",
                                "-9223372036854775808",
                                "-9223372036854775809",
                                "\xEF\xBB\xBF",
                                "NaN",
                                "0x1",
                                "\v"};
  std::mt19937 random(7);
  std::uniform_int_distribution<std::size_t> piece(0, std::size(pieces) - 1);
#if defined(__SANITIZE_ADDRESS__)
  constexpr int kNumTexts = 20000;  // what is thrown takes a hundred times as long
#else
  constexpr int kNumTexts = 200000;
#endif
  for (int i = 0; i < kNumTexts; ++i) {
    std::string text;
    for (std::uint32_t n = 1 + random() % 6; n > 0; --n) text += pieces[piece(random)];
    compare(text, num_valid);
    compare("[" + text + "]", num_valid);
    compare("\"" + text + "\"", num_valid);
  }
  CHECK(num_valid > kNumTexts / 10);

  // One byte of a valid document is another, or gone, or doubled.
  const std::string document =
      R"({"a": [1, -2.5e-3, true, null, {"b": "x\u00e9\n", "a": {}}], "é": [], "a": "\"", "": 0})";
  for (std::size_t at = 0; at < document.size(); ++at) {
    for (int byte = 1; byte < 256; ++byte) {
      std::string text = document;
      text[at] = static_cast<char>(byte);
      compare(text, num_valid);
    }
    compare(document.substr(0, at) + document.substr(at + 1), num_valid);
    compare(document.substr(0, at) + document.substr(at), num_valid);
    compare(document.substr(0, at), num_valid);
  }
}

TEST_CASE("Numbers of any size are the nearest double, or refused", "[json]") {
  std::mt19937_64 random(11);
  int num_valid = 0;
  for (int i = 0; i < 100000; ++i) {
    std::string text = random() % 2 ? "-" : "";
    const bool zero = random() % 4 == 0;
    text += zero ? "0" : std::to_string(random() >> random() % 60);
    if (random() % 2) text += nv::concat(".", std::string(random() % 30, '0'), random());
    if (random() % 2) text += nv::concat("e", static_cast<int>(random() % 700) - 350);
    compare(text, num_valid);
  }
  CHECK(num_valid > 50000);
  for (const std::string zeros : {"0.0", "-0.0", "0e999999999999999999999", "0.0e-5"}) {
    compare(zeros, num_valid);
    CHECK(nv::parse_json_value(zeros).get<double>() == 0);
  }
  const std::string small = nv::concat("0.", std::string(400, '0'), "1");
  CHECK(nv::parse_json_value(small).get<double>() == 0);
  CHECK(nv::parse_json_value(small + "e410").get<double>() == 1e9);
  CHECK(nv::parse_json_value(nv::concat("1", std::string(400, '0'), "e-400")).get<double>() == 1);
  CHECK(nv::parse_json_value("1e-99999999999999999999").get<double>() == 0);
  CHECK_FALSE(error_of("1e99999999999999999999").empty());
  // The largest exponent of 64 bits, to which the digits' places must not be added.
  for (const std::string digits : {"1", "18446740737", "0.0001"})
    CHECK_FALSE(error_of(digits + "e9223372036854775807").empty());
  for (const std::string digits : {"1", "18446740737", "0.0001"})
    CHECK(nv::parse_json_value(digits + "e-9223372036854775807").get<double>() == 0);
  CHECK_FALSE(error_of(std::string(400, '9')).empty());
}

TEST_CASE("An error names the byte and what was expected", "[json]") {
  CHECK(error_of("") ==
        "not valid JSON (byte 1): syntax error while parsing value - unexpected end of input; "
        "expected a value");
  CHECK(error_of("nope") ==
        "not valid JSON (byte 2): syntax error while parsing value - invalid literal");
  CHECK(error_of("[1, x]") ==
        "not valid JSON (byte 5): syntax error while parsing value - invalid literal");
  CHECK(error_of("[1 2]").find("(byte 4): syntax error while parsing array - unexpected '2'; "
                               "expected ',' or ']'") != std::string::npos);
  CHECK(error_of("{1:2}").find("object key - unexpected '1'; expected a string") !=
        std::string::npos);
  CHECK(error_of("{\"a\" 2}").find("object separator - unexpected '2'; expected ':'") !=
        std::string::npos);
  CHECK(error_of(std::string("1\0", 2)).find("(byte 2)") != std::string::npos);
  CHECK(error_of("\"" + std::string(100000, 'a')).size() < 200);
}

TEST_CASE("Deep nesting is refused, whatever nests", "[json]") {
  const auto nested = [](int depth, const std::string& open, const std::string& close) {
    std::string text, end;
    for (int i = 0; i < depth; ++i) (text += open, end += close);
    return text + "1" + end;
  };
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    CHECK(error_of(nested(nv::kMaxJsonDepth, open, close)).empty());
    CHECK(error_of(nested(nv::kMaxJsonDepth + 1, open, close)).find("nested more than 256") == 0);
    CHECK(error_of(nested(1000000, open, "")).find("nested more than 256") == 0);
  }
}

TEST_CASE("Objects of many members take no quadratic time to read", "[json]") {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += nv::concat("\"", i % 150000, "\": ", i, ", ");
  text += "\"last\": null}";
  const auto start = std::chrono::steady_clock::now();
  const Json value = nv::parse_json_value(text);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  REQUIRE(value.size() == 150001);
  CHECK(value.items()[7].key == "7");
  CHECK(value.items()[7].value == Json(150007));  // the last value in the first place
  CHECK(value.items()[149999].value == Json(149999));
}

TEST_CASE("Values are made, changed, copied and compared", "[json]") {
  Json value;
  value["a"] = 1;
  value["b"]["c"] = std::vector<int>{1, 2};
  value["a"] = "x";
  value["list"].push_back(true);
  CHECK(value.dump() == R"({"a": "x", "b": {"c": [1, 2]}, "list": [true]})");
  const Json copy = value;
  CHECK(copy == value);
  value["b"]["c"].push_back(3.5);
  CHECK_FALSE(copy == value);
  CHECK(copy["b"]["c"].size() == 2);
  CHECK(value["b"]["c"].back() == Json(3.5));
  value = value["b"]["c"];  // a part of itself
  CHECK(value.dump() == "[1, 2, 3.5]");
  CHECK(Json(1) == Json(1u));
  CHECK(Json(1) == Json(1.0));
  CHECK_FALSE(Json(1) == Json(true));
  CHECK_FALSE(Json("1") == Json(1));
  CHECK(Json::object({{"k", nullptr}}).find("k")->is_null());
  CHECK(Json::array({1, "two", Json::array()}).dump() == R"([1, "two", []])");
  const Json big = Json::big_integer("123456789012345678901234567890");
  CHECK(Json(big).dump() == big.digits());

  CHECK_THROWS_AS(Json(1).string(), nv::Error);
  CHECK_THROWS_AS(Json("1").get<int>(), nv::Error);
  CHECK_THROWS_AS(copy.at("none"), nv::Error);
  CHECK_THROWS_AS(copy[0], nv::Error);
  CHECK_THROWS_AS(Json::array()[0], nv::Error);
  CHECK_THROWS_AS(Json("x").push_back(1), nv::Error);
  CHECK(Json("x").find("y") == nullptr);
}
