#include "nanovllm/with/tiers/disk/disk_store.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"

using namespace nanovllm;
namespace fs = std::filesystem;

namespace {

const std::string kIdentity = "weights = some\nblock_size = 4\n";

struct Folder {
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
  /// Names, sorted.
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(path))
      out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_disk_store_", ::getpid());
};

/// A block in two pieces, as of two layers, with its tokens and its key.
struct Block {
  Block(const DiskName& parent, TokenId first) {
    tokens = {first, first + 1, first + 2, first + 3};
    key = {.name = parent.next(tokens), .parent = parent};
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(static_cast<std::size_t>(first) * 7 + i);
  }
  [[nodiscard]] std::vector<std::span<std::byte>> pieces() {
    return {std::span(bytes).first(40), std::span(bytes).last(60)};
  }
  std::vector<TokenId> tokens;
  DiskKey key;
  std::vector<std::byte> bytes = std::vector<std::byte>(100);
};

bool enter(DiskStore& tier, Block& block) {
  return tier.enter(block.key, block.tokens, block.pieces());
}

/// Whether the tier has the block, and gives what was put in.
bool has(DiskStore& tier, const Block& block) {
  Block copy = block;
  std::fill(copy.bytes.begin(), copy.bytes.end(), std::byte{0xee});
  if (!tier.read(block.key, block.tokens, copy.pieces())) return false;
  CHECK(copy.bytes == block.bytes);
  return true;
}

fs::path path_of(const Folder& folder, const Block& block) {
  return folder.path / (block.key.name.hex() + ".kvblock");
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

void set_age(const fs::path& path, std::chrono::seconds age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

}  // namespace

TEST_CASE("names are chained, and those of every process", "[disk]") {
  const DiskName root = DiskName::root(kIdentity);
  const std::vector<TokenId> a{1, 2, 3, 4}, b{1, 2, 3, 5};
  CHECK(root.next(a) == DiskName::root(kIdentity).next(a));
  CHECK(root.next(a) != root.next(b));
  CHECK(root.next(a).next(b) != root.next(b).next(a));
  CHECK(DiskName::root(kIdentity + "x").next(a) != root.next(a));
  // Other machines and later versions look for the same files.
  CHECK(root.hex() == "f96741ade074ba580695236ae2deef8b");
  CHECK(root.next(a).hex() == "92c1f639921dc281216ba211e1545d3a");
  CHECK(DiskName{.high = 1, .low = 0xabc}.hex() == "00000000000000010000000000000abc");
}

TEST_CASE("what is entered is read, also by the next one", "[disk]") {
  const Folder folder;
  std::vector<Block> blocks;
  {
    DiskStore tier(folder.path / "made" / "if need be", 1 << 20, kIdentity);
    DiskName parent = tier.root();
    for (int i = 0; i < 3; ++i) {
      blocks.emplace_back(parent, 10 * i);
      parent = blocks.back().key.name;
      CHECK(!tier.contains(parent));
      CHECK(!has(tier, blocks.back()));
      REQUIRE(enter(tier, blocks.back()));
      CHECK((tier.contains(parent) && has(tier, blocks.back())));
    }
    const DiskStats stats = tier.stats();
    CHECK((stats.num_blocks == 3 && stats.num_writes == 3 && stats.num_reads == 3));
    CHECK(stats.num_failures == 0);
    CHECK(stats.num_bytes == 3 * tier.file_bytes(blocks[0].tokens, blocks[0].pieces()));
    REQUIRE(enter(tier, blocks[1]));  // once more
    CHECK((tier.size() == 3 && tier.stats().num_bytes == stats.num_bytes));
  }
  DiskStore tier(folder.path / "made" / "if need be", 1 << 20, kIdentity);
  CHECK((tier.size() == 3 && tier.stats().num_writes == 0));
  for (const Block& block : blocks) CHECK(has(tier, block));
  std::uint64_t num_bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder.path / "made" / "if need be"))
    num_bytes += entry.file_size();
  CHECK(tier.stats().num_bytes == num_bytes);
  tier.forget(blocks[0].key.name);
  CHECK((!tier.contains(blocks[0].key.name) && !has(tier, blocks[0]) && tier.size() == 2));
}

TEST_CASE("a file that is cut off or altered is no hit, is counted and removed", "[disk]") {
  const Folder folder;
  DiskStore tier(folder.path, 1 << 20, kIdentity);
  Block block(tier.root(), 3);
  REQUIRE(enter(tier, block));
  const fs::path path = path_of(folder, block);
  const std::string whole = content_of(path);
  REQUIRE(whole.size() == tier.file_bytes(block.tokens, block.pieces()));
  std::int64_t num_failures = 0;
  const auto check_refused = [&](const std::string& content) {
    REQUIRE(enter(tier, block));
    put(path, content);
    CHECK(!has(tier, block));
    CHECK((!fs::exists(path) && !tier.contains(block.key.name) && tier.size() == 0));
    CHECK(tier.stats().num_bytes == 0);
    CHECK(tier.stats().num_failures == ++num_failures);
  };
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    check_refused(whole.substr(0, size));
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    CAPTURE(at);
    std::string altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ 0x10);
    check_refused(altered);
  }
  check_refused(whole + "x");
  REQUIRE(enter(tier, block));
  CHECK(has(tier, block));
  CHECK(folder.files().size() == 1);
}

