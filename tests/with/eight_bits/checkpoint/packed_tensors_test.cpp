// Matrices of packed integers: what is read of them is (code - zero) · scale, whichever way the words
// lie, whole and in the shards of ranks, as floats and as integers.

#include "nanovllm/with/eight_bits/checkpoint/packed_tensors.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/sha256.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/weights.hpp"
#include "safetensors_writer.hpp"
#include "with/eight_bits/checkpoint/packed_matrix.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;

namespace {

struct Size {
  PackedFormat format;
  std::int64_t rows, columns;
};

/// Sizes that are whole tiles, and such that are not; groups within a tile, across tiles, and one.
std::vector<Size> sizes() {
  using enum PackedLayout;
  const auto group = [](std::int64_t columns) { return std::optional(columns); };
  return {{{awq, 4, group(32)}, 256, 384},
          {{awq, 4, group(128)}, 136, 256},
          {{awq, 4, group(24)}, 24, 50},
          {{awq, 4, {}}, 144, 300},
          {{gptq, 4, group(32), false, true}, 200, 256},
          {{gptq, 4, group(128), true, true}, 136, 384},
          {{gptq, 4, group(16), true, false}, 37, 88},
          {{gptq, 8, group(64), true, true}, 130, 192},
          {{gptq, 8, {}, false, false}, 21, 20},
          {{compressed_tensors, 4, group(32), false}, 130, 256},
          {{compressed_tensors, 4, group(128), true}, 264, 200},
          {{compressed_tensors, 4, {}, true}, 37, 51},
          {{compressed_tensors, 8, {}, false}, 20, 301},
          {{compressed_tensors, 8, group(32), true}, 131, 96}};
}

/// Parts as ranks keep them, cut where no word and no group ends.
std::vector<Shard> shards_of(const Size& s) {
  return {{},
          {.dim = 0, .begin = 0, .end = s.rows / 2},
          {.dim = 0, .begin = s.rows / 2, .end = s.rows},
          {.dim = 0, .begin = s.rows / 3 + 1, .end = s.rows - 1},
          {.dim = 1, .begin = 0, .end = s.columns / 2},
          {.dim = 1, .begin = s.columns / 2, .end = s.columns},
          {.dim = 1, .begin = s.columns / 3 + 1, .end = s.columns - 1},
          {.dim = 0, .begin = 5, .end = 5}};
}

/// The shard of matrix "m.weight" as float32, from the two sinks that a parameter may have.
template <class T>
struct Reader {
  Shard shard{};
  bool takes_integers = false;
  std::vector<float> values{};
  std::int64_t rows = 0;
  bool has_offsets = false, in_range = true, has_one_scale = true;

  [[nodiscard]] std::vector<Parameter<T>> parameters(const Size& s) {
    Parameter<T> parameter{.name = "m.weight",
                           .shape = {s.rows, s.columns},
                           .sink =
                               [this](std::int64_t first, MatrixView<const T> panel) {
                                 CHECK(first == rows);
                                 for (std::int64_t i = 0; i < panel.size(); ++i)
                                   values.push_back(float(panel.data[i]));
                                 rows += panel.extent(0);
                               },
                           .shard = shard};
    parameter.stored_sink = [this](std::int64_t first, const AnyStoredRows& stored) {
      if (!takes_integers) return false;
      const IntRows& panel = *stored.get<IntRows>();
      CHECK(first == rows);
      std::vector<std::int8_t> codes(static_cast<std::size_t>(panel.columns));
      for (std::int64_t i = 0; i < panel.rows; ++i) {
        panel.read(i, codes.data());
        for (std::int64_t j = 0; j < panel.columns; ++j) {
          const IntRows::Group group = panel.group(i, j);
          const int code = codes[static_cast<std::size_t>(j)];
          in_range = in_range && std::abs(2 * code + 1) < (1 << panel.bits);
          const std::int64_t size = panel.group_columns;
          const std::int64_t start = (j + panel.phase) / size * size - panel.phase;
          const IntRows::Group first_one = panel.group(i, std::max<std::int64_t>(0, start));
          has_one_scale =
              has_one_scale && first_one.scale == group.scale && first_one.offset == group.offset;
          values.push_back(group.scale * static_cast<float>(code) + group.offset);
        }
      }
      rows += panel.rows;
      has_offsets = panel.has_offsets;
      return true;
    };
    return {std::move(parameter)};
  }
};

}  // namespace

