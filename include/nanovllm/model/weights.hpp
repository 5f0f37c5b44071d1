#pragma once
/// Streams a checkpoint's tensors to the holder of the parameters. Independent of model and
/// backend.
///
/// The caller lists its parameters; each has a sink that receives the rows this rank keeps,
/// converted to the element type it computes in, from 16 or 32 bits, from 8-bit floats and their
/// scales, from packed integers, or from blocks (io/block_format.hpp). Everything is verified
/// before the first byte is read. Then the file is read once, front to back, in panels of a few MiB
/// whose pages are given back at once, so that loading adds one panel a thread, not a second copy
/// of the weights, to resident memory.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/model/convert.hpp"
#include "nanovllm/model/load_threads.hpp"
#include "nanovllm/model/parameter.hpp"
#include "nanovllm/model/stored_rows.hpp"
#include "nanovllm/model/surplus_tensors.hpp"
#include "nanovllm/ops/host_staging.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"
#include "nanovllm/with/eight_bits/checkpoint/tensor_scales.hpp"

namespace nanovllm {

struct LoadOptions {
  std::span<const std::string> ignored{};  ///< tensors that may be there and are not read
  /// Called after each panel, one call at a time, with file bytes read so far and in all.
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress{};
  int num_threads = 1;  ///< tensors read at a time
};

namespace detail {

/// A parameter, whatever its element type. Refers to it.
struct WantedTensor {
  const std::string& name;
  const std::vector<std::int64_t>& shape;
  const Shard& shard;
  bool optional;
  bool transposed;
};

template <Element T>
[[nodiscard]] std::vector<WantedTensor> wanted_tensors(std::span<const Parameter<T>> parameters) {
  std::vector<WantedTensor> out;
  out.reserve(parameters.size());
  for (const Parameter<T>& p : parameters)
    out.push_back({p.name, p.shape, p.shard, p.optional, p.transposed});
  return out;
}

/// What `check_parameters` does.
void check_tensors(const Checkpoint& checkpoint, std::span<const WantedTensor> wanted,
                   std::span<const std::string> ignored);

/// Streams one tensor to its sink through `staging`. `on_bytes` gets every panel's file bytes.
/// @param scales  of a tensor of 8-bit floats.
template <Element T, class Staging, class OnBytes>
void stream_parameter(const Parameter<T>& parameter, const CheckpointTensor& tensor,
                      const std::optional<TensorScales>& scales, Staging& staging,
                      const OnBytes& on_bytes) {
  constexpr std::int64_t kPanelBytes = 4 << 20;
  const Region region = region_of(parameter.shape, parameter.shard);
  if (region.rows() == 0 || region.columns() == 0) return;
  const RowLayout layout(tensor);
  const std::int64_t stride = layout.end(region.num_columns);
  const std::int64_t left = layout.begin(region.column_begin), read = region.row_bytes(layout);
  const std::span<const std::byte> bytes = tensor.data;
  const auto at = [&](std::int64_t row, std::int64_t byte) {
    return static_cast<std::size_t>(row * stride + byte);
  };
  // The panel is bounded as it lies in the file and as it is handed out.
  const std::int64_t row_bytes =
      std::max(stride, region.columns() * static_cast<std::int64_t>(sizeof(T)));
  const std::int64_t panel_rows =
      std::min(align_up(std::max<std::int64_t>(kPanelBytes / row_bytes, 1), parameter.row_group),
               region.rows());

  for (std::int64_t row = region.row_begin; row < region.row_end; row += panel_rows) {
    const std::int64_t rows = std::min(panel_rows, region.row_end - row);
    const auto width = static_cast<std::size_t>(region.columns());
    const std::size_t begin = at(row, left);
    const auto panel = bytes.subspan(begin, at(row + rows - 1, left + read) - begin);
    if (tensor.mapping != nullptr) tensor.mapping->prefetch(panel);
    const auto done = [&] {
      if (tensor.mapping != nullptr) tensor.mapping->release(panel);
      on_bytes(static_cast<std::uint64_t>(rows * read));
    };
    if (scales && parameter.stored_sink &&
        parameter.stored_sink(row - region.row_begin,
                              scales->rows_of(&bytes[begin], region.num_columns, row, rows,
                                              region.column_begin, region.columns()))) {
      done();
      continue;
    }
    if (tensor.blocks != nullptr && tensor.blocks->integers != nullptr &&
        parameter.stored_int_sink &&
        parameter.stored_int_sink(row - region.row_begin,
                                  int_rows_of(*tensor.blocks, &bytes[at(row, 0)], stride, rows,
                                              region.column_begin, region.columns()))) {
      done();
      continue;
    }
    T* const out = staging.acquire(static_cast<std::size_t>(rows) * width);
    if (tensor.blocks != nullptr) {
      for (std::int64_t r = 0; r < rows; ++r) {
        dequantise_blocks(*tensor.blocks, &bytes[at(row + r, 0)], region.column_begin,
                          region.columns(), out + static_cast<std::size_t>(r) * width);
      }
    } else if (scales) {
      for (std::int64_t r = 0; r < rows; ++r) {
        scales->dequantise(&bytes[at(row + r, 0)], row + r, region.column_begin, region.columns(),
                           out + static_cast<std::size_t>(r) * width);
      }
    } else if (region.columns() == region.num_columns) {
      convert(tensor.dtype, &bytes[at(row, 0)], out, static_cast<std::size_t>(rows) * width);
    } else {
      for (std::int64_t r = 0; r < rows; ++r) {
        convert(tensor.dtype, &bytes[at(row + r, left)], out + static_cast<std::size_t>(r) * width,
                width);
      }
    }
    parameter.sink(row - region.row_begin, MatrixView<const T>(out, {rows, region.columns()}));
    staging.release();
    done();
  }
}

/// The same of a matrix of packed integers. Rows of AWQ's and GPTQ's lie in all of its pages, which
/// are given back together.
template <Element T, class Staging, class OnBytes>
void stream_packed(const Parameter<T>& parameter, const PackedRows& packed, Staging& staging,
                   const OnBytes& on_bytes) {
  constexpr std::int64_t kPanelBytes = 4 << 20;
  const Region region = region_of(parameter.shape, parameter.shard);
  const std::int64_t columns = region.columns();
  if (region.rows() == 0 || columns == 0) return;
  const std::int64_t row_bytes = columns * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t panel_rows =
      align_up(align_up(std::max<std::int64_t>(kPanelBytes / row_bytes, 1), PackedRows::kAtOnce),
               parameter.row_group);
  const MappedFile* const mapping = packed.words().mapping;
  std::uint64_t bytes_done = 0;
  for (std::int64_t row = region.row_begin; row < region.row_end; row += panel_rows) {
    const std::int64_t rows = std::min(panel_rows, region.row_end - row);
    const auto panel = packed.bytes_of(row, rows, region.column_begin, columns);
    const bool is_first = packed.is_row_major() || row == region.row_begin;
    const bool is_last = packed.is_row_major() || row + rows == region.row_end;
    if (mapping != nullptr && is_first) mapping->prefetch(panel);
    if (!parameter.stored_int_sink ||
        !parameter.stored_int_sink(row - region.row_begin,
                                   packed.rows_of(row, rows, region.column_begin, columns))) {
      T* const out = staging.acquire(static_cast<std::size_t>(rows * columns));
      packed.dequantise(row, rows, region.column_begin, columns, out);
      parameter.sink(row - region.row_begin, MatrixView<const T>(out, {rows, columns}));
      staging.release();
    }
    if (mapping != nullptr && is_last) mapping->release(panel);
    const std::uint64_t bytes = packed.stored_bytes(row + rows - region.row_begin, columns);
    on_bytes(bytes - std::exchange(bytes_done, bytes));
  }
}

}  // namespace detail

/// Throws one LoadError that lists the parameters that are missing, have another shape, or are not
/// of floats, and the tensors of the checkpoint that are neither a parameter nor ignored, by
/// `options` or by `surplus_of`: the first 16 of each list, and how many more there are.
template <Element T>
void check_parameters(const Checkpoint& checkpoint, std::span<const Parameter<T>> parameters,
                      const LoadOptions& options = {}) {
  detail::check_tensors(checkpoint, detail::wanted_tensors(parameters), options.ignored);
}

namespace detail {

/// Which tensor of a checkpoint is for which parameter, in the order of the files.
struct LoadJobs {
  struct Job {
    const CheckpointTensor* tensor;
    std::size_t parameter;
    std::optional<TensorScales> scales;
    std::shared_ptr<const PackedRows> packed;
  };

