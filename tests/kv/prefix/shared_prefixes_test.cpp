// What block tables have in common.

#include "nanovllm/kv/prefix/shared_prefixes.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/philox.hpp"

using namespace nanovllm;

namespace {

struct Tables {
  std::vector<std::vector<BlockId>> tables;
  std::vector<std::int32_t> num_full;
  BlockId next = 0;

  /// A table that begins with the first `num_common` blocks of table `like`, and has `num_own`
  /// more, of which the last is not full.
  std::size_t add(std::size_t like, std::size_t num_common, std::size_t num_own) {
    std::vector<BlockId> table;
    if (num_common > 0)
      table.assign(tables[like].begin(),
                   tables[like].begin() + static_cast<std::ptrdiff_t>(num_common));
    for (std::size_t i = 0; i < num_own; ++i) table.push_back(next++);
    num_full.push_back(static_cast<std::int32_t>(table.size()) - 1);
    tables.push_back(std::move(table));
    return tables.size() - 1;
  }

  [[nodiscard]] std::vector<SharedPrefixFinder::Row> rows() const {
    std::vector<SharedPrefixFinder::Row> out;
    for (std::size_t i = 0; i < tables.size(); ++i) out.push_back({tables[i], num_full[i]});
    return out;
  }
};

/// Blocks that row `i` reads with others, by the groups it is in: each once.
std::set<std::pair<std::int32_t, std::int32_t>> chain_of(const SharedPrefixFinder& finder,
                                                         std::size_t i) {
  std::set<std::pair<std::int32_t, std::int32_t>> out;
  if (finder.members().empty()) return out;
  for (std::int32_t g = finder.members()[i].group; g >= 0;) {
    const SharedPrefix& group = finder.groups()[static_cast<std::size_t>(g)];
    REQUIRE(out.emplace(group.begin, group.end).second);
    REQUIRE(group.parent < g);
    g = group.parent;
  }
  return out;
}

/// What must hold of any answer.
void check_answer(const SharedPrefixFinder& finder, const Tables& tables, std::int64_t block_size) {
  const auto groups = finder.groups();
  const auto members = finder.members();
  REQUIRE(groups.empty() == members.empty());
  if (groups.empty()) return;
  REQUIRE(members.size() == tables.tables.size());
  REQUIRE(groups.size() <= tables.tables.size());
  for (std::size_t i = 0; i < members.size(); ++i)
    REQUIRE(members[static_cast<std::size_t>(members[i].place)].decode ==
            static_cast<std::int32_t>(i));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const SharedPrefix& group = groups[g];
    REQUIRE(group.count >= 2);
    REQUIRE(group.begin % block_size == 0);
    REQUIRE(group.end % block_size == 0);
    REQUIRE(group.begin < group.end);
    if (group.parent >= 0) {
      const SharedPrefix& parent = groups[static_cast<std::size_t>(group.parent)];
      REQUIRE(parent.end == group.begin);
      REQUIRE(parent.first <= group.first);
      REQUIRE(group.first + group.count <= parent.first + parent.count);
    } else {
      REQUIRE(group.begin == 0);
    }
    const auto first =
        static_cast<std::size_t>(members[static_cast<std::size_t>(group.first)].decode);
    for (std::int32_t place = group.first; place < group.first + group.count; ++place) {
      const auto i = static_cast<std::size_t>(members[static_cast<std::size_t>(place)].decode);
      const auto end = static_cast<std::ptrdiff_t>(group.end / block_size);
      REQUIRE(end <= tables.num_full[i]);
      REQUIRE(std::equal(tables.tables[i].begin(), tables.tables[i].begin() + end,
                         tables.tables[first].begin()));
      REQUIRE(chain_of(finder, i).count({group.begin, group.end}) == 1);
    }
  }
}

}  // namespace

TEST_CASE("Shared prefixes: none where nothing is shared", "[shared_prefixes]") {
  Tables t;
  SharedPrefixFinder finder;
  finder.find({}, 16);
  CHECK(finder.groups().empty());
  for (int i = 0; i < 50; ++i) t.add(0, 0, 40);
  finder.find(t.rows(), 16);
  CHECK(finder.groups().empty());
  CHECK(finder.members().empty());
}

