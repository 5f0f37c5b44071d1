#include "nanovllm/text/bpe.hpp"

#include <map>
#include <random>
#include <string>

#include "catch.hpp"

namespace nv = nanovllm;
using Ids = std::vector<nv::TokenId>;

namespace {

/// A byte-pair encoding over the letters a, b, c, … with random merges, in two forms: ours, and the
/// definition.
struct RandomBpe {
  std::map<std::pair<nv::TokenId, nv::TokenId>, nv::Merge> merges;
  std::array<nv::TokenId, 256> byte_tokens;

  RandomBpe(std::mt19937& random, int num_letters, std::uint32_t num_merges) {
    for (int b = 0; b < 256; ++b) byte_tokens[b] = 1000 + (b * 37) % 256;  // ids need not be bytes
    Ids known;
    for (int i = 0; i < num_letters; ++i) known.push_back(byte_tokens['a' + i]);
    for (std::uint32_t rank = 0; rank < num_merges; ++rank) {
      const nv::TokenId left = known[random() % known.size()],
                        right = known[random() % known.size()];
      const nv::TokenId merged = 5000 + static_cast<nv::TokenId>(random() % 3 == 0 ? 0 : rank);
      merges[{left, right}] =
          nv::Merge(rank, merged);  // a later merge of the same pair replaces it
      known.push_back(merged);
    }
  }

  [[nodiscard]] nv::Bpe bpe() const {
    nv::MergeTable table(merges.size());
    for (const auto& [pair, merge] : merges) table.insert(pair.first, pair.second, merge);
    return {byte_tokens, std::move(table)};
  }

  [[nodiscard]] Ids by_definition(std::string_view piece) const {
    Ids ids;
    for (char c : piece) ids.push_back(byte_tokens[static_cast<unsigned char>(c)]);
    while (true) {
      std::size_t best = 0;
      nv::Merge merge;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = merges.find({ids[i], ids[i + 1]});
        if (found == merges.end() || found->second >= merge) continue;
        best = i;
        merge = found->second;
      }
      if (!merge) return ids;
      ids[best] = merge.token();
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }
};

}  // namespace

TEST_CASE("Pieces of every length encode by the definition of byte-pair encoding", "[bpe]") {
  std::mt19937 random(1);
  nv::BpeScratch scratch;
  for (int round = 0; round < 150; ++round) {
    const int num_letters = 1 + static_cast<int>(random() % 6);
    const RandomBpe reference(random, num_letters, 1 + random() % 60);
    const nv::Bpe bpe = reference.bpe();
    for (std::size_t size : {0, 1, 2, 3, 5, 8, 13, 31, 32, 33, 34, 50, 64, 100, 300}) {
      std::string piece(size, 'a');
      for (char& c : piece) c = static_cast<char>('a' + random() % num_letters);
      Ids ids = {-7};  // what is there stays
      bpe.encode(piece, scratch, ids);
      Ids expected = reference.by_definition(piece);
      expected.insert(expected.begin(), -7);
      REQUIRE(ids == expected);
    }
  }
}

TEST_CASE("The merge table finds what was inserted and nothing else", "[bpe]") {
  std::mt19937 random(2);
  for (std::size_t size : {0u, 1u, 2u, 3u, 100u, 5000u}) {
    nv::MergeTable table(size);
    std::map<std::pair<nv::TokenId, nv::TokenId>, nv::Merge> expected;
    const auto id = [&] { return static_cast<nv::TokenId>(random() % 300); };
    while (expected.size() < size) {
      const nv::TokenId left = id(), right = id();
      const nv::Merge merge(static_cast<std::uint32_t>(random()), id());
      table.insert(left, right, merge);
      expected[{left, right}] = merge;
    }
    for (nv::TokenId left = 0; left < 300; ++left) {
      for (nv::TokenId right = 0; right < 300; ++right) {
        const auto found = expected.find({left, right});
        REQUIRE(table.find(left, right) == (found == expected.end() ? nv::Merge() : found->second));
      }
    }
  }
  CHECK(nv::Merge(1, 900) < nv::Merge(2, 5));
  CHECK(nv::Merge(0xFFFFFFFF, 5) < nv::Merge());
  CHECK(nv::Merge(3, 7).rank() == 3);
  CHECK(nv::Merge(3, 7).token() == 7);
}

TEST_CASE("The word cache gives back what was stored for exactly that word", "[bpe]") {
  std::mt19937 random(3);
  nv::WordCache cache;
  std::map<std::string, Ids> expected;
  std::size_t hits = 0;
  for (int i = 0; i < 400000; ++i) {
    // Few letters and zero bytes: words that differ in length or in one place only.
    std::string word(1 + random() % nv::WordCache::kMaxBytes, '\0');
    const std::size_t letters = random() % 4;
    for (std::size_t k = 0; k < letters; ++k)
      word[random() % word.size()] = static_cast<char>(random());
    auto entry = cache.find(word);
    if (entry.matches()) {
      ++hits;
      Ids ids;
      entry.append_to(ids);
      REQUIRE(ids == expected.at(word));
      continue;
    }
    Ids ids(1 + random() % 10);
    for (nv::TokenId& id : ids) id = static_cast<nv::TokenId>(random() % 1000);
    entry.store(ids);
    REQUIRE(cache.find(word).matches() == (ids.size() <= nv::WordCache::kMaxTokens));
    if (ids.size() <= nv::WordCache::kMaxTokens) expected[word] = ids;
  }
  CHECK(hits > 10000);
}
