// A user's own xxHash function, declared before and called after the library is included: its
// parameter must still be the type that the rest of the user's program knows.
#include <xxhash.h>

namespace user {
inline XXH64_hash_t digest(const XXH64_state_t* state) { return XXH64_digest(state); }
}  // namespace user

#include "nanovllm/kv/prefix/prefix_hash.hpp"
//
#include <xxhash.h>

#include <array>
#include <vector>

#include "catch.hpp"

using nanovllm::TokenId;
using nanovllm::XxPrefixHash;

TEST_CASE("the prefix hash is XXH64 of the tokens, seeded with the parent", "[prefix_hash]") {
  REQUIRE(XxPrefixHash::hash(0, {}) == 0xEF46DB3751D8E999u);  // the specification's empty input
  const std::array<TokenId, 4> tokens{1, 2, 3, 151643};
  REQUIRE(XxPrefixHash::hash(7, tokens) == XXH64(tokens.data(), 16, 7));
}

TEST_CASE("the prefix hash depends on parent, tokens and their order", "[prefix_hash]") {
  const std::array<TokenId, 2> ab{1, 2};
  const std::array<TokenId, 2> ba{2, 1};
  REQUIRE(XxPrefixHash::hash(0, ab) != XxPrefixHash::hash(0, ba));
  REQUIRE(XxPrefixHash::hash(0, ab) != XxPrefixHash::hash(1, ab));
}

TEST_CASE("a user's code with xxHash in the same file works as before", "[prefix_hash]") {
  XXH64_state_t* state = XXH64_createState();
  const std::array<TokenId, 2> tokens{5, 6};
  XXH64_reset(state, 3);
  XXH64_update(state, tokens.data(), 8);
  REQUIRE(user::digest(state) == XxPrefixHash::hash(3, tokens));
  XXH64_freeState(state);
}
