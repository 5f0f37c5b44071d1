#include "nanovllm/kv/kv_pool.hpp"

#include <cstddef>
#include <memory>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

/// Memory that tells its size when asked, to see that the pool asks for the right amount.
template <class T>
struct CountingBuffer {
  explicit CountingBuffer(std::size_t n) : size(n), memory(new T[n]) {}
  [[nodiscard]] T* data() const { return memory.get(); }
  std::size_t size;
  std::unique_ptr<T[]> memory;
};

constexpr KvShape kShape{
    .num_layers = 3, .num_kv_heads = 2, .head_dim = 4, .block_size = 5, .element_bytes = 4};

}  // namespace

TEST_CASE("every element of the pool belongs to exactly one layer, block, head and slot",
          "[kv_pool]") {
  constexpr int kNumBlocks = 7;
  KvPool<float, std::vector<float>> pool(kShape, kNumBlocks);
  REQUIRE(pool.num_layers() == 3);
  REQUIRE(pool.num_blocks() == kNumBlocks);
  REQUIRE(pool.size_bytes() == 3 * kNumBlocks * 2 * 2 * 5 * 4 * 4);
  float* const base = pool.layer(0).data;
  std::vector<int> visits(static_cast<std::size_t>(pool.size_bytes() / 4), 0);
  for (int l = 0; l < 3; ++l) {
    const KvView<float> view = pool.layer(l);
    REQUIRE(view.num_blocks == kNumBlocks);
    for (BlockId b = 0; b < kNumBlocks; ++b) {
      for (int h = 0; h < 2; ++h) {
        for (float* tile : {view.k(b, h), view.v(b, h)}) {
          for (int i = 0; i < view.tile_size(); ++i)
            ++visits.at(static_cast<std::size_t>(tile + i - base));
        }
      }
    }
  }
  REQUIRE(visits == std::vector<int>(visits.size(), 1));
}

TEST_CASE("the pool takes any element type and buffer that fit", "[kv_pool]") {
  KvShape shape = kShape;
  shape.element_bytes = 2;
  KvPool<bf16, CountingBuffer<bf16>> pool(shape, 2);
  REQUIRE(pool.layer(2).k(1, 1) - pool.layer(0).data == 2 * 2 * 80 + 80 + 20);
}

TEST_CASE("a pool of the wrong element size or of nothing is refused", "[kv_pool]") {
  using Pool = KvPool<float, std::vector<float>>;
  KvShape shape = kShape;
  REQUIRE_THROWS_AS(Pool(shape, 0), ConfigError);
  shape.element_bytes = 2;
  REQUIRE_THROWS_AS(Pool(shape, 1), ConfigError);
  REQUIRE_THROWS_AS(Pool(kShape, 1, -1), ConfigError);
  REQUIRE_THROWS_AS(Pool(kShape, 1, 1), ConfigError);  // none has blocks outside
  Pool pool(kShape, 1);
  REQUIRE_THROWS_AS(pool.layer(3), Error);
  REQUIRE_THROWS_AS(pool.layer(-1), Error);
}
