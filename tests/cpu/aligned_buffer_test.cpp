#include "nanovllm/cpu/aligned_buffer.hpp"

#include <cstdint>
#include <type_traits>
#include <utility>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"

using namespace nanovllm;
using cpu::AlignedBuffer;

namespace {

bool is_multiple(const void* pointer, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

}  // namespace

TEST_CASE("a buffer is aligned and zero, whether small or mapped", "[aligned_buffer]") {
  constexpr std::int64_t kHuge = AlignedBuffer<float>::kHugePage / sizeof(float);
  for (std::int64_t size :
       {std::int64_t{1}, std::int64_t{1000}, kHuge - 1, kHuge, kHuge + 1, 3 * kHuge + 17}) {
    AlignedBuffer<float> buffer(size);
    REQUIRE(buffer.size() == size);
    REQUIRE(buffer.size_bytes() == 4 * size);
    REQUIRE(is_multiple(buffer.data(), 64));
    if (size >= kHuge) REQUIRE(is_multiple(buffer.data(), AlignedBuffer<float>::kHugePage));
    std::int64_t num_zeros = 0;
    for (std::int64_t i = 0; i < size; ++i) num_zeros += buffer.data()[i] == 0.0f;
    REQUIRE(num_zeros == size);
    buffer.data()[0] = 1.0f;
    buffer.data()[size - 1] = 1.0f;
  }
}

TEST_CASE("an empty buffer holds nothing, and a moved one its owner's memory", "[aligned_buffer]") {
  AlignedBuffer<bf16> none(0);
  REQUIRE(none.data() == nullptr);
  REQUIRE(none.size() == 0);

  AlignedBuffer<bf16> first(100);
  bf16* const memory = first.data();
  AlignedBuffer<bf16> second(std::move(first));
  REQUIRE(second.data() == memory);
  none = std::move(second);
  REQUIRE(none.data() == memory);
  REQUIRE(none.size() == 100);
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<AlignedBuffer<bf16>>);
}

TEST_CASE("a view has the shape asked for, and must fit", "[aligned_buffer]") {
  AlignedBuffer<float> buffer(12);
  const MatrixView<float> view = buffer.view(std::array<std::int64_t, 2>{3, 4});
  REQUIRE(view.at(2, 3) == buffer.data() + 11);
  REQUIRE_THROWS_AS(buffer.view(std::array<std::int64_t, 2>{3, 5}), ShapeError);
  REQUIRE_THROWS_AS(AlignedBuffer<float>(-1), ConfigError);
}
