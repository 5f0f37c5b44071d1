#include "nanovllm/with/gguf/gguf_blocks.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/with/gguf/gguf_file.hpp"

using namespace nanovllm;

TEST_CASE("blocks have the values that llama.cpp's own package makes of them", "[gguf]") {
  // tests/oracle/make_gguf_fixtures.py: random bits, with extreme scales among them.
  const GgufFile file("tests/fixtures/gguf/blocks.gguf");
  REQUIRE(file.tensors().size() == 20);
  for (const BlockFormat* format : {&kGgufQ8_0, &kGgufQ4_0, &kGgufQ4_1, &kGgufQ5_0, &kGgufQ5_1,
                                    &kGgufQ4_K, &kGgufQ5_K, &kGgufQ6_K, &kGgufIq4Nl, &kGgufIq4Xs}) {
    const std::string name(format->name);
    INFO(name);
    const GgufTensor* const blocks = file.find(name);
    const GgufTensor* const values = file.find(name + ".values");
    REQUIRE((blocks != nullptr && values != nullptr));
    CHECK(find_gguf_blocks(*blocks->type) == format);
    CHECK(blocks->type->bytes == format->bytes);
    CHECK(blocks->type->elements == format->elements);

    std::vector<float> expected(file.data(*values).size() / sizeof(float));
    std::memcpy(expected.data(), file.data(*values).data(), file.data(*values).size());
    REQUIRE(expected.size() == 6 * 256);
    // At an odd address, and with a canary after.
    std::vector<std::byte> moved(file.data(*blocks).size() + 1);
    std::memcpy(moved.data() + 1, file.data(*blocks).data(), moved.size() - 1);
    std::vector<float> out(expected.size() + 1, 7.f);
    format->dequantise(moved.data() + 1, expected.size() / format->elements, out.data());
    CHECK(out.back() == 7.f);
    CHECK(std::memcmp(out.data(), expected.data(), expected.size() * sizeof(float)) == 0);

    // One block alone.
    std::vector<float> one(format->elements);
    format->dequantise(moved.data() + 1 + format->bytes, 1, one.data());
    CHECK(std::memcmp(one.data(), expected.data() + format->elements, one.size() * sizeof(float)) ==
          0);

    // As integers: of those without offsets products are exact.
    if (format->integers == nullptr || format->integers->has_offsets) continue;
    std::vector<std::int8_t> codes(format->elements);
    for (std::size_t block = 0; block < expected.size() / format->elements; ++block) {
      const std::byte* const at = moved.data() + 1 + block * format->bytes;
      format->integers->read(at, codes.data());
      for (std::uint32_t i = 0; i < format->elements; ++i) {
        const float scale = format->integers->scale(at, i / format->integers->group).scale;
        CHECK(scale * static_cast<float>(codes[i]) == expected[block * format->elements + i]);
      }
    }
  }
}

TEST_CASE("types without a dequantiser are known by their sizes alone", "[gguf]") {
  const GgufTensorType* const type = find_gguf_type(10);
  REQUIRE(type != nullptr);
  CHECK(type->name == "Q2_K");
  CHECK(find_gguf_blocks(*type) == nullptr);
  CHECK(find_gguf_blocks(*find_gguf_type(0)) == nullptr);
  CHECK(find_gguf_type(4) == nullptr);
}