TEMPLATE_TEST_CASE("packed integers are read as floats, whole and in shards", "[packed][weights]",
                   float, bf16) {
  for (const Size& s : sizes()) {
    CAPTURE(config_of(s.format), s.rows, s.columns);
    const PackedExample m = packed_noise(s.format, s.rows, s.columns);
    const Checkpoint checkpoint(packed_checkpoint(tensors_of(m), config_of(s.format)));
    for (const Shard& shard : shards_of(s)) {
      const detail::Region part = detail::region_of({s.rows, s.columns}, shard);
      std::vector<float> expected;
      for (std::int64_t n = part.row_begin; n < part.row_end; ++n) {
        for (std::int64_t k = part.column_begin; k < part.column_end; ++k)
          expected.push_back(float(TestType(m.value(n, k))));
      }
      Reader<TestType> floats{shard}, integers{shard, true};
      const auto wanted = floats.parameters(s);
      std::uint64_t bytes = 0, all_bytes = 0;
      load_parameters<TestType>(checkpoint, wanted,
                                {.progress = [&](std::uint64_t done, std::uint64_t all) {
                                  bytes = done, all_bytes = all;
                                }});
      CHECK((floats.values == expected));
      CHECK(bytes == all_bytes);
      CHECK(bytes == static_cast<std::uint64_t>(part.rows() * part.columns() * s.format.bits / 8));
      if constexpr (std::same_as<TestType, float>) {  // these products and sums are exact
        load_parameters<TestType>(checkpoint, integers.parameters(s));
        CHECK((integers.values == expected));
        CHECK(integers.in_range);
        CHECK(integers.has_one_scale);
        if (!expected.empty()) CHECK(integers.has_offsets == s.format.has_zeros);
      }
    }
  }
}

TEST_CASE("several panels of a file, which are given back", "[packed][weights]") {
  // The rows of a panel of 4 MiB are fewer than there are.
  using enum PackedLayout;
  const std::vector<Size> large{{{awq, 4, 128}, 1304, 1024},
                                {{gptq, 4, 128, true, true}, 1304, 1024},
                                {{compressed_tensors, 4, 128, true}, 1304, 1024}};
  for (const Size& s : large) {
    CAPTURE(config_of(s.format));
    const PackedExample m = packed_noise(s.format, s.rows, s.columns);
    nanovllm_test::SafetensorsWriter file;
    for (const ExampleTensor& tensor : tensors_of(m))
      file.add(tensor.name, std::string(name(tensor.dtype)),
               {tensor.shape.begin(), tensor.shape.end()}, std::string_view(tensor.data));
    const nanovllm_test::TempDirectory directory;
    directory.write("model.safetensors", file.bytes(3));
    directory.write("config.json", "{\"quantization_config\": " + config_of(s.format) + "}");
    Reader<float> whole, integers{{}, true};
    int num_panels = 0;
    load_parameters<float>(Checkpoint(directory.path()), whole.parameters(s),
                           {.progress = [&](std::uint64_t, std::uint64_t) { ++num_panels; }});
    CHECK(num_panels == 2);
    std::vector<float> expected;
    for (std::int64_t n = 0; n < s.rows; ++n) {
      for (std::int64_t k = 0; k < s.columns; ++k) expected.push_back(m.value(n, k));
    }
    CHECK((whole.values == expected));
    load_parameters<float>(Checkpoint(directory.path()), integers.parameters(s));
    CHECK((integers.values == expected));
  }
}

TEST_CASE("zeros of GPTQ less one are those of whole words", "[packed][weights]") {
  // GPTQModel subtracts 0x11111111 from a word of zeros: one of 0 borrows from the next.
  for (const int bits : {4, 8}) {
    const Size s{{PackedLayout::gptq, bits, 8, true, true}, 8, 8};
    PackedExample m = packed_noise(s.format, s.rows, s.columns);
    m.zeros = {0, 0, 3, 0, 1, 9, 0, 15};
    std::vector<ExampleTensor> tensors = tensors_of(m);
    using namespace std::string_literals;
    CHECK(tensors[1].data ==
          (bits == 4 ? "\xef\xf1\x7f\xdf"s : "\xff\xfe\x01\xff\x00\x08\xff\x0d"s));
    Reader<float> reader;
    load_parameters<float>(Checkpoint(packed_checkpoint(tensors, config_of(s.format))),
                           reader.parameters(s));
    for (std::int64_t n = 0; n < s.rows; ++n)
      CHECK(reader.values[static_cast<std::size_t>(n * s.columns + 5)] == m.value(n, 5));
  }
}

