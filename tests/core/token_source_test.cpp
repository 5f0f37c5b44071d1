#include "nanovllm/core/token_source.hpp"

#include <limits>

#include "catch.hpp"

using namespace nanovllm;

TEST_CASE("a token source is a known token or a sample of the step before", "[token_source]") {
  for (const std::int32_t i : {0, 1, 151935, std::numeric_limits<std::int32_t>::max()}) {
    REQUIRE(TokenSource::known(i).is_known());
    REQUIRE(TokenSource::known(i).token() == i);
    REQUIRE_FALSE(TokenSource::sampled(i).is_known());
    REQUIRE(TokenSource::sampled(i).sample() == i);
    REQUIRE_FALSE(TokenSource::known(i) == TokenSource::sampled(i));
  }
  REQUIRE(TokenSource() == TokenSource::known(0));
}