TEST_CASE("honest files of other blocks and other models are no hits", "[disk]") {
  const Folder folder;
  DiskStore tier(folder.path, 1 << 20, kIdentity);
  Block block(tier.root(), 3), other_tokens(tier.root(), 4), other_parent(other_tokens.key.name, 3);
  const auto put_under_its_name = [&](DiskStore& writer, Block& written) {
    REQUIRE(enter(tier, block));
    REQUIRE(enter(writer, written));
    fs::rename(path_of(folder, written), path_of(folder, block));
  };
  for (Block* written : {&other_tokens, &other_parent}) {
    put_under_its_name(tier, *written);
    CHECK(!has(tier, block));
    CHECK(!fs::exists(path_of(folder, block)));
  }
  CHECK(tier.stats().num_failures == 2);

  DiskStore other(folder.path, 1 << 20, "weights = others\nblock_size = 4\n");
  Block of_other(other.root(), 3);
  REQUIRE(of_other.key.name != block.key.name);
  put_under_its_name(other, of_other);
  CHECK(!has(tier, block));
  CHECK((fs::exists(path_of(folder, block)) && !tier.contains(block.key.name)));
  CHECK(tier.stats().num_failures == 3);

  // What is not honest is removed, whatever it says it is of.
  REQUIRE(enter(tier, block));
  REQUIRE(enter(other, of_other));
  std::string content = content_of(path_of(folder, of_other));
  content.back() = static_cast<char>(content.back() ^ 1);
  put(path_of(folder, block), content);
  CHECK(!has(tier, block));
  CHECK(!fs::exists(path_of(folder, block)));

  // A file of gigabytes must not be read to see that it is none of ours.
  REQUIRE(enter(tier, block));
  fs::resize_file(path_of(folder, block), std::uintmax_t{1} << 40);
  CHECK(!has(tier, block));
  CHECK(tier.stats().num_failures == 5);
}

TEST_CASE("the least recently used file goes first, across restarts, too", "[disk]") {
  const Folder folder;
  std::vector<Block> blocks;
  std::uint64_t one = 0;
  {
    DiskStore tier(folder.path, 1 << 20, kIdentity);
    for (int i = 0; i < 4; ++i) blocks.emplace_back(tier.root(), 10 * i);
    one = tier.file_bytes(blocks[0].tokens, blocks[0].pieces());
  }
  {
    DiskStore tier(folder.path, 3 * one + one / 2, kIdentity);
    for (int i = 0; i < 3; ++i) REQUIRE(enter(tier, blocks[static_cast<std::size_t>(i)]));
    tier.touch(blocks[0].key.name);
    REQUIRE(enter(tier, blocks[3]));
    CHECK((has(tier, blocks[0]) && !has(tier, blocks[1]) && has(tier, blocks[2])));
    CHECK((tier.size() == 3 && folder.files().size() == 3));
    CHECK(tier.stats().num_bytes == 3 * one);
  }
  set_age(path_of(folder, blocks[0]), std::chrono::seconds(100));
  set_age(path_of(folder, blocks[2]), std::chrono::seconds(300));
  set_age(path_of(folder, blocks[3]), std::chrono::seconds(200));
  {
    DiskStore tier(folder.path, 3 * one, kIdentity);
    tier.touch(blocks[2].key.name);
  }
  CHECK(fs::file_time_type::clock::now() - fs::last_write_time(path_of(folder, blocks[2])) <
        std::chrono::seconds(60));
  DiskStore tier(folder.path, 2 * one, kIdentity);  // less than there is
  CHECK((tier.size() == 2 && folder.files().size() == 2));
  CHECK((has(tier, blocks[0]) && has(tier, blocks[2]) && !has(tier, blocks[3])));
  CHECK(tier.stats().num_failures == 0);
}

TEST_CASE("a block that is more than the limit is not written", "[disk]") {
  const Folder folder;
  DiskStore tier(folder.path, 150, kIdentity);
  Block block(tier.root(), 1);
  CHECK(!enter(tier, block));
  CHECK((tier.stats().num_failures == 1 && folder.files().empty()));
}