  std::vector<Job> list;
  std::uint64_t bytes = 0;  ///< of the files, in all
};

[[nodiscard]] LoadJobs list_jobs(const Checkpoint& checkpoint,
                                 std::span<const WantedTensor> wanted);

}  // namespace detail

/// Checks as `check_parameters`, then streams every parameter to its sink, in the order of the
/// files; with several threads the order is nearly that, and each parameter is one thread's. What a
/// sink throws ends the load. Several threads may load from one checkpoint at once.
///
/// @param make_staging  called once on every loading thread.
template <Element T, class MakeStaging>
void load_parameters(const Checkpoint& checkpoint, std::span<const Parameter<T>> parameters,
                     const LoadOptions& options, const MakeStaging& make_staging) {
  const std::vector<detail::WantedTensor> wanted = detail::wanted_tensors(parameters);
  detail::check_tensors(checkpoint, wanted, options.ignored);
  const detail::LoadJobs jobs = detail::list_jobs(checkpoint, wanted);

  std::mutex progress_mutex;
  std::uint64_t bytes_done = 0;
  const auto on_bytes = [&](std::uint64_t bytes) {
    const std::lock_guard lock(progress_mutex);
    bytes_done += bytes;
    if (options.progress) options.progress(bytes_done, jobs.bytes);
  };
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto load = [&] {
    try {
      auto staging = make_staging();
      for (std::size_t i = next++; i < jobs.list.size() && !failed; i = next++) {
        const detail::LoadJobs::Job& job = jobs.list[i];
        const Parameter<T>& parameter = parameters[job.parameter];
        if (job.packed) {
          detail::stream_packed(parameter, *job.packed, staging, on_bytes);
        } else {
          detail::stream_parameter(parameter, *job.tensor, job.scales, staging, on_bytes);
        }
      }
    } catch (...) {
      failed = true;
      throw;
    }
  };
  detail::on_threads(options.num_threads, load, [&] { failed = true; });
}

/// The same through ordinary memory.
template <Element T>
void load_parameters(const Checkpoint& checkpoint, std::span<const Parameter<T>> parameters,
                     const LoadOptions& options = {}) {
  load_parameters<T>(checkpoint, parameters, options, [] { return HostStaging<T>{}; });
}

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <set>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/sort.hpp"

namespace nanovllm::detail {

/// What is wrong with the parameter itself; empty if nothing.
NANOVLLM_INLINE std::string shard_problem(const WantedTensor& p) {
  const std::size_t rank = p.shape.size();
  if (rank < 1 || rank > 2) return concat("must have rank 1 or 2, got ", shape_string(p.shape));
  if (p.shard.dim) {
    const auto dim = static_cast<std::size_t>(*p.shard.dim);
    if (dim >= rank) return concat("is split along dimension ", dim, " of ", shape_string(p.shape));
    const std::int64_t extent = p.shape[dim];
    if (p.shard.begin < 0 || p.shard.begin > p.shard.end || p.shard.end > extent) {
      return concat("is split to [", p.shard.begin, ", ", p.shard.end, ") of ", extent);
    }
  }
  return {};
}

/// What is wrong with the file's tensor for it; empty if nothing.
NANOVLLM_INLINE std::string tensor_problem(const WantedTensor& p, const CheckpointTensor& tensor,
                                           const Checkpoint& checkpoint,
                                           const QuantizationConfig& quantization) {
  const bool same = std::equal(p.shape.begin(), p.shape.end(), tensor.shape.begin(),
                               tensor.shape.end(), [](std::int64_t want, std::uint64_t got) {
                                 return want >= 0 && static_cast<std::uint64_t>(want) == got;
                               });
  if (!same) {
    return concat("must have shape ", shape_string(p.shape), ", got ", shape_string(tensor.shape));
  }
  if (tensor.dtype == FileDType::f8_e4m3) return scales_problem(checkpoint, tensor, quantization);
  if (tensor.blocks == nullptr && !is_float(tensor.dtype))
    return concat("must be F32, F16, BF16 or F8_E4M3, got ", tensor.type_name());
  return {};
}

/// What is wrong with the file's packed integers for it; empty if nothing.
NANOVLLM_INLINE std::string packed_problem(const WantedTensor& p, const CheckpointTensor& words,
                                           const Checkpoint& checkpoint,
                                           const QuantizationConfig& quantization) {
  if (!p.transposed)
    return through<LoadError>(packed_problem_door, kPackedPart, "'", checkpoint.name(), "' has '",
                              words.name, "': a matrix of packed integers")(checkpoint, p.name,
                                                                            p.shape, quantization);
  return concat("is a packed matrix, '", words.name,
                "'; models whose files have this matrix transposed do not read those");
}

/// Read only where a tensor needs it.
NANOVLLM_INLINE QuantizationConfig quantization_of(const Checkpoint& checkpoint) {
  const bool is_quantised =
      std::ranges::any_of(checkpoint.tensors(), [](const CheckpointTensor& tensor) {
        return tensor.dtype == FileDType::f8_e4m3 || is_packed_name(tensor.name);
      });
  return is_quantised ? read_quantization(checkpoint) : QuantizationConfig{};
}

NANOVLLM_INLINE void check_tensors(const Checkpoint& checkpoint,
                                   std::span<const WantedTensor> wanted,
                                   std::span<const std::string> ignored) {
  const QuantizationConfig quantization = quantization_of(checkpoint);
  FirstLines problems(" more that are missing or wrong");
  std::set<std::string_view> expected(ignored.begin(), ignored.end());
  for (const WantedTensor& parameter : wanted) {
    expected.insert(parameter.name);
    const CheckpointTensor* tensor = checkpoint.find(parameter.name);
    const CheckpointTensor* words = tensor ? nullptr : find_packed(checkpoint, parameter.name);
    std::string problem;
    if (tensor != nullptr || words != nullptr) {
      problem = shard_problem(parameter);
    } else if (!parameter.optional) {
      problem = "is missing";
    }
    if (tensor != nullptr && problem.empty())
      problem = tensor_problem(parameter, *tensor, checkpoint, quantization);
    if (tensor != nullptr && tensor->dtype == FileDType::f8_e4m3) {
      if (const auto* scales = find_scale_tensor(checkpoint, parameter.name); scales != nullptr)
        expected.insert(scales->name);
    }
    if (words != nullptr) {
      if (problem.empty()) problem = packed_problem(parameter, *words, checkpoint, quantization);
      if (const auto names = packed_names_door.load(); names != nullptr)
        expected.merge(names(checkpoint, parameter.name));
    }
    if (!problem.empty()) problems.add("'", parameter.name, "' ", problem);
  }
  std::string text = problems.text() + surplus_of(checkpoint, expected);
  if (!text.empty()) {
    for (const std::string& warning : checkpoint.warnings()) text += "\n  (" + warning + ")";
  }
  check<LoadError>(text.empty(), "'", checkpoint.name(),
                   "' does not hold this model's weights:", text);
}

NANOVLLM_INLINE LoadJobs list_jobs(const Checkpoint& checkpoint,
                                   std::span<const WantedTensor> wanted) {
  LoadJobs out;
  const QuantizationConfig quantization = quantization_of(checkpoint);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto& [name, shape, shard, optional, transposed] = wanted[i];
    const Region region = region_of(shape, shard);
    const CheckpointTensor* tensor = checkpoint.find(name);
    if (tensor == nullptr) {
      if (find_packed(checkpoint, name) == nullptr) continue;
      const auto packed = packed_rows_door.load()(checkpoint, name, shape, quantization);
      if (packed == nullptr) continue;
      out.list.push_back({&packed->words(), i, {}, packed});
      out.bytes += packed->stored_bytes(region.rows(), region.columns());
      continue;
    }
    out.list.push_back({tensor, i, scales_of(checkpoint, *tensor, quantization), {}});
    out.bytes += static_cast<std::uint64_t>(region.rows() * region.row_bytes(RowLayout(*tensor)));
  }
  // Tensors lie in one array in file order, so their addresses sort the jobs.
  sort_stably(out.list, [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  return out;
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
