#include "nanovllm/engine/setup.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"

using namespace nanovllm;

namespace {

/// Has memory.
class FakeRunner : public StepRunner, public PoolContents {
 public:
  [[nodiscard]] KvShape kv_shape() const override {
    return {.num_layers = 2,
            .num_kv_heads = 1,
            .head_dim = 4,
            .block_size = 16,
            .element_bytes = 4};  // 1,024 bytes a block
  }
  [[nodiscard]] std::size_t available_memory() override { return 100 * 1024; }
  void allocate_kv(std::int32_t, std::int32_t) override {}
  void launch(const StepInputs&) override {}
  StepResults wait() override { return {}; }
  [[nodiscard]] int num_under_way() const override { return 0; }
  [[nodiscard]] bool is_asynchronous() const override { return false; }
  [[nodiscard]] PoolContents& pool() override { return *this; }
  void read_blocks(std::span<const BlockId>, std::span<std::byte>) override {}
  void write_blocks(std::span<const BlockId>, std::span<const std::byte>) override {}
  [[nodiscard]] std::vector<std::span<std::byte>> outside_block(BlockId) override { return {}; }
  void run_worker() override {}
  [[nodiscard]] Health health() const override { return {}; }
  void reset() override {}
  [[nodiscard]] int num_ranks() const override { return 1; }
  [[nodiscard]] std::string describe_backend() const override { return "fake"; }
  [[nodiscard]] std::string executor_name() const override { return "none"; }
};

/// The blocks that an engine with these settings asks for.
std::int32_t allocated(std::optional<KvSize> size) {
  FakeRunner runner;
  EngineConfig config;
  config.kv_size = size;
  config.max_num_seqs = 4;
  const PoolPlan pool = plan_pool(runner, 0.5, config, 160);
  CHECK((pool.available_bytes == 100 * 1024 && !pool.is_on_device));
  CHECK(pool.shape.block_bytes() == 1024);
  return pool.num_blocks;
}

}  // namespace

TEST_CASE("more threads than any machine has are a config error before one starts", "[setup]") {
  RunnerConfig config{.limits = {.max_num_batched_tokens = 8, .max_num_seqs = 1}};
  CHECK_NOTHROW(validate(config));
  for (const int num_threads : {1, kMaxThreads}) {
    config.num_threads = num_threads;
    CHECK_NOTHROW(validate(config));
  }
  for (const int num_threads : {-1, 0, kMaxThreads + 1, 100'000}) {
    config.num_threads = num_threads;
    CHECK_THROWS_WITH(validate(config), Catch::Matchers::Contains("num_threads") &&
                                            Catch::Matchers::Contains(std::to_string(num_threads)));
    CHECK_THROWS_AS(validate(config), ConfigError);
  }
}

TEST_CASE("the KV pools are as large as the settings say", "[setup]") {
  CHECK(allocated(KvSize::blocks(7)) == 7);
  CHECK(allocated(std::nullopt) == 40);  // 4 sequences of 160 tokens
  CHECK(allocated(KvSize::memory_share(0.25)) == 25);
}

TEST_CASE("pools that the memory has no room for are refused with their bytes", "[setup]") {
  CHECK(allocated(KvSize::blocks(100)) == 100);
  CHECK_THROWS_WITH(allocated(KvSize::blocks(101)),
                    "kv_size: 101 blocks of 1024 bytes were asked for, 103424 bytes, but 102400 "
                    "are available");
  CHECK_THROWS_AS(allocated(KvSize::bytes(std::int64_t{1} << 62)), ConfigError);
}

TEST_CASE("memory that runs out while an engine is made is a config error", "[setup]") {
  const EngineConfig config{.max_num_seqs = 7, .kv_size = KvSize::bytes(99)};
  const auto make = [&](auto throws) { needing_memory("the queues", config, throws); };
  CHECK_THROWS_WITH(make([] { throw OutOfMemory(12'345); }),
                    Catch::Matchers::Contains("no memory for the queues (12345 bytes were asked") &&
                        Catch::Matchers::Contains("max_num_seqs = 7") &&
                        Catch::Matchers::Contains("kv_size = 99 bytes"));
  CHECK_THROWS_AS(make([] { throw std::bad_alloc(); }), ConfigError);
  CHECK_THROWS_AS(make([] { std::vector<int>().reserve(static_cast<std::size_t>(-1)); }),
                  ConfigError);
  CHECK_THROWS_AS(make([] { throw LoadError("another"); }), LoadError);
}
