#include "nanovllm/with/tiers/disk/block_files.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

namespace {

struct Folder {
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_block_files_", ::getpid());
};

/// A block of three tokens in two pieces.
struct Block {
  explicit Block(TokenId first) : tokens{first, first + 1, first + 2} {
    key = {.name = DiskName::root("x").next(tokens), .parent = DiskName::root("x")};
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(first));
  }
  [[nodiscard]] std::vector<std::span<std::byte>> pieces() {
    return {std::span(bytes).first(10), std::span(bytes).last(30)};
  }
  [[nodiscard]] fs::path path(const Folder& folder) const {
    return folder.path / (key.name.hex() + ".kvblock");
  }
  std::vector<TokenId> tokens;
  DiskKey key;
  std::vector<std::byte> bytes = std::vector<std::byte>(40);
};

void set_age(const fs::path& path, std::chrono::seconds age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

}  // namespace

TEST_CASE("a block is read as it was written, and its file is as long as was said", "[disk]") {
  const Folder folder;
  const BlockFiles files(folder.path, "a model");
  Block block(5), copy(0);
  std::vector<std::byte> buffer;
  CHECK(!files.read(block.key, block.tokens, copy.pieces(), buffer));
  files.write(block.key, block.tokens, block.pieces());
  CHECK(fs::file_size(block.path(folder)) == files.file_bytes(block.tokens, block.pieces()));
  REQUIRE(files.read(block.key, block.tokens, copy.pieces(), buffer));
  CHECK(copy.bytes == block.bytes);
  files.remove(block.key.name);
  files.remove(block.key.name);  // once more
  files.touch(block.key.name);
  CHECK(!fs::exists(block.path(folder)));
}

TEST_CASE("a file that is not of the block says why", "[disk]") {
  const Folder folder;
  const BlockFiles files(folder.path, "a model"), others(folder.path, "another");
  Block block(5), other(7);
  std::vector<std::byte> buffer;
  const auto read = [&](const BlockFiles& from, Block& as) {
    static_cast<void>(from.read(block.key, as.tokens, as.pieces(), buffer));
  };
  files.write(block.key, block.tokens, block.pieces());
  CHECK_THROWS_AS(read(others, block), OtherModelError);
  CHECK_THROWS_WITH(read(others, block), Contains("is of another model"));
  CHECK_THROWS_WITH(read(files, other), Contains("is of other tokens"));
  std::vector<std::span<std::byte>> wrong = block.pieces();
  wrong[1] = wrong[1].first(29);
  CHECK_THROWS_WITH(files.read(block.key, block.tokens, wrong, buffer),
                    Contains("expected 29 bytes of keys and values, got 30"));
  fs::resize_file(block.path(folder), 100);
  CHECK_THROWS_AS(read(files, block), LoadError);
  CHECK_THROWS_WITH(read(files, block), Contains("it is cut off"));
  std::ofstream(block.path(folder), std::ios::trunc) << std::string(2 << 20, 'x');
  CHECK_THROWS_AS(read(files, block), OtherModelError);  // too long to be read at all
}

TEST_CASE("a file of another salt is not read, whatever it is called", "[disk][cache_salt]") {
  const Folder folder;
  const BlockFiles files(folder.path, "a model");
  Block block(5);
  std::vector<std::byte> buffer;
  const CacheSalt salts[] = {CacheSalt(), CacheSalt::of("alice"), CacheSalt::of("bob")};
  for (const CacheSalt& written : salts) {
    block.key.salt = written;
    files.write(block.key, block.tokens, block.pieces());
    CHECK(fs::file_size(block.path(folder)) ==
          files.file_bytes(block.tokens, block.pieces(), written));
    for (const CacheSalt& wanted : salts) {
      DiskKey key = block.key;
      key.salt = wanted;
      Block copy(0);
      if (wanted == written) {
        CHECK(files.read(key, block.tokens, copy.pieces(), buffer));
        CHECK(copy.bytes == block.bytes);
      } else {
        CHECK_THROWS_AS(files.read(key, block.tokens, copy.pieces(), buffer), OtherModelError);
        CHECK(copy.bytes == Block(0).bytes);
      }
    }
  }
}

TEST_CASE("files are listed by their last use, and old parts are deleted", "[disk]") {
  const Folder folder;
  const BlockFiles files(folder.path, "a model");
  Block a(1), b(2), c(3);
  for (Block* block : {&a, &b, &c}) files.write(block->key, block->tokens, block->pieces());
  set_age(a.path(folder), std::chrono::seconds(10));
  set_age(b.path(folder), std::chrono::seconds(30));
  set_age(c.path(folder), std::chrono::seconds(20));
  files.touch(b.key.name);
  const fs::path old_part = a.path(folder).string() + ".1.2.part",
                 new_part = a.path(folder).string() + ".1.3.part", foreign = folder.path / "notes";
  for (const fs::path& path : {old_part, new_part, foreign}) std::ofstream(path) << "x";
  for (const fs::path& path : {old_part, foreign}) set_age(path, std::chrono::hours(2));
  std::vector<DiskName> names;
  for (const BlockFiles::File& file : files.list()) {
    names.push_back(file.name);
    CHECK(file.num_bytes == files.file_bytes(a.tokens, a.pieces()));
  }
  CHECK(names == std::vector<DiskName>{c.key.name, a.key.name, b.key.name});
  CHECK((!fs::exists(old_part) && fs::exists(new_part) && fs::exists(foreign)));
}
