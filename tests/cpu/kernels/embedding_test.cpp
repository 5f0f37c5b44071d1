#include "nanovllm/cpu/kernels/embedding.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;
using cpu::Context;
using cpu::PackedMatrix;
using cpu::ThreadPool;

namespace {

constexpr std::int64_t kVocab = 100;

template <class T>
std::vector<T> random_table(std::int64_t cols) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<T> table(static_cast<std::size_t>(kVocab * cols));
  for (T& value : table) value = static_cast<T>(normal(random));
  return table;
}

/// The rows [begin, end) of the table as a shard.
template <class T>
PackedMatrix<T> shard(const std::vector<T>& table, std::int64_t cols, std::int64_t begin,
                      std::int64_t end) {
  PackedMatrix<T> out(end - begin, cols);
  out.set_rows(0, MatrixView<const T>(table.data(), {kVocab, cols}).slice(begin, end));
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("embedding copies rows exactly and touches nothing else", "[embedding]", float,
                   bf16, half) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (std::int64_t cols : {1, 31, 64}) {
      const std::vector<TestType> table = random_table<TestType>(cols);
      const PackedMatrix<TestType> matrix = shard(table, cols, 0, kVocab);
      for (std::int64_t n : {0, 1, 4, 5, 33}) {
        const std::int64_t stride = cols + 5;
        const auto poison = static_cast<TestType>(std::numeric_limits<float>::quiet_NaN());
        std::vector<TestType> out(static_cast<std::size_t>(n * stride), poison);
        std::vector<TokenId> tokens;
        for (std::int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<TokenId>(i * 31 % 100));
        cpu::embedding(
            EmbeddingArgs<TestType, PackedMatrix<TestType>>{
                {tokens.data(), {n}}, &matrix, 0, {out.data(), {n, cols}, {stride, 1}}},
            Context{.pool = &pool});
        int num_wrong = 0;
        for (std::int64_t i = 0; i < n * stride; ++i) {
          const float got = out[static_cast<std::size_t>(i)];
          const std::int64_t row = tokens[static_cast<std::size_t>(i / stride)], col = i % stride;
          num_wrong += col < cols ? got != float(table[static_cast<std::size_t>(row * cols + col)])
                                  : !std::isnan(got);
        }
        REQUIRE(num_wrong == 0);
      }
    }
  }
}

TEST_CASE("a shard gives zero for the tokens of others, and shards sum to the whole",
          "[embedding]") {
  constexpr std::int64_t kCols = 48;
  const std::vector<bf16> table = random_table<bf16>(kCols);
  const std::vector<TokenId> tokens = {0, 39, 40, 99, 57, 3};
  const auto n = static_cast<std::int64_t>(tokens.size());
  std::vector<float> sum(static_cast<std::size_t>(n * kCols), 0.0f);
  for (std::int64_t begin : {0, 40}) {
    const PackedMatrix<bf16> part = shard(table, kCols, begin, begin == 0 ? 40 : kVocab);
    std::vector<bf16> out(sum.size(), bf16(std::numeric_limits<float>::quiet_NaN()));
    cpu::embedding(
        EmbeddingArgs<bf16, PackedMatrix<bf16>>{
            {tokens.data(), {n}}, &part, static_cast<TokenId>(begin), {out.data(), {n, kCols}}},
        Context{});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += out[i];
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t row = tokens[static_cast<std::size_t>(i)];
    for (std::int64_t c = 0; c < kCols; ++c) {
      REQUIRE(sum[static_cast<std::size_t>(i * kCols + c)] ==
              float(table[static_cast<std::size_t>(row * kCols + c)]));
    }
  }
}

TEST_CASE("an output of the wrong shape is refused", "[embedding]") {
  const PackedMatrix<float> table(10, 8);
  std::vector<float> out(100);
  const TokenId token = 0;
  REQUIRE_THROWS_AS(
      cpu::embedding(
          EmbeddingArgs<float, PackedMatrix<float>>{{&token, {1}}, &table, 0, {out.data(), {1, 7}}},
          Context{}),
      ShapeError);
}
