#include "nanovllm/io/safetensors.hpp"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "safetensors_writer.hpp"

namespace nv = nanovllm;
using nanovllm_test::safetensors_bytes;
using nanovllm_test::SafetensorsWriter;
using nanovllm_test::TempDirectory;
using Kind = nv::SafetensorsError::Kind;

namespace {

nv::SafetensorsFile parse(const std::string& bytes) {
  return nv::SafetensorsFile::parse(std::as_bytes(std::span(bytes)));
}

/// "ok", or the name of the check that refuses `bytes`.
std::string verdict(const std::string& bytes) {
  try {
    parse(bytes);
    return "ok";
  } catch (const nv::SafetensorsError& error) {
    return std::string(name(error.kind));
  }
}

std::string header_verdict(std::string_view header, std::string_view data = {}) {
  return verdict(safetensors_bytes(header, data));
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

std::filesystem::path shared() {
  const char* path = std::getenv("NANOVLLM_SHARED");
  return path != nullptr ? path : "../shared";
}

constexpr const char* kBad = "InvalidHeaderDeserialization";

}  // namespace

TEST_CASE("A file is refused for the reason that the format's own library gives", "[safetensors]") {
  const auto path = shared() / "cases" / "safetensors_cases.json";
  if (!std::filesystem::exists(path)) {
    std::puts("skipped: safetensors_cases.json is not there");
    return;
  }
  const nv::MappedFile file(path);
  const auto json = nlohmann::json::parse(file.text());
  REQUIRE(json["cases"].size() >= 23);
  for (const auto& item : json["cases"]) {
    CAPTURE(item["name"].get<std::string>());
    const auto hex = item["hex"].get<std::string>();
    std::string bytes;
    for (std::size_t i = 0; i < hex.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    CHECK(verdict(bytes) == (item["error"].is_null() ? "ok" : item["error"].get<std::string>()));
  }
}

TEST_CASE("Every check refuses with its own kind, and the first one that fails wins",
          "[safetensors]") {
  CHECK(verdict("") == "HeaderTooSmall");
  CHECK(verdict("1234567") == "HeaderTooSmall");
  CHECK(verdict(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8)) == "HeaderTooLarge");
  CHECK(verdict(std::string("\x00\xe1\xf5\x05\0\0\0\0", 8)) == "InvalidHeaderLength");
  CHECK(verdict(std::string("\x03\0\0\0\0\0\0\0{}", 10)) == "InvalidHeaderLength");
  CHECK(header_verdict("\xff{") == "InvalidHeader");
  CHECK(header_verdict("{\"\xed\xa0\x80\":1}") == "InvalidHeader");  // a surrogate
  CHECK(header_verdict("") == kBad);
  CHECK(header_verdict("{}") == "ok");
  CHECK(header_verdict("{}", "x") == "MetadataIncompleteBuffer");
  CHECK(header_verdict(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", "x") ==
        "MisalignedSlice");
  CHECK(header_verdict(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", "xy") == "ok");
  CHECK(header_verdict(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", "xyz") ==
        "ok");
  // The size overflows although a later extent is zero; with the zero first it does not.
  constexpr const char* kHuge = "18446744073709551615";
  CHECK(header_verdict(nv::concat(R"({"a":{"dtype":"U8","shape":[)", kHuge, ",", kHuge,
                                  R"(,0],"data_offsets":[0,0]}})")) == "ValidationOverflow");
  CHECK(header_verdict(nv::concat(R"({"a":{"dtype":"U8","shape":[0,)", kHuge, ",", kHuge,
                                  R"(],"data_offsets":[0,0]}})")) == "ok");
  // An offset is judged before the size, and tensor by tensor.
  CHECK(header_verdict(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[1,2]}})", "xx") ==
        "InvalidOffset");
  CHECK(header_verdict(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,1]},
                           "b":{"dtype":"U8","shape":[1],"data_offsets":[7,8]}})",
                       "x") == "TensorInvalidInfo");
}

