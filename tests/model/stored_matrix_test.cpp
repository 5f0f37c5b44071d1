#include "nanovllm/model/stored_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/parameter_list.hpp"
#include "nanovllm/model/weights.hpp"
#include "nanovllm/with/eight_bits/checkpoint/stored_forms.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"
#include "nanovllm/with/gguf/gguf_blocks.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::MemoryCheckpoint;

namespace {

/// Blocks of Q8_0 with these scales, and elements that differ.
std::string q8_blocks(std::int64_t count) {
  std::string out;
  for (std::int64_t b = 0; b < count; ++b) {
    const half scale(static_cast<float>(b % 7 + 1) * 0.125f);
    out.append(reinterpret_cast<const char*>(&scale), 2);
    for (std::int64_t i = 0; i < 32; ++i) out.push_back(static_cast<char>((b * 32 + i) * 37 % 251));
  }
  return out;
}

/// Element i of them.
float q8_element(const std::string& blocks, std::int64_t i) {
  half scale;
  std::memcpy(&scale, blocks.data() + i / 32 * 34, 2);
  return static_cast<float>(scale) *
         static_cast<float>(
             static_cast<signed char>(blocks[static_cast<std::size_t>(i / 32 * 34 + 2 + i % 32)]));
}

Checkpoint checkpoint_of(const std::string& blocks, std::vector<std::uint64_t> shape,
                         const BlockFormat& format = kGgufQ8_0) {
  MemoryCheckpoint files;
  files.add("w", FileDType::u8, std::move(shape), blocks, &format);
  return Checkpoint(std::move(files));
}

}  // namespace

TEMPLATE_TEST_CASE("each rank's part of a tensor of blocks is dequantised", "[weights]", float,
                   half, bf16) {
  constexpr std::int64_t kRows = 37, kColumns = 2048;
  const std::string blocks = q8_blocks(kRows * kColumns / 32);
  const Checkpoint checkpoint = checkpoint_of(blocks, {kRows, kColumns});
  // Whole; rows; columns that begin and end inside blocks, at them, and inside one block.
  const Shard shard = GENERATE(Shard{}, Shard{0, 5, 30}, Shard{1, 17, 1999}, Shard{1, 64, 1088},
                               Shard{1, 33, 35}, Shard{1, 0, 2048}, Shard{1, 40, 40});
  const detail::Region region = detail::region_of({kRows, kColumns}, shard);
  std::vector<TestType> expected, got;
  for (std::int64_t row = region.row_begin; row < region.row_end; ++row) {
    for (std::int64_t column = region.column_begin; column < region.column_end; ++column)
      expected.push_back(TestType(q8_element(blocks, row * kColumns + column)));
  }
  const std::vector<Parameter<TestType>> parameters = {
      {.name = "w",
       .shape = {kRows, kColumns},
       .sink =
           [&](std::int64_t first_row, MatrixView<const TestType> rows) {
             REQUIRE(first_row * region.columns() == static_cast<std::int64_t>(got.size()));
             got.insert(got.end(), rows.data, rows.data + rows.size());
           },
       .shard = shard}};
  std::uint64_t read = 0, total = 0;
  load_parameters<TestType>(checkpoint, parameters,
                            {.progress = [&](std::uint64_t done, std::uint64_t all) {
                              CHECK(done > read);
                              read = done;
                              total = all;
                            }});
  REQUIRE(got.size() == expected.size());
  CHECK((got.empty() ||
         std::memcmp(got.data(), expected.data(), got.size() * sizeof(TestType)) == 0));
  CHECK(read == total);
  if (!shard.dim) CHECK(total == blocks.size());
}

namespace {

/// A block with these scales, and elements of any bits.
std::string random_block(const BlockFormat& format, std::uint32_t seed) {
  std::string out;
  for (std::uint32_t i = 0; i < format.bytes; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out.push_back(static_cast<char>(seed >> 24));
  }
  const half d(0.001f * static_cast<float>(seed % 90 + 10)), d_min(0.002f);
  std::memcpy(out.data(), &d, 2);
  if (format.elements == 256) std::memcpy(out.data() + 2, &d_min, 2);
  if (&format == &kGgufQ6_K) std::memcpy(out.data() + 208, &d, 2);
  return out;
}

}  // namespace