TEST_CASE("files that are not ours are not touched, old parts of ours are removed", "[disk]") {
  const Folder folder;
  fs::create_directories(folder.path);
  const std::string name = DiskName{.high = 5, .low = 9}.hex();
  std::vector<std::string> foreign = {"notes.txt",
                                      "prefix_cache.kv",
                                      name,
                                      name + ".kvblock.bak",
                                      name + ".kvblock.1.part",
                                      name + ".kvblock.x.1.part",
                                      "A" + name.substr(1) + ".kvblock",
                                      "g" + name.substr(1) + ".kvblock",
                                      name.substr(1) + ".kvblock",
                                      "x.kvblock.12.3.part"};
  for (const std::string& file : foreign) {
    put(folder.path / file, "of others");
    set_age(folder.path / file, std::chrono::hours(100));
  }
  fs::create_directory(folder.path / (DiskName{.high = 6, .low = 9}.hex() + ".kvblock"));
  foreign.push_back(DiskName{.high = 6, .low = 9}.hex() + ".kvblock");
  fs::create_symlink("notes.txt", folder.path / (DiskName{.high = 7}.hex() + ".kvblock"));
  foreign.push_back(DiskName{.high = 7}.hex() + ".kvblock");
  std::sort(foreign.begin(), foreign.end());

  const std::string old_part = name + ".kvblock.123.0.part",
                    new_part = name + ".kvblock.123.1.part";
  put(folder.path / old_part, "half");
  put(folder.path / new_part, "half");
  set_age(folder.path / old_part, std::chrono::hours(2));
  DiskStore tier(folder.path, 500, kIdentity);
  CHECK(tier.size() == 0);
  for (int i = 0; i < 9; ++i) {
    Block block(tier.root(), i);
    REQUIRE(enter(tier, block));
    tier.forget(block.key.name);
  }
  CHECK(!fs::exists(folder.path / old_part));
  REQUIRE(fs::exists(folder.path / new_part));
  fs::remove(folder.path / new_part);
  CHECK(folder.files() == foreign);
  CHECK(content_of(folder.path / "notes.txt") == "of others");
}

TEST_CASE("the disk tier's files have mode 0600, and its folder 0700", "[disk]") {
  const Folder folder;
  const mode_t before = ::umask(0);
  {
    DiskStore tier(folder.path / "below", 1 << 20, kIdentity);
    Block block(tier.root(), 1);
    REQUIRE(enter(tier, block));
    const fs::path file = folder.path / "below" / (block.key.name.hex() + ".kvblock");
    CHECK(fs::status(file).permissions() == fs::perms(0600));
    CHECK(fs::status(folder.path / "below").permissions() == fs::perms(0700));
    CHECK(fs::status(folder.path).permissions() == fs::perms(0700));
  }
  ::umask(before);
}

TEST_CASE("a file that vanishes is a miss and no failure", "[disk]") {
  const Folder folder;
  DiskStore tier(folder.path, 1 << 20, kIdentity), other(folder.path, 1 << 20, kIdentity);
  Block block(tier.root(), 1);
  REQUIRE(enter(tier, block));
  CHECK(has(other, block));      // written by another meanwhile
  other.forget(block.key.name);  // and removed
  CHECK(tier.contains(block.key.name));
  CHECK(!has(tier, block));
  CHECK((!tier.contains(block.key.name) && tier.stats().num_bytes == 0));
  CHECK((tier.stats().num_failures == 0 && other.stats().num_failures == 0));
  tier.touch(block.key.name);
  fs::remove_all(folder.path);  // the whole directory
  CHECK(!enter(tier, block));
  CHECK(!has(tier, block));
  CHECK(tier.stats().num_failures == 1);
}

TEST_CASE("a disk that is full costs the file", "[disk]") {
  const Folder folder;
  DiskStore tier(folder.path, 1 << 20, kIdentity);
  Block kept(tier.root(), 1), block(tier.root(), 2);
  REQUIRE(enter(tier, kept));
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t most : {rlim_t{0}, rlim_t{20}, rlim_t{100}, rlim_t{200}}) {
    const struct rlimit limit = {.rlim_cur = most, .rlim_max = before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const bool entered = enter(tier, block);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CAPTURE(most);
    CHECK(!entered);
    CHECK(!tier.contains(block.key.name));
    CHECK(folder.files().size() == 1);  // no part of it is left
  }
  std::signal(SIGXFSZ, handler);
  CHECK(tier.stats().num_failures == 4);
  CHECK((has(tier, kept) && enter(tier, block) && has(tier, block)));
}

TEST_CASE("a directory that cannot be made or written is named", "[disk]") {
  using Catch::Matchers::Contains;
  const Folder folder;
  fs::create_directories(folder.path);
  const fs::path file = folder.path / "file";
  put(file, "x");
  CHECK_THROWS_AS(DiskStore(file, 1000, kIdentity), ConfigError);
  CHECK_THROWS_WITH(DiskStore(file, 1000, kIdentity), Contains(file.string()));
  CHECK_THROWS_AS(DiskStore(file / "below", 1000, kIdentity), ConfigError);
  CHECK_THROWS_WITH(DiskStore(file / "below", 1000, kIdentity),
                    Contains("cannot make the directory") && Contains((file / "below").string()));
  CHECK_THROWS_AS(DiskStore("/proc", 1000, kIdentity), ConfigError);  // for root, too
  CHECK_THROWS_WITH(DiskStore("/proc", 1000, kIdentity),
                    Contains("cannot write") && Contains("'/proc'"));
}