TEST_CASE("Shared prefixes: groups in any order of the rows", "[shared_prefixes]") {
  Tables t;
  const auto a = t.add(0, 0, 40), b = t.add(0, 0, 40);
  for (int i = 0; i < 3; ++i) {
    t.add(a, 32, 2);
    t.add(b, 20, 5);
    t.add(0, 0, 7);
  }
  SharedPrefixFinder finder;
  finder.find(t.rows(), 16);
  check_answer(finder, t, 16);
  REQUIRE(finder.groups().size() == 2);
  CHECK(chain_of(finder, a) == std::set<std::pair<std::int32_t, std::int32_t>>{{0, 512}});
  CHECK(chain_of(finder, b) == std::set<std::pair<std::int32_t, std::int32_t>>{{0, 320}});
  CHECK(chain_of(finder, 4).empty());
  CHECK(finder.groups()[0].count == 4);
  CHECK(finder.groups()[1].count == 4);
}

TEST_CASE("Shared prefixes: the block that is being filled does not count", "[shared_prefixes]") {
  Tables t;
  const auto a = t.add(0, 0, 33);
  t.add(a, 33, 0);  // the same table: of 33 blocks, 32 are full
  SharedPrefixFinder finder;
  finder.find(t.rows(), 16);
  check_answer(finder, t, 16);
  REQUIRE(finder.groups().size() == 1);
  CHECK(finder.groups()[0].end == 32 * 16);
}

TEST_CASE("Shared prefixes: levels", "[shared_prefixes]") {
  Tables t;
  const auto root = t.add(0, 0, 100);
  const auto left = t.add(root, 10, 50), right = t.add(root, 10, 50);
  for (int i = 0; i < 4; ++i) {
    t.add(left, 30, 3);
    t.add(right, 25, 3);
  }
  const auto shallow = t.add(root, 10, 1);
  SharedPrefixFinder finder;
  finder.find(t.rows(), 32);
  check_answer(finder, t, 32);
  using Chain = std::set<std::pair<std::int32_t, std::int32_t>>;
  CHECK(chain_of(finder, left) == Chain{{0, 320}, {320, 960}});
  CHECK(chain_of(finder, right) == Chain{{0, 320}, {320, 800}});
  CHECK(chain_of(finder, shallow) == Chain{{0, 320}});
  CHECK(chain_of(finder, root) == Chain{{0, 320}});
}

TEST_CASE("Shared prefixes: what saves too little is left alone", "[shared_prefixes]") {
  SharedPrefixFinder finder;
  const auto num_groups = [&](std::size_t num_members, std::size_t num_blocks) {
    Tables t;
    t.add(0, 0, num_blocks + 3);
    for (std::size_t i = 1; i < num_members; ++i) t.add(0, num_blocks, 3);
    finder.find(t.rows(), 16);
    check_answer(finder, t, 16);
    return finder.groups().size();
  };
  constexpr auto kBlocks = static_cast<std::size_t>(SharedPrefixFinder::kMinSavedKeys / 16);
  CHECK(num_groups(2, kBlocks) == 1);
  CHECK(num_groups(2, kBlocks - 1) == 0);
  CHECK(num_groups(1 + kBlocks, 1) == 1);
  CHECK(num_groups(kBlocks, 1) == 0);
}

TEST_CASE("Shared prefixes: families whose common root is too small have their own groups",
          "[shared_prefixes]") {
  // One block in common, and 125 more in each of two families of eight.
  Tables t;
  const auto root = t.add(0, 0, 2);
  std::size_t family[2];
  for (auto& first : family) {
    first = t.add(root, 1, 126);
    for (int i = 0; i < 7; ++i) t.add(first, 126, 2);
  }
  SharedPrefixFinder finder;
  finder.find(t.rows(), 8);
  check_answer(finder, t, 8);
  REQUIRE(finder.groups().size() == 2);
  for (const auto first : family) CHECK(chain_of(finder, first).count({0, 126 * 8}) == 1);
  CHECK(chain_of(finder, root).empty());
}

TEST_CASE("Shared prefixes: random trees, one finder for all", "[shared_prefixes]") {
  SharedPrefixFinder finder;
  std::size_t num_groups = 0;
  for (std::uint32_t round = 0; round < 300; ++round) {
    std::uint32_t draws = 0;
    const auto draw = [&](std::size_t bound) {
      return philox4x32(17, {round, draws++, 0, 0})[0] % bound;
    };
    Tables t;
    t.add(0, 0, 1 + draw(40));
    for (std::size_t count = draw(60); count > 0; --count) {
      const std::size_t like = draw(t.tables.size());
      t.add(like, draw(t.tables[like].size() + 1), 1 + draw(10));
    }
    finder.find(t.rows(), 16);
    check_answer(finder, t, 16);
    num_groups += finder.groups().size();
  }
  CHECK(num_groups > 300);
}
