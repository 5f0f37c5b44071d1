#include "nanovllm/with/tiers/host_kv_pool.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

template <class T>
struct ArrayBuffer {
  explicit ArrayBuffer(std::size_t n) : memory(new T[n]) {}
  [[nodiscard]] T* data() const { return memory.get(); }
  std::unique_ptr<T[]> memory;
};

constexpr KvShape kShape{
    .num_layers = 3, .num_kv_heads = 2, .head_dim = 4, .block_size = 5, .element_bytes = 4};

}  // namespace

TEST_CASE("blocks in host memory have the same layout in memory of their own", "[kv_pool]") {
  HostKvPool<float, std::vector<float>, ArrayBuffer<float>> pool(kShape, 7, 2);
  REQUIRE((pool.num_host_blocks() == 2 && pool.num_blocks() == 7));
  const KvView<float> first = pool.host_layer(0), second = pool.host_layer(1);
  REQUIRE((first.num_blocks == 2 && first.block_stride() == pool.layer(0).block_stride()));
  REQUIRE(second.data - first.data == 2 * first.block_stride());
  REQUIRE(pool.layer(1).data - pool.layer(0).data == 7 * first.block_stride());
  REQUIRE_THROWS_AS(pool.host_layer(3), Error);
  using Pool = HostKvPool<float, std::vector<float>>;
  REQUIRE(Pool(kShape, 1).num_host_blocks() == 0);
  REQUIRE_THROWS_AS(Pool(kShape, 1, -1), ConfigError);
}

TEST_CASE("the bytes of a block in host memory are a piece a layer", "[kv_pool]") {
  HostKvPool<float, std::vector<float>> pool(kShape, 4, 2);
  std::vector<std::span<std::byte>> pieces;
  REQUIRE(pool.append_outside(1, pieces));
  REQUIRE(pieces.size() == 3);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const auto* block =
        reinterpret_cast<std::byte*>(pool.host_layer(static_cast<std::int64_t>(layer)).k(1, 0));
    REQUIRE((pieces[layer].data() == block && pieces[layer].size() == 2 * 2 * 5 * 4 * 4));
  }
  REQUIRE_FALSE(pool.append_outside(2, pieces));
  REQUIRE_FALSE(pool.append_outside(-1, pieces));
  REQUIRE(pieces.size() == 3);
}
