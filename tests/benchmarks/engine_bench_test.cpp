/// The benchmark's workload is nano-vllm's, expected numbers are CPython's; and the arithmetic of
/// its KV pool.

#include <cstdint>
#include <variant>
#include <vector>

#include "../../benchmarks/engine_bench/python_random.hpp"
#include "../../benchmarks/engine_bench/sizing.hpp"
#include "../../benchmarks/engine_bench/workload.hpp"
#include "catch.hpp"
#include "nanovllm/core/math.hpp"

using engine_bench::PythonRandom;

namespace {

std::vector<std::int64_t> draws(std::uint64_t seed, std::int64_t low, std::int64_t high) {
  PythonRandom random(seed);
  std::vector<std::int64_t> out;
  for (int i = 0; i < 5; ++i) out.push_back(random.randint(low, high));
  return out;
}

}  // namespace

TEST_CASE("random draws what Python draws for small, large and two-word seeds") {
  CHECK(draws(0u, 0, 10000) == std::vector<std::int64_t>{6311, 6890, 663, 4242, 8376});
  CHECK(draws(1u, -5, 5) == std::vector<std::int64_t>{-3, 4, -4, -1, -4});
  CHECK(draws(4294967295u, 1, 2147483648) ==
        std::vector<std::int64_t>{872737090, 924893098, 1251276552, 1460408327, 1636881669});
  CHECK(draws(1099511627783u, 0, 4294967293) ==
        std::vector<std::int64_t>{2635837658, 3209733218, 3500038837, 4028389051, 4058793509});
  CHECK(draws(12345678901234567890u, 3, 3) == std::vector<std::int64_t>{3, 3, 3, 3, 3});
}

TEST_CASE("random stays in step with Python past many refills of its state") {
  PythonRandom random(3);
  std::int64_t sum = 0;
  for (int i = 0; i < 100'000; ++i) sum += random.randint(0, 999);
  CHECK(sum == 49885596);
}

TEST_CASE("random refuses an empty range and one of 2^32 numbers") {
  PythonRandom random(0);
  CHECK_THROWS_AS(random.randint(1, 0), nanovllm::Error);
  CHECK_THROWS_AS(random.randint(0, 0xFFFF'FFFF), nanovllm::Error);
}

TEST_CASE("the default workload has the lengths and tokens of nano-vllm's bench.py") {
  const auto workload = engine_bench::make_workload(256, 1024, 1024, 151'936);
  CHECK(workload.num_prompt_tokens == 142'827);
  CHECK(workload.num_output_tokens == 133'966);
  const auto& first = std::get<std::vector<nanovllm::TokenId>>(workload.prompts.front());
  const auto& last = std::get<std::vector<nanovllm::TokenId>>(workload.prompts.back());
  CHECK(first.size() == 964);
  CHECK(std::vector(first.begin(), first.begin() + 5) ==
        std::vector<nanovllm::TokenId>{6311, 6890, 663, 4242, 8376});
  CHECK(std::vector(last.end() - 3, last.end()) ==
        std::vector<nanovllm::TokenId>{6642, 9046, 1958});
  CHECK(workload.params.front().max_tokens == 845);
  CHECK(workload.params.back().max_tokens == 312);
}

TEST_CASE("a small vocabulary changes the tokens of the workload and no length") {
  const auto large = engine_bench::make_workload(8, 200, 300, 151'936);
  const auto small = engine_bench::make_workload(8, 200, 300, 4'096);
  CHECK(small.num_prompt_tokens == large.num_prompt_tokens);
  CHECK(small.num_output_tokens == large.num_output_tokens);
  for (const auto& prompt : small.prompts) {
    for (const nanovllm::TokenId token : std::get<std::vector<nanovllm::TokenId>>(prompt))
      CHECK((token >= 0 && token < 4'096));
  }
}

TEST_CASE("defect 19: the pool that engine_bench asks for holds its largest batch") {
  engine_bench::Measurements m;
  for (const std::int64_t block_size : {1, 8, 16, 64}) {
    for (const std::int64_t context : {1, 100, 128, 512, 539, 540, 541, 1024, 4096}) {
      for (const std::int64_t steps : {1, 32}) {
        m.batch_sizes = {1, 64, 256};
        m.contexts = {context};
        m.repeats.steps = steps;
        // What the engine allocates where memory is no limit, see EngineConfig::kv_size.
        const std::int64_t pool =
            256 * nanovllm::ceil_div(engine_bench::longest_sequence(m), block_size);
        INFO("context " << context << ", " << steps << " steps, blocks of " << block_size);
        CHECK(engine_bench::decode_blocks(256, context, m.repeats, block_size) <= pool);
      }
    }
  }
}

TEST_CASE("the sequences of a measurement fit the length that the engine is made for") {
  engine_bench::Measurements m;
  CHECK(engine_bench::longest_sequence(m) == 64);
  m.prefill = {64, 2000};
  CHECK(engine_bench::longest_sequence(m) == 2001);
  m.batch_sizes = {1};
  m.contexts = {512, 4096};
  CHECK(engine_bench::longest_sequence(m) == 4096 + 64 + 4 + 32);
  m.embed = {6000};
  CHECK(engine_bench::longest_sequence(m) == 6001);
  m.first_token = {8000};
  CHECK(engine_bench::longest_sequence(m) == 8001);
  m.workload = true;
  m.max_output = 9000;
  CHECK(engine_bench::longest_sequence(m) == 10024);
}