TEST_CASE("A header that is not the format's JSON is refused", "[safetensors]") {
  const auto entry = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  const std::string dtype = R"("dtype":"U8")", shape = R"("shape":[1])",
                    offsets = R"("data_offsets":[0,1])";
  REQUIRE(header_verdict(entry(dtype + "," + shape + "," + offsets), "x") == "ok");
  CHECK(header_verdict(entry(shape + "," + offsets), "x") == kBad);
  CHECK(header_verdict(entry(dtype + "," + offsets), "x") == kBad);
  CHECK(header_verdict(entry(dtype + "," + shape), "x") == kBad);
  CHECK(header_verdict(entry(dtype + "," + dtype + "," + shape + "," + offsets), "x") == kBad);
  for (const char* bad : {R"("dtype":8)", R"("dtype":"u8")", R"("dtype":null)", R"("dtype":["U8"])",
                          R"("dtype":{"U8":null})"}) {
    CHECK(header_verdict(entry(std::string(bad) + "," + shape + "," + offsets), "x") == kBad);
  }
  for (const char* bad : {R"("shape":1)", R"("shape":[-1])", R"("shape":[1.0])", R"("shape":["1"])",
                          R"("shape":[[1]])", R"("shape":[18446744073709551616])",
                          R"("shape":[-0])", R"("shape":[null])", R"("shape":{})"}) {
    CHECK(header_verdict(entry(dtype + "," + bad + "," + offsets), "x") == kBad);
  }
  for (const char* bad :
       {R"("data_offsets":[0])", R"("data_offsets":[0,1,1])", R"("data_offsets":[])",
        R"("data_offsets":[0,-1])", R"("data_offsets":[0,1e0])", R"("data_offsets":"01")"}) {
    CHECK(header_verdict(entry(dtype + "," + shape + "," + bad), "x") == kBad);
  }
  for (const char* bad :
       {"[]", "null", "1", "\"a\"", R"({"a":null})", R"({"a":[]})", R"({"a":"U8"})", "{}{}", "{},",
        "{} x", "\xEF\xBB\xBF{}", R"({"a":1e999})", R"({"__metadata__":[]})",
        R"({"__metadata__":"x"})", R"({"__metadata__":{"a":null}})",
        R"({"__metadata__":{"a":{"b":"c"}}})", R"({"__metadata__":{"a":["b"]}})",
        R"({"__metadata__":{},"__metadata__":{}})"}) {
    CAPTURE(bad);
    CHECK(header_verdict(bad) == kBad);
  }
  CHECK(header_verdict(std::string_view("{}\0", 3)) == kBad);
  CHECK(header_verdict(R"({"__metadata__":null})") == "ok");
  CHECK(header_verdict(R"({"__metadata__":{"dtype":"x","dtype":"y"}})") == "ok");
}

TEST_CASE("Unknown fields of an entry are ignored, however they nest", "[safetensors]") {
  for (const char* extra : {"1", "-1", "1.5", "null", "true", "\"s\"", "[]", "{}",
                            R"([[],{"dtype":["F32"]},"x",[1,[2,[3.5,null]]]])",
                            R"({"shape":[2],"data_offsets":{"a":[{}]}})"}) {
    const std::string first = nv::concat(R"({"a":{"note":)", extra,
                                         R"(,"dtype":"U8","shape":[2],"data_offsets":[0,2]}})");
    const std::string last =
        nv::concat(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"note":)", extra, "}}");
    for (const std::string& header : {first, last}) {
      CAPTURE(header);
      const std::string bytes = safetensors_bytes(header, "xy");
      const auto file = parse(bytes);
      REQUIRE(file.tensors().size() == 1);
      CHECK(file.tensors()[0].shape == std::vector<std::uint64_t>{2});
    }
  }
}

TEST_CASE("defect 7: a header that nests deeply is refused", "[safetensors]") {
  const auto nested = [](int depth) {
    return nv::concat(std::string(depth, '['), std::string(depth, ']'));
  };
  const auto with_note = [&](int depth) {
    return nv::concat(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"note":)",
                      nested(depth), "}}");
  };
  CHECK(header_verdict(with_note(200), "xy") == "ok");
  CHECK(header_verdict(with_note(1000000), "xy") == kBad);
  CHECK(header_verdict(nested(1000000)) == kBad);
  CHECK(header_verdict(nv::concat("{\"a\":", nested(1000000), "}")) == kBad);
}

