#include "nanovllm/api/grammar/bytes/mask_cache.hpp"

#include <atomic>
#include <thread>
#include <vector>

#include "catch.hpp"

namespace nv = nanovllm;

namespace {

constexpr std::size_t kVocabSize = 320;

/// A mask of token `state` and `count - 1` others.
nv::CompactMask mask(std::size_t state, std::size_t count = 1) {
  std::vector<nv::TokenId> tokens;
  for (std::size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<nv::TokenId>((state + i) % kVocabSize));
  return nv::CompactMask(tokens, kVocabSize);
}

std::vector<std::uint32_t> bits_of(const nv::CompactMask& mask) {
  std::vector<std::uint32_t> bits(nv::num_mask_words(kVocabSize) + 2, 0);
  mask.fill(bits);
  return bits;
}

}  // namespace

TEST_CASE("a mask is the same as a list and as bits") {
  for (std::size_t count : {0, 1, 9, 10, 11, 200, 320}) {
    const auto bits = bits_of(mask(17, count));
    for (std::size_t i = 0; i < 32 * bits.size(); ++i) {
      const bool expected = i < kVocabSize && (i + kVocabSize - 17) % kVocabSize < count;
      REQUIRE(nv::is_allowed(bits, static_cast<nv::TokenId>(i)) == expected);
    }
    CHECK(mask(17, count).size_bytes() <= sizeof(nv::CompactMask) + kVocabSize / 8);
  }
}

TEST_CASE("masks are made once while there is room, and those in use stay") {
  const std::size_t one = mask(0).size_bytes();
  nv::MaskCache cache(100, 10 * one);
  std::vector<int> made(100, 0);
  const auto get = [&](std::size_t state) {
    const auto found = cache.get(state, [&] {
      ++made[state];
      return mask(state);
    });
    REQUIRE(bits_of(*found) == bits_of(mask(state)));
  };
  for (int round = 0; round < 3; ++round)
    for (std::size_t state = 0; state < 10; ++state) get(state);
  for (std::size_t state = 0; state < 10; ++state) CHECK(made[state] == 1);
  CHECK(cache.size_bytes() == 10 * one);

  // A long way through new states, with one that is met between all of them.
  for (std::size_t state = 10; state < 100; ++state) {
    get(state);
    get(3);
    CHECK(cache.size_bytes() <= 10 * one);
  }
  CHECK(made[3] == 1);
  CHECK(made[99] == 1);
  get(50);
  CHECK(made[50] == 2);
}

TEST_CASE("a cache without room still has masks") {
  nv::MaskCache cache(3, 0);
  for (std::size_t i = 0; i < 9; ++i)
    CHECK(bits_of(*cache.get(i % 3, [&] { return mask(i % 3); })) == bits_of(mask(i % 3)));
  CHECK(cache.size_bytes() == mask(0).size_bytes());
}

TEST_CASE("a mask cache serves several threads") {
  nv::MaskCache cache(50, 20 * mask(0).size_bytes());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 2000; ++i) {
        const std::size_t state = (i * (t + 1)) % 50;
        if (bits_of(*cache.get(state, [&] { return mask(state); })) != bits_of(mask(state)))
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
