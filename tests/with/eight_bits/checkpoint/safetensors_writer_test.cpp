#include "nanovllm/with/eight_bits/checkpoint/safetensors_writer.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::TempDirectory;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

const std::vector<TensorInfo> kTensors = {{"odd \"name\"", FileDType::u8, {3}},
                                          {"halves", FileDType::f16, {1, 3}},
                                          {"nothing", FileDType::f32, {0, 4}},
                                          {"one", FileDType::i64, {}},
                                          {"words", FileDType::i32, {2}}};

}  // namespace

TEST_CASE("a written file is read, whatever the order of the pieces", "[safetensors]") {
  const TempDirectory folder;
  const std::filesystem::path path = folder.path() / "model.safetensors";
  SafetensorsFileWriter writer(path, kTensors);
  writer.write(4, 4, bytes_of("5678"));
  writer.write(0, 0, bytes_of("abc"));
  writer.write(3, 0, bytes_of("12345678"));
  writer.write(1, 0, bytes_of("uvwxyz"));
  writer.write(4, 0, bytes_of("1234"));
  writer.write(2, 0, {});
  writer.finish();

  const SafetensorsFile file(path);
  const std::vector<std::string> names = {"one", "nothing", "words", "halves", "odd \"name\""};
  const std::vector<std::string_view> contents = {"12345678", "", "12345678", "uvwxyz", "abc"};
  REQUIRE(file.tensors().size() == names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const TensorInfo& tensor = file.tensors()[i];
    CAPTURE(tensor.name);
    CHECK(tensor.name == names[i]);
    const auto data = file.data(tensor);
    CHECK(std::string_view(reinterpret_cast<const char*>(data.data()), data.size()) == contents[i]);
    const auto at = static_cast<std::size_t>(data.data() - file.mapping()->bytes().data());
    CHECK(at % (size_bits(tensor.dtype) / 8) == 0);
  }
  CHECK(file.tensors()[3].dtype == FileDType::f16);
  CHECK(file.tensors()[3].shape == std::vector<std::uint64_t>{1, 3});
}

TEST_CASE("what cannot be written is named", "[safetensors]") {
  const TempDirectory folder;
  const std::filesystem::path path = folder.path() / "model.safetensors";
  const SafetensorsFileWriter writer(path, kTensors);
  CHECK_THROWS_WITH(SafetensorsFileWriter(path, kTensors),
                    concat("cannot write '", path.string(), "': File exists"));
  const std::filesystem::path missing = folder.path() / "none" / "file";
  CHECK_THROWS_WITH(SafetensorsFileWriter(missing, kTensors),
                    concat("cannot write '", missing.string(), "': No such file or directory"));
  CHECK_THROWS_WITH(writer.write(1, 4, bytes_of("abc")),
                    Contains("'halves' has 6 bytes, got 3 at 4"));
  CHECK_THROWS_WITH(writer.write(1, 7, {}), Contains("'halves' has 6 bytes, got 0 at 7"));
}