TEST_CASE("A repeated tensor keeps its last entry", "[safetensors]") {
  const std::string bytes = safetensors_bytes(
      R"({"a":{"dtype":"I64","shape":[7],"data_offsets":[5,6]},
          "a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})",
      "xy");
  const auto file = parse(bytes);
  REQUIRE(file.tensors().size() == 1);
  CHECK(file.find("a")->dtype == nv::FileDType::i8);
}

TEST_CASE("Each dtype of the format is read with its size", "[safetensors]") {
  const std::vector<std::pair<const char*, std::uint64_t>> bits = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  SafetensorsWriter writer;
  for (const auto& [dtype, size] : bits) {
    writer.add(dtype, dtype, {2, 4}, std::string(size, 'x'));  // 8 elements of `size` bits
  }
  const std::string bytes = writer.bytes();
  const auto file = parse(bytes);
  REQUIRE(file.tensors().size() == bits.size());
  for (const auto& [dtype, size] : bits) {
    const nv::TensorInfo* tensor = file.find(dtype);
    REQUIRE(tensor != nullptr);
    CHECK(name(tensor->dtype) == dtype);
    CHECK(size_bits(tensor->dtype) == size);
    CHECK(file.data(*tensor).size() == size);
  }
}

TEST_CASE("Data at any alignment are found, in offset order", "[safetensors]") {
  SafetensorsWriter writer;
  writer.add("z", "U8", {3}, "abc").add("empty", "F32", {0, 4}, "").add("y", "F32", {1}, "0123");
  writer.add("scalar", "U8", {}, "s");
  for (std::size_t padding = 0; padding < 8; ++padding) {
    const std::string bytes = writer.bytes(padding);
    auto first = parse(bytes);
    const nv::SafetensorsFile file = std::move(first);
    REQUIRE(file.tensors().size() == 4);
    CHECK(file.tensors()[0].name == "z");
    CHECK(file.tensors()[1].name == "empty");
    CHECK(file.tensors()[2].name == "y");
    CHECK(file.find("absent") == nullptr);
    const auto data = file.data(*file.find("y"));
    CHECK(std::string(reinterpret_cast<const char*>(data.data()), data.size()) == "0123");
  }
}

TEST_CASE("A file on disk is mapped, and errors name it", "[safetensors]") {
  TempDirectory directory;
  const auto good =
      directory.write("good.safetensors", SafetensorsWriter().add("a", "U8", {2}, "hi").bytes());
  nv::SafetensorsFile file(good);
  const nv::SafetensorsFile moved = std::move(file);
  CHECK(static_cast<char>(moved.data(*moved.find("a"))[1]) == 'i');
  REQUIRE(moved.mapping() != nullptr);
  moved.mapping()->release(moved.data(*moved.find("a")));
  CHECK(static_cast<char>(moved.data(*moved.find("a"))[1]) == 'i');

  const auto empty = directory.write("empty.safetensors", "");
  try {
    nv::SafetensorsFile bad(empty);
    FAIL("an empty file was read");
  } catch (const nv::SafetensorsError& error) {
    CHECK(error.kind == Kind::header_too_small);
    CHECK(mentions(error.what(), "empty.safetensors"));
  }
  CHECK_THROWS_AS(nv::SafetensorsFile(directory.path() / "none"), nv::LoadError);
  CHECK_THROWS_AS(nv::SafetensorsFile(directory.path()), nv::LoadError);
}

TEST_CASE("A header of 19,000 tensors is read quickly", "[safetensors]") {
  SafetensorsWriter writer;
  for (int i = 0; i < 19000; ++i) {
    writer.add(nv::concat("model.layers.", i / 400, ".mlp.experts.", i % 400, ".gate_proj.weight"),
               "BF16", {1, 1}, "xy");
  }
  const std::string bytes = writer.bytes();
  const std::clock_t start = std::clock();  // processor time: other programs do not count
  const auto file = parse(bytes);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  CHECK(file.tensors().size() == 19000);
  std::printf("19,000 tensors: %.1f ms\n", seconds * 1e3);
  CHECK(seconds < 3);  // some 0.025 s, with sanitisers 0.5 s; quadratic time would take far longer
}
