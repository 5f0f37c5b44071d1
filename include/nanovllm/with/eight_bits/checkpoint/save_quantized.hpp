#pragma once
/// Keeps weights in integers as a checkpoint, so that later engines need not quantise.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/parameter.hpp"
#include "nanovllm/model/weights.hpp"
#include "nanovllm/ops/weight_format.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_writer.hpp"

namespace nanovllm {

struct SaveOptions {
  std::optional<int> num_threads{};  ///< unset: all of the machine's
  /// Called now and then, one call at a time, with bytes of matrices read so far and in all.
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress{};
};

/// A policy whose matrices hand out their integers: its `Weight` is Int8Weights or Int4Weights.
template <class Policy>
concept SavesIntegers =
    requires(const MatrixOf<typename Policy::Backend, typename Policy::Weight>& matrix,
             std::int8_t* codes, half* scales) {
  matrix.copy_codes(std::int64_t{}, codes, scales);
};

/// Quantises a Qwen3 checkpoint of 16 or 32 bits or of FP8 as an engine of `Policy` does, and
/// writes it as a checkpoint of its own to `directory`, which is made: config.json, the texts of
/// the tokenizer, and model.safetensors as compressed-tensors has it (`PackedWriter`). An engine of
/// `Policy` that opens it has the bits of one that opens `checkpoint`; any other opens it, too.
///
/// `checkpoint` is read once. A panel of it for each thread is in memory, never the model. Nothing
/// is left at `directory` where it throws: Error for what cannot be written, with path and reason,
/// or is there already; LoadError for a checkpoint that cannot be saved so, such as one that is in
/// integers; ConfigError for `num_threads` below 1.
template <SavesIntegers Policy>
void save_quantized(const Checkpoint& checkpoint, const std::filesystem::path& directory,
                    const SaveOptions& options = {}) {
  using Weight = typename Policy::Weight;
  using T = WeightElement<Weight>;
  using Matrix = MatrixOf<typename Policy::Backend, Weight>;
  const int num_threads =
      options.num_threads.value_or(static_cast<int>(std::thread::hardware_concurrency()));
  check<ConfigError>(num_threads >= 1 || !options.num_threads,
                     "save_quantized: num_threads must be unset or at least 1, got ", num_threads);
  PackedWriter writer(checkpoint, directory, kWeightBits<Weight>, Matrix::kGroupColumns);
  std::vector<Parameter<T>> parameters;
  for (const PackedWriter::Matrix& matrix : writer.matrices()) {
    const auto sink = [&writer, index = parameters.size(), groups = writer.groups_of(matrix)](
                          std::int64_t first_row, MatrixView<const T> rows) {
      const std::int64_t count = rows.extent(0), columns = rows.extent(1);
      Matrix part(count, columns);
      part.set_rows(0, rows);
      std::vector<std::int8_t> codes(static_cast<std::size_t>(count * columns));
      std::vector<half> scales(static_cast<std::size_t>(count * groups));
      for (std::int64_t i = 0; i < count; ++i)
        part.copy_codes(i, codes.data() + i * columns, scales.data() + i * groups);
      writer.write_rows(index, first_row, codes, scales);
    };
    parameters.push_back({.name = matrix.name, .shape = matrix.shape, .sink = sink});
  }
  load_parameters<T>(checkpoint, parameters,
                     {.ignored = writer.others(),
                      .progress = options.progress,
                      .num_threads = num_threads < 1 ? 1 : num_threads});
  writer.finish();
}

}  // namespace nanovllm
