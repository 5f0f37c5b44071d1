#include "nanovllm/kv/kv_config.hpp"

#include <cstdint>
#include <limits>
#include <string>

#include "catch.hpp"

using namespace nanovllm;

namespace {

/// 2 layers · 2 · 4 heads · 16 tokens · 8 · 2 bytes = 4096 bytes a block.
constexpr KvShape kShape{
    .num_layers = 2, .num_kv_heads = 4, .head_dim = 8, .block_size = 16, .element_bytes = 2};
constexpr std::int64_t kMiB = 1 << 20;

std::string failure(const KvSize& size, std::int64_t available, std::int64_t min_tokens = 1) {
  try {
    (void)num_kv_blocks(size, kShape, available, min_tokens);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the pool's size in blocks, in bytes and as a share of memory", "[kv_config]") {
  STATIC_REQUIRE(kShape.block_bytes() == 4096);
  REQUIRE(num_kv_blocks(KvSize::blocks(7), kShape, 0) == 7);
  REQUIRE(num_kv_blocks(KvSize::bytes(4096 * 3 + 4095), kShape, 0) == 3);
  REQUIRE(num_kv_blocks(KvSize::memory_share(0.5), kShape, 16 * kMiB) == 2048);
  REQUIRE(num_kv_blocks(KvSize::memory_share(1.0), kShape, 4096) == 1);
}

TEST_CASE("a pool too small for what it must hold is refused with both figures", "[kv_config]") {
  REQUIRE(num_kv_blocks(KvSize::blocks(4), kShape, 0, 64) == 4);
  REQUIRE(contains(failure(KvSize::blocks(4), 0, 65), "4 blocks were asked for, but at least 5"));
  REQUIRE(contains(failure(KvSize::blocks(0), 0), "0 blocks were asked for, but at least 1"));
  REQUIRE(contains(failure(KvSize::blocks(-3), 0), "-3 blocks"));
  REQUIRE(contains(failure(KvSize::bytes(4095), 0), "4095 bytes hold 0 blocks, but at least 1"));
  REQUIRE(contains(failure(KvSize::bytes(-1), 0), "-1 bytes hold 0 blocks"));
  REQUIRE(contains(failure(KvSize::bytes(4096), 0, 17), "at least 2 of 16 tokens are needed"));
}

TEST_CASE(
    "nano-vllm bug 14: no memory, or less than none, is a readable error and not a negative pool",
    "[kv_config]") {
  for (const std::int64_t available : {std::int64_t{0}, std::int64_t{-5} * 1024 * kMiB}) {
    const std::string text = failure(KvSize::memory_share(0.9), available);
    REQUIRE(contains(text, "0 bytes (a share of 0.9"));
    REQUIRE(contains(text, "at least 1 of 16 tokens are needed, 1 x 4096 bytes"));
  }
  REQUIRE(contains(failure(KvSize::memory_share(0.5), 8191), "hold 0 blocks"));
}

TEST_CASE("settings out of range are refused", "[kv_config]") {
  for (const double share : {0.0, -0.1, 1.01, std::numeric_limits<double>::quiet_NaN()})
    REQUIRE(contains(failure(KvSize::memory_share(share), kMiB), "must be in (0, 1]"));
  KvShape shape = kShape;
  shape.head_dim = 0;
  REQUIRE_THROWS_AS(num_kv_blocks(KvSize::blocks(1), shape, 0), ConfigError);
}

TEST_CASE("more blocks than 32-bit positions can address are cut off or refused", "[kv_config]") {
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  const std::int32_t most = num_kv_blocks(KvSize::bytes(kHuge), kShape, 0);
  REQUIRE(std::int64_t{most} * 16 + 1 <= std::numeric_limits<std::int32_t>::max());
  REQUIRE(contains(failure(KvSize::blocks(kHuge), 0), "can be addressed"));
}