TEST_CASE("columns in the order of their activations", "[packed][weights]") {
  using enum PackedLayout;
  const std::vector<Size> ordered{{{gptq, 4, 32, true, true}, 136, 256},
                                  {{gptq, 8, 16, false, true}, 20, 80},
                                  {{compressed_tensors, 4, 24, true}, 37, 200},
                                  {{compressed_tensors, 8, 32, false}, 20, 96}};
  for (const Size& s : ordered) {
    CAPTURE(config_of(s.format), s.rows, s.columns);
    const PackedExample m = packed_noise(s.format, s.rows, s.columns);
    const auto group_of = [&](std::int64_t k) { return 7 * k % s.columns / m.group; };
    std::string order(static_cast<std::size_t>(4 * s.columns), '\0');
    for (std::int64_t k = 0; k < s.columns; ++k)
      order[static_cast<std::size_t>(4 * k)] = static_cast<char>(group_of(k));
    std::vector<ExampleTensor> tensors = tensors_of(m);
    const bool is_gptq = s.format.layout == gptq;
    if (is_gptq) tensors.pop_back();
    tensors.push_back({is_gptq ? "m.g_idx" : "m.weight_g_idx",
                       FileDType::i32,
                       {static_cast<std::uint64_t>(s.columns)},
                       order});
    const Checkpoint checkpoint(packed_checkpoint(tensors, config_of(s.format)));
    for (const Shard& shard : shards_of(s)) {
      const detail::Region part = detail::region_of({s.rows, s.columns}, shard);
      std::vector<float> expected;
      for (std::int64_t n = part.row_begin; n < part.row_end; ++n) {
        for (std::int64_t k = part.column_begin; k < part.column_end; ++k)
          expected.push_back(static_cast<float>(m.code(n, k) - m.zero(n, group_of(k))) *
                             m.scale(n, group_of(k)));
      }
      // As floats also for those who take integers: neighbours have no scale in common.
      Reader<float> floats{shard}, integers{shard, true};
      load_parameters<float>(checkpoint, floats.parameters(s));
      CHECK((floats.values == expected));
      load_parameters<float>(checkpoint, integers.parameters(s));
      CHECK((integers.values == expected));
    }
  }
}

TEST_CASE("a scale that is not finite ends the load", "[packed][weights]") {
  const Size s{{PackedLayout::awq, 4, 32}, 64, 64};
  PackedExample m = packed_noise(s.format, s.rows, s.columns);
  m.scales[2 * 40 + 1] = std::numeric_limits<float>::infinity();
  Reader<float> reader;
  CHECK_THROWS_WITH(
      load_parameters<float>(Checkpoint(packed_checkpoint(tensors_of(m), config_of(s.format))),
                             reader.parameters(s)),
      Contains("'m.scales' has inf as element 104; it must be finite"));
}

TEST_CASE("matrices that other programs have packed are what those have packed",
          "[packed][weights]") {
  // tests/oracle/make_packed_fixtures.py: a hash of each dequantised matrix.
  for (const std::string name :
       {"awq", "awq_moe", "gptq", "gptq_v2", "gptq_8bit", "ct", "ct_asym", "ct_8bit"}) {
    CAPTURE(name);
    const Checkpoint checkpoint("tests/fixtures/packed/" + name);
    std::ifstream stream("tests/fixtures/packed/" + name + ".json");
    const nlohmann::json matrices = nlohmann::json::parse(stream)["matrices"];
    CHECK(matrices.size() >= 7);
    std::map<std::string, std::string> bytes;
    std::vector<Parameter<float>> parameters;
    std::vector<std::string> others;
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      if (tensor.name.ends_with(".weight")) others.push_back(tensor.name);
    }
    for (const auto& [matrix, facts] : matrices.items()) {
      std::string& rows = bytes[matrix];
      parameters.push_back({.name = matrix,
                            .shape = facts["shape"],
                            .sink = [&rows](std::int64_t, MatrixView<const float> panel) {
                              rows.append(reinterpret_cast<const char*>(panel.data),
                                          static_cast<std::size_t>(panel.size()) * sizeof(float));
                            }});
    }
    load_parameters<float>(checkpoint, parameters, {.ignored = others});
    for (const auto& [matrix, facts] : matrices.items()) {
      CAPTURE(matrix);
      std::string hash;
      for (const std::byte b : sha256(bytes[matrix])) {
        constexpr const char* kDigits = "0123456789abcdef";
        hash += {kDigits[std::to_integer<int>(b) / 16], kDigits[std::to_integer<int>(b) % 16]};
      }
      CHECK(hash == facts["sha256"]);
    }
  }
}
