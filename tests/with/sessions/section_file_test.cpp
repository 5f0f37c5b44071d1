#include "nanovllm/with/sessions/section_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
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

TEST_CASE("files and directories that users' words go to are their owner's alone",
          "[section_file]") {
  const Folder folder;
  const auto mode_of = [](const fs::path& path) {
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    return status.st_mode & 07777;
  };
  const mode_t before = ::umask(0);
  const fs::path made = folder.path / "a" / "b", path = made / "x";
  CHECK(!make_private_directories(made));
  CHECK(!make_private_directories(made / ""));  // there already
  CHECK((mode_of(folder.path / "a") == 0700 && mode_of(made) == 0700));
  {
    SectionWriter file(path, kFormat);
    const fs::path part = fs::directory_iterator(made)->path();
    CHECK(part.extension() == ".part");
    CHECK(mode_of(part) == 0600);  // before anything is written
    file.write("first");
    file.finish();
  }
  CHECK(mode_of(path) == 0600);
  fs::permissions(path, fs::perms(0644));  // as an older version left it
  write(path);
  CHECK(mode_of(path) == 0600);
  CHECK(read(path) == "first||the third one");

  fs::create_directory(folder.path / "open");
  CHECK(!make_private_directories(folder.path / "open" / "below"));
  CHECK(mode_of(folder.path / "open") == 0777);
  ::umask(before);
  CHECK(make_private_directories(path / "below") ==
        std::error_code(ENOTDIR, std::generic_category()));
}
