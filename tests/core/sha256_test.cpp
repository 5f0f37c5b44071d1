#include "nanovllm/core/sha256.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

std::string hex(std::string_view text) {
  std::string out;
  for (const std::byte byte : sha256(text)) {
    out += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    out += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return out;
}

}  // namespace

TEST_CASE("SHA-256 gives the digests of FIPS 180-4's examples", "[sha256]") {
  CHECK(hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// By Python's hashlib. The lengths are those at which the padding begins a block.
TEST_CASE("SHA-256 of texts of every kind of length", "[sha256]") {
  const std::vector<std::pair<std::size_t, std::string>> digests = {
      {1, "084fed08b978af4d7d196a7446a86b58009e636b611db16211b65a9aadff29c5"},
      {55, "e7313d333c272e639f790978283f9eb392e843d0f29b7016828bb1daa4aac70b"},
      {56, "4324d65f3c103567f5589c710bc08f8523f929a9272e3af36fc968e52abc6c27"},
      {63, "81c80242132f230c3bd41b3e63bbcff16107339549214a99614ff26664625055"},
      {64, "39e3d7b6b5d075d37d053ad89b24b41bef4f3c29760c84447cab3f3be1882241"},
      {65, "aacca6ff74fdbb296d165a45cecfa04e5127bc008770fbbdd48006f2d2fae95e"},
      {119, "9ce7368e4daf32341631b492e80359dc9f594b48453cd0dd5bf0b19279cc177e"},
      {120, "7836b787757e95e58b3ca5aec90b1b004e8deba1e50e9675af9cabf1a13a04b5"},
      {127, "a8d23e75d936f303d248888d9b165ee543f4cbafcad3c9dd2a79bd84faa11d07"},
      {128, "d2742f1f4ac6bb7ca2b239ee18402ba8b3f9f8e652d2a72973c2b9ba11c08cf6"},
      {1000, "1e9bc38cbf860b9ec31918b065f9b52476c549a782e0e7990bed8ce3868d2371"},
  };
  for (const auto& [length, digest] : digests) {
    CAPTURE(length);
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>(i * 7 + 3);
    CHECK(hex(text) == digest);
  }
}