TEST_CASE("blocks of integers are the integers of their elements", "[weights]") {
  const BlockFormat& format = *GENERATE(&kGgufQ8_0, &kGgufQ4_0, &kGgufQ4_K, &kGgufQ5_K);
  INFO(format.name);
  REQUIRE(format.integers != nullptr);
  constexpr std::int64_t kRows = 5, kColumns = 768;
  std::string data;
  for (std::uint32_t b = 0; b < kRows * kColumns / format.elements; ++b)
    data += random_block(format, b + 1);
  const Checkpoint checkpoint = checkpoint_of(data, {kRows, kColumns}, format);
  for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, kColumns}, {32, 320}, {17, 400}, {250, 10}, {5, 3}}) {
    INFO(first << " and " << count << " more");
    std::vector<float> values;
    std::vector<Parameter<float>> parameters = {
        {.name = "w",
         .shape = {kRows, kColumns},
         .sink =
             [&](std::int64_t, MatrixView<const float> rows) {
               values.assign(rows.data, rows.data + rows.size());
             },
         .shard = {1, first, first + count}}};
    load_parameters<float>(checkpoint, parameters);
    std::int64_t num_given = 0;
    parameters[0].stored_sink = [&, first = first, count = count](std::int64_t first_row,
                                                                  const AnyStoredRows& stored) {
      REQUIRE(stored.get<Fp8Rows>() == nullptr);
      REQUIRE(stored.get<IntRows>() != nullptr);
      const IntRows& rows = *stored.get<IntRows>();
      REQUIRE(first_row == 0);
      REQUIRE(rows.rows == kRows);
      REQUIRE(rows.columns == count);
      CHECK(rows.has_one_scale_in_each(32) == (first % 32 == 0 || first % 32 + count <= 32));
      std::vector<std::int8_t> codes(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < kRows; ++i) {
        rows.read(i, codes.data());
        for (std::int64_t j = 0; j < count; ++j) {
          const auto code = static_cast<float>(codes[static_cast<std::size_t>(j)]);
          const IntRows::Group of = rows.group(i, j);
          REQUIRE(code >= -std::exp2(rows.bits - 1));
          REQUIRE(code < std::exp2(rows.bits - 1));
          REQUIRE((rows.has_offsets || of.offset == 0));
          // Sums of other parts of the same numbers: equal but for what float32 rounds.
          const float value = values[static_cast<std::size_t>(i * count + j)];
          const float size = std::abs(of.scale) * 32 + std::abs(of.offset);
          REQUIRE(std::abs(of.scale * code + of.offset - value) <=
                  (rows.has_offsets ? size * 0x1p-22f : 0.f));
          ++num_given;
        }
      }
      return true;
    };
    load_parameters<float>(checkpoint, parameters);
    CHECK(num_given == kRows * count);
  }
}

