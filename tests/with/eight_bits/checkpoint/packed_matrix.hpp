#pragma once
/// A matrix of packed integers, whose tensors are written one element after another, by the order
/// of each layout.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "memory_checkpoint.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"

namespace nanovllm::test {

struct PackedExample {
  PackedFormat format{};
  std::int64_t rows = 0, columns = 0, group = 1;
  std::vector<int> codes{};     // [rows, columns]
  std::vector<int> zeros{};     // [rows, groups]
  std::vector<float> scales{};  // [rows, groups], of 8 bits of mantissa

  [[nodiscard]] std::int64_t groups() const { return (columns + group - 1) / group; }
  [[nodiscard]] int code(std::int64_t n, std::int64_t k) const {
    return codes[static_cast<std::size_t>(n * columns + k)];
  }
  [[nodiscard]] int zero(std::int64_t n, std::int64_t g) const {
    return zeros[static_cast<std::size_t>(n * groups() + g)];
  }
  [[nodiscard]] float scale(std::int64_t n, std::int64_t g) const {
    return scales[static_cast<std::size_t>(n * groups() + g)];
  }
  [[nodiscard]] float value(std::int64_t n, std::int64_t k) const {
    return static_cast<float>(code(n, k) - zero(n, k / group)) * scale(n, k / group);
  }
};

inline PackedExample packed_noise(PackedFormat format, std::int64_t rows, std::int64_t columns) {
  PackedExample out{format, rows, columns, format.group_size.value_or(columns)};
  std::uint32_t next = 0;
  const auto draw = [&] {
    return static_cast<int>(philox4x32(5, {next++, 0, 0, 0})[0] >> 8) & ((1 << format.bits) - 1);
  };
  for (std::int64_t i = 0; i < rows * columns; ++i) out.codes.push_back(draw());
  for (std::int64_t i = 0; i < rows * out.groups(); ++i) {
    out.zeros.push_back(format.has_zeros ? draw() : 1 << (format.bits - 1));
    out.scales.push_back(
        std::ldexp(1.f + static_cast<float>(draw() & 7) / 8, static_cast<int>(i % 3) - 6));
  }
  return out;
}

/// Words of 32 bits: `at(i, j)` in row i, element j of `count` at the bits that `place(j)` says.
template <class At, class Place>
std::string packed_words(std::int64_t rows, std::int64_t count, int bits, const At& at,
                         const Place& place) {
  const std::int64_t per_word = 32 / bits, across = (count + per_word - 1) / per_word;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(rows * across));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < count; ++j)
      words[static_cast<std::size_t>(i * across + j / per_word)] |=
          static_cast<std::uint32_t>(at(i, j)) << (bits * place(j % per_word));
  }
  return {reinterpret_cast<const char*>(words.data()), 4 * words.size()};
}

/// Words of zeros as GPTQ's formats have them: the first one subtracts from whole words, so that a
/// zero of 0 borrows from its neighbour.
inline std::string stored_zeros(std::string words, const PackedFormat& format) {
  if (!format.zeros_less_one) return words;
  for (std::size_t i = 0; i < words.size(); i += 4) {
    std::uint32_t word;
    std::memcpy(&word, &words[i], sizeof word);
    word -= format.bits == 4 ? 0x11111111u : 0x01010101u;
    std::memcpy(&words[i], &word, sizeof word);
  }
  return words;
}

/// out[j, i] = in[i, j] of words [rows, columns].
inline std::string transposed_words(const std::string& in, std::int64_t rows,
                                    std::int64_t columns) {
  std::string out;
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t i = 0; i < rows; ++i)
      out += in.substr(static_cast<std::size_t>(4 * (i * columns + j)), 4);
  }
  return out;
}

/// A tensor, which a test may break.
struct ExampleTensor {
  std::string name;
  FileDType dtype;
  std::vector<std::uint64_t> shape;
  std::string data;
};

