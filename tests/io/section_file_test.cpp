#include "nanovllm/io/section_file.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"

using namespace nanovllm;
namespace fs = std::filesystem;

namespace {

constexpr SectionFormat kFormat{.magic = "section test", .version = 3};

struct Folder {
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  [[nodiscard]] std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_sections_", ::getpid());
};

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

void write(const fs::path& path) {
  SectionWriter file(path, kFormat);
  file.write("first");
  file.write(std::string_view());
  file.write("the third one");
  file.finish();
}

/// What stands in the file, or the fault.
std::string read(const fs::path& path, const SectionFormat& format = kFormat) {
  try {
    SectionReader file(path, format);
    std::string out(file.read_text("the first"));
    out += concat("|", file.read_text("the second"), "|");
    out += file.read_text("the third");
    file.finish();
    return out;
  } catch (const LoadError& error) {
    return concat("LoadError: ", error.what());
  }
}

}  // namespace

TEST_CASE("sections come back as they were written", "[section_file]") {
  const Folder folder;
  const fs::path path = folder.path / "file";
  write(path);
  CHECK(read(path) == "first||the third one");
  CHECK(folder.num_files() == 1);
}

TEST_CASE("a file of which any byte is another is refused", "[section_file]") {
  const Folder folder;
  const fs::path path = folder.path / "file";
  write(path);
  const std::string whole = content_of(path);
  REQUIRE(whole.size() == 16 + 3 * 16 + 5 + 13);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const char change : {'\x01', '\x80', '\xff'}) {
      std::string altered = whole;
      altered[i] = static_cast<char>(altered[i] ^ change);
      put(path, altered);
      CAPTURE(i);
      CHECK(read(path).starts_with("LoadError: '" + path.string() + "': "));
    }
  }
  // Whole sections in another order have other places.
  put(path, whole.substr(0, 16) + whole.substr(37, 16) + whole.substr(16, 21) + whole.substr(53));
  CHECK(read(path).find("should have checksum") != std::string::npos);
}

TEST_CASE("a file that is cut off, or longer, is refused", "[section_file]") {
  const Folder folder;
  const fs::path path = folder.path / "file";
  write(path);
  const std::string whole = content_of(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put(path, whole.substr(0, size));
    CAPTURE(size);
    const std::string fault = read(path);
    CHECK(fault.starts_with("LoadError: '"));
    if (size >= 16) CHECK(fault.find("cut off") != std::string::npos);
  }
  put(path, whole + "x");
  CHECK(read(path) == concat("LoadError: '", path.string(), "': expected 82 bytes, got 83"));
}

TEST_CASE("another format or version is refused by name", "[section_file]") {
  const Folder folder;
  const fs::path path = folder.path / "file";
  write(path);
  const std::string name = concat("LoadError: '", path.string(), "': ");
  CHECK(read(path, {.magic = "section test", .version = 4}) == name + "expected version 4, got 3");
  CHECK(read(path, {.magic = "another one.", .version = 3}) ==
        name + "expected a file that begins with 'another one', got something else");
  CHECK(read(folder.path / "none").starts_with("LoadError: "));
}

TEST_CASE("what is not finished leaves the file that was there", "[section_file]") {
  const Folder folder;
  const fs::path path = folder.path / "file";
  write(path);
  {
    SectionWriter file(path, kFormat);
    file.write("half");
    CHECK(folder.num_files() == 2);
  }
  CHECK(folder.num_files() == 1);
  CHECK(read(path) == "first||the third one");
  CHECK_THROWS_AS(SectionWriter(folder.path / "no" / "folder", kFormat), Error);
  fs::create_directories(folder.path / "taken" / "x");
  SectionWriter file(folder.path / "taken", kFormat);
  CHECK_THROWS_WITH(file.finish(), Catch::Matchers::StartsWith("cannot rename to '"));
  CHECK(folder.num_files() == 2);
}