TEST_CASE("matrices of integers keep the blocks that they can", "[weights]") {
  const BlockFormat& format = *GENERATE(&kGgufQ8_0, &kGgufQ4_0, &kGgufQ4_K, &kGgufQ5_K, &kGgufQ6_K);
  INFO(format.name);
  constexpr std::int64_t kRows = 37, kColumns = 256;
  std::string blocks;
  for (std::uint32_t b = 0; b < kRows * kColumns / format.elements; ++b)
    blocks += random_block(format, b + 1);
  MemoryCheckpoint files;
  files.add("w", FileDType::u8, {kRows, kColumns}, blocks, &format);
  const Checkpoint checkpoint(std::move(files));
  std::vector<float> values(kRows * kColumns);
  format.dequantise(reinterpret_cast<const std::byte*>(blocks.data()),
                    values.size() / format.elements, values.data());
  CpuBackend backend{BackendConfig{}};
  // The largest difference of an element, in parts of the largest element of its row.
  const auto distance = [&](auto matrix) {
    ParameterList<float, CpuBackend> list(backend);
    list.add_matrix("w", {kRows, kColumns}, {}, matrix);
    list.load(checkpoint);
    double out = 0;
    std::vector<float> row(kColumns);
    for (std::int64_t i = 0; i < kRows; ++i) {
      matrix.copy_row(i, row.data());
      double largest = 0, error = 0;
      for (std::int64_t j = 0; j < kColumns; ++j) {
        const double value = values[static_cast<std::size_t>(i * kColumns + j)];
        largest = std::max(largest, std::abs(value));
        error = std::max(error, std::abs(row[static_cast<std::size_t>(j)] - value));
      }
      out = std::max(out, error / largest);
    }
    return out;
  };
  const double of_eight = distance(cpu::IntMatrix<8>(kRows, kColumns));
  const double of_four = distance(cpu::IntMatrix<4>(kRows, kColumns));
  CAPTURE(of_eight, of_four);
  const bool has_integers = format.integers != nullptr;
  const bool is_exact = has_integers && !format.integers->has_offsets;
  // Scales and offsets in units of them are rounded to halves; what is quantised anew is off by
  // half a scale, a 254th of the largest element of a group, or in 4 bits by a scale where that
  // element is cut off, a 9th.
  const double of_halves = is_exact ? 0 : 0x1p-10;
  CHECK(of_eight <= (has_integers ? of_halves : 1 / 250.));
  CHECK(of_four <= (has_integers && format.integers->bits == 4 ? of_halves : 1 / 8.));
  if (!is_exact) CHECK(of_eight > 0);
}

TEST_CASE("a vector of blocks is one row", "[weights]") {
  const std::string blocks = q8_blocks(2);
  std::vector<float> got;
  const std::vector<Parameter<float>> parameters = {
      {.name = "w", .shape = {64}, .sink = [&](std::int64_t, MatrixView<const float> row) {
         got.assign(row.data, row.data + row.size());
       }}};
  load_parameters<float>(checkpoint_of(blocks, {64}), parameters);
  REQUIRE(got.size() == 64);
  for (std::int64_t i = 0; i < 64; ++i)
    CHECK(got[static_cast<std::size_t>(i)] == q8_element(blocks, i));
}

TEST_CASE("blocks that do not make up their tensor are refused", "[weights][checkpoint]") {
  const std::string blocks = q8_blocks(4);
  CHECK(checkpoint_of(blocks, {2, 64}).total_bytes() == 4 * 34);
  CHECK(checkpoint_of("", {0, 64}).total_bytes() == 0);
  CHECK_THROWS_WITH(checkpoint_of(blocks, {2, 63}).tensors(),
                    "'memory': the tensor 'w', Q8_0 [2, 63], has 136 bytes");
  CHECK_THROWS_AS(checkpoint_of(blocks, {3, 64}).tensors(), LoadError);
  CHECK_THROWS_AS(checkpoint_of(blocks, {64, 2}).tensors(), LoadError);
  CHECK_THROWS_AS(checkpoint_of("", {}).tensors(), LoadError);
  CHECK_THROWS_AS(checkpoint_of(blocks, {~std::uint64_t{0}, 64}).tensors(), LoadError);
  constexpr BlockFormat kTooLarge{"large", kMaxBlockElements + 1, 1, nullptr};
  MemoryCheckpoint files;
  files.add("w", FileDType::u8, {1, kMaxBlockElements + 1}, "x", &kTooLarge);
  CHECK_THROWS_AS(Checkpoint(std::move(files)).tensors(), LoadError);
}

TEST_CASE("blocks are no scales of 8-bit floats", "[weights]") {
  MemoryCheckpoint files;
  files.texts["config.json"] = "{}";
  files.add("w", FileDType::f8_e4m3, {32, 1}, std::string(32, 'x'));
  files.add("w_scale", FileDType::u8, {1, 32}, q8_blocks(1), &kGgufQ8_0);
  const Checkpoint checkpoint(std::move(files));
  const std::vector<Parameter<float>> parameters = {
      {.name = "w", .shape = {32, 1}, .sink = [](std::int64_t, MatrixView<const float>) {}}};
  CHECK_THROWS_WITH(load_parameters<float>(checkpoint, parameters),
                    Contains("has scales of Q8_0; they must be F32"));
}