/// The tensors of module "m".
inline std::vector<ExampleTensor> tensors_of(const PackedExample& m) {
  const auto rows = static_cast<std::uint64_t>(m.rows);
  const auto columns = static_cast<std::uint64_t>(m.columns);
  const auto groups = static_cast<std::uint64_t>(m.groups());
  const auto per_word = static_cast<std::uint64_t>(32 / m.format.bits);
  const int bits = m.format.bits;
  const auto in_order = [](std::int64_t j) { return static_cast<int>(j); };
  const auto awq_order =
      [](std::int64_t j) {  // column c of eight is in nibble [0,4,1,5,2,6,3,7][c]
        return static_cast<int>(j / 2 + j % 2 * 4);
      };
  const auto code = [&](std::int64_t n, std::int64_t k) { return m.code(n, k); };
  const auto code_of_column = [&](std::int64_t k, std::int64_t n) { return m.code(n, k); };
  const auto zero_of_group = [&](std::int64_t g, std::int64_t n) { return m.zero(n, g); };
  std::vector<half> scales, scales_across;
  for (const float s : m.scales) scales.push_back(half(s));
  for (std::int64_t g = 0; g < m.groups(); ++g) {
    for (std::int64_t n = 0; n < m.rows; ++n) scales_across.push_back(half(m.scale(n, g)));
  }
  const auto bytes = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()),
                       values.size() * sizeof(values[0]));
  };
  using enum FileDType;
  std::vector<ExampleTensor> out;
  switch (m.format.layout) {
    case PackedLayout::awq:
      return {{"m.qweight",
               i32,
               {columns, rows / 8},
               packed_words(m.columns, m.rows, 4, code_of_column, awq_order)},
              {"m.qzeros",
               i32,
               {groups, rows / 8},
               packed_words(m.groups(), m.rows, 4, zero_of_group, awq_order)},
              {"m.scales", f16, {groups, rows}, bytes(scales_across)}};
    case PackedLayout::gptq: {
      const std::string words = packed_words(m.rows, m.columns, bits, code, in_order);
      std::vector<std::int32_t> order;
      for (std::int64_t k = 0; k < m.columns; ++k)
        order.push_back(static_cast<std::int32_t>(k / m.group));
      return {
          {"m.qweight",
           i32,
           {columns / per_word, rows},
           transposed_words(words, m.rows, m.columns * bits / 32)},
          {"m.qzeros",
           i32,
           {groups, (rows + per_word - 1) / per_word},
           stored_zeros(packed_words(m.groups(), m.rows, bits, zero_of_group, in_order), m.format)},
          {"m.scales", f16, {groups, rows}, bytes(scales_across)},
          {"m.g_idx", i32, {columns}, bytes(order)}};
    }
    default: break;
  }
  const std::vector<std::int64_t> shape{m.rows, m.columns};
  out = {{"m.weight_packed",
          i32,
          {rows, (columns + per_word - 1) / per_word},
          packed_words(m.rows, m.columns, bits, code, in_order)},
         {"m.weight_scale", f16, {rows, groups}, bytes(scales)},
         {"m.weight_shape", i64, {2}, bytes(shape)}};
  if (m.format.has_zeros) {
    const std::uint64_t down = (rows + per_word - 1) / per_word;
    const std::string words = packed_words(m.groups(), m.rows, bits, zero_of_group, in_order);
    out.push_back({"m.weight_zero_point",
                   i32,
                   {down, groups},
                   transposed_words(words, m.groups(), static_cast<std::int64_t>(down))});
  }
  return out;
}

/// What config.json says of such matrices.
inline std::string config_of(const PackedFormat& format) {
  const std::string group = std::to_string(format.group_size.value_or(-1));
  const std::string bits = std::to_string(format.bits);
  switch (format.layout) {
    case PackedLayout::awq:
      return R"({"quant_method": "awq", "bits": 4, "zero_point": true, "version": "gemm",
                 "group_size": )" +
             group + "}";
    case PackedLayout::gptq:
      return R"({"quant_method": "gptq", "desc_act": false, "bits": )" + bits +
             ", \"group_size\": " + group + ", \"sym\": " + (format.has_zeros ? "false" : "true") +
             ", \"checkpoint_format\": \"" + (format.zeros_less_one ? "gptq" : "gptq_v2") + "\"}";
    default: break;
  }
  const std::string strategy =
      format.group_size ? "\"group\", \"group_size\": " + group : "\"channel\"";
  return R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
             "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"type": "int",
             "num_bits": )" +
         bits + ", \"strategy\": " + strategy +
         ", \"symmetric\": " + (format.has_zeros ? "false" : "true") + "}}}}";
}

inline nanovllm_test::MemoryCheckpoint packed_checkpoint(const std::vector<ExampleTensor>& tensors,
                                                         const std::string& quantization) {
  nanovllm_test::MemoryCheckpoint out;
  for (const ExampleTensor& tensor : tensors)
    out.add(tensor.name, tensor.dtype, tensor.shape, tensor.data);
  out.texts["config.json"] = "{\"quantization_config\": " + quantization + "}";
  return out;
}

}  // namespace nanovllm::test
