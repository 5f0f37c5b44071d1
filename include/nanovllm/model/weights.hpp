#pragma once
/// Streams a checkpoint's tensors to the holder of the parameters. Independent of model and
/// backend.
///
/// The caller lists its parameters; each has a sink that receives the rows this rank keeps,
/// converted to the element type it computes in, from 16 or 32 bits, from blocks
/// (io/file_dtype.hpp), or from a form of another part (model/stored_matrix.hpp). Everything is
/// verified before the first byte is read. Then the file is read once, front to back, in panels of
/// a few MiB whose pages are given back at once, so that loading adds one panel a thread, not a
/// second copy of the weights, to resident memory.

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

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/stored_matrix.hpp"
#include "nanovllm/ops/backend.hpp"

namespace nanovllm {

/// A tensor that the model wants from the checkpoint.
template <Element T>
struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< of the whole tensor in the file; rank 1 or 2
  /// Receives consecutive panels of the kept part: dense rows, the first of which is row
  /// `first_row` of that part. A rank-1 tensor is one row [1, n]. The view is valid only during the
  /// call. Not called for an empty part.
  std::function<void(std::int64_t first_row, MatrixView<const T> rows)> sink;
  Shard shard{};
  bool optional = false;       ///< absence is no error; the sink is then never called
  bool transposed = false;     ///< the file has [in, out], of which no other form is read
  std::int64_t row_group = 1;  ///< the sink gets multiples of so many rows, but for the last ones
  /// Gets the same rows as they are stored, where that is another form. False, with nothing done:
  /// `sink` shall have them.
  std::function<bool(std::int64_t first_row, const AnyStoredRows& rows)> stored_sink{};
};

struct LoadOptions {
  std::span<const std::string> ignored{};  ///< tensors that may be there and are not read
  /// Called after each panel, one call at a time, with file bytes read so far and in all.
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress{};
  int num_threads = 1;  ///< tensors read at a time
};

namespace detail {

template <Element T>
[[nodiscard]] std::vector<WantedTensor> wanted_tensors(std::span<const Parameter<T>> parameters) {
  std::vector<WantedTensor> out;
  out.reserve(parameters.size());
  for (const Parameter<T>& p : parameters)
    out.push_back({p.name, p.shape, p.shard, p.optional, p.transposed});
  return out;
}

/// Which matrix of a checkpoint is for which parameter, in the order of the files.
struct LoadJobs {
  struct Job {
    std::shared_ptr<const StoredMatrix> matrix;
    std::size_t parameter;
  };

  std::vector<Job> list;
  std::uint64_t bytes = 0;  ///< of the files, in all
};

/// Throws what `check_parameters` throws.
LoadJobs find_tensors(const Checkpoint& checkpoint, std::span<const WantedTensor> wanted,
                      std::span<const std::string> ignored);

/// out = these elements, dense rows, each rounded from a float32 to nearest even.
template <Element T>
void convert(const StoredMatrix& matrix, const Region& region, T* out) {
  const CheckpointTensor& tensor = matrix.tensor();
  const std::int64_t columns = region.columns();
  if (tensor.blocks == nullptr && is_float(tensor.dtype)) {
    const bool is_whole = columns == region.num_columns;
    const std::int64_t step = is_whole ? region.rows() : 1;
    for (Region part = region; part.row_begin < region.row_end; part.row_begin += step) {
      part.row_end = part.row_begin + step;
      const auto count = static_cast<std::size_t>(step * columns);
      convert(tensor.dtype, matrix.bytes_of(part).data(), out, count);
      out += count;
    }
    return;
  }
  constexpr std::int64_t kColumns = 512;  // of a part, which a cache holds
  const std::int64_t step = matrix.rows_at_once();
  std::vector<float> buffer(static_cast<std::size_t>(step * std::min(kColumns, columns)));
  for (std::int64_t row = region.row_begin; row < region.row_end; row += step) {
    for (std::int64_t column = region.column_begin; column < region.column_end;) {
      const Region part{row, std::min(row + step, region.row_end), column,
                        std::min((column / kColumns + 1) * kColumns, region.column_end),
                        region.num_columns};
      matrix.read(part, buffer.data());
      const float* from = buffer.data();
      for (std::int64_t r = 0; r < part.rows(); ++r) {
        T* const to = out + (row + r - region.row_begin) * columns + column - region.column_begin;
        for (std::int64_t c = 0; c < part.columns(); ++c) to[c] = T(*from++);
      }
      column = part.column_end;
    }
  }
}

/// Streams one tensor to its sink through `staging`. `on_bytes` gets every panel's file bytes.
/// Where rows lie in all of its pages, these are given back together.
template <Element T, class Staging, class OnBytes>
void stream_parameter(const Parameter<T>& parameter, const StoredMatrix& matrix, Staging& staging,
                      const OnBytes& on_bytes) {
  constexpr std::int64_t kPanelBytes = 4 << 20;
  const Region region = region_of(parameter.shape, parameter.shard);
  if (region.rows() == 0 || region.columns() == 0) return;
  // The panel is bounded as it lies in the file and as it is handed out.
  const std::int64_t row_bytes = std::max(matrix.stride(region.num_columns),
                                          region.columns() * static_cast<std::int64_t>(sizeof(T)));
  const std::int64_t panel_rows =
      align_up(align_up(std::max<std::int64_t>(kPanelBytes / row_bytes, 1), matrix.rows_at_once()),
               parameter.row_group);
  const MappedFile* const mapping = matrix.tensor().mapping;
  std::uint64_t bytes_done = 0;
  for (std::int64_t row = region.row_begin; row < region.row_end; row += panel_rows) {
    Region panel = region;
    panel.row_begin = row;
    panel.row_end = std::min(row + panel_rows, region.row_end);
    const std::int64_t first = row - region.row_begin;
    const auto bytes = matrix.bytes_of(panel);
    const bool is_first = matrix.is_row_major() || first == 0;
    const bool is_last = matrix.is_row_major() || panel.row_end == region.row_end;
    if (mapping != nullptr && is_first) mapping->prefetch(bytes);
    const auto keep = [&](const AnyStoredRows& rows) { return parameter.stored_sink(first, rows); };
    if (!parameter.stored_sink || !matrix.give(panel, keep)) {
      T* const out = staging.acquire(static_cast<std::size_t>(panel.rows() * panel.columns()));
      convert(matrix, panel, out);
      parameter.sink(first, MatrixView<const T>(out, {panel.rows(), panel.columns()}));
      staging.release();
    }
    if (mapping != nullptr && is_last) mapping->release(bytes);
    panel.row_begin = region.row_begin;
    const std::uint64_t now = matrix.num_bytes(panel);
    on_bytes(now - std::exchange(bytes_done, now));
  }
}

/// Calls `work()` on `num_threads` threads, the caller's among them, and rethrows the first
/// exception when all have ended. Throws Error when a thread is refused; `stop()` makes calls of
/// `work` return that have begun by then.
void on_threads(
    int num_threads, const std::function<void()>& work, const std::function<void()>& stop = [] {});

}  // namespace detail

/// Throws one LoadError that lists the parameters that are missing, have another shape, or are not
/// of floats, and the tensors of the checkpoint that are neither a parameter nor ignored, by
/// `options` or by `surplus_of`: the first 16 of each list, and how many more there are.
template <Element T>
void check_parameters(const Checkpoint& checkpoint, std::span<const Parameter<T>> parameters,
                      const LoadOptions& options = {}) {
  detail::find_tensors(checkpoint, detail::wanted_tensors(parameters), options.ignored);
}

/// Checks as `check_parameters`, then streams every parameter to its sink, in the order of the
/// files; with several threads the order is nearly that, and each parameter is one thread's. What a
/// sink throws ends the load. Several threads may load from one checkpoint at once.
///
/// @param make_staging  called once on every loading thread.
template <Element T, class MakeStaging>
void load_parameters(const Checkpoint& checkpoint, std::span<const Parameter<T>> parameters,
                     const LoadOptions& options, const MakeStaging& make_staging) {
  const detail::LoadJobs jobs =
      detail::find_tensors(checkpoint, detail::wanted_tensors(parameters), options.ignored);

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
        detail::stream_parameter(parameters[job.parameter], *job.matrix, staging, on_bytes);
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

#include <exception>
#include <set>
#include <string_view>
#include <thread>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/sort.hpp"
#include "nanovllm/core/thread.hpp"

namespace nanovllm::detail {

/// Lines of a message, of which the first ones are written out: a mixture of experts may miss
/// thousands of tensors.
class FirstLines {
 public:
  /// @param rest  what the others are, after their number.
  explicit FirstLines(std::string_view rest) : rest_(rest) {}

  template <class... Parts>
  void add(const Parts&... parts) {
    if (++count_ <= kMost) text_ += concat("\n  - ", parts...);
  }

  [[nodiscard]] std::string text() const {
    return count_ <= kMost ? text_ : text_ + concat("\n  - and ", count_ - kMost, rest_);
  }

 private:
  static constexpr std::size_t kMost = 16;
  std::string_view rest_;
  std::string text_;
  std::size_t count_ = 0;
};

/// Whether a tensor of this name holds rotary frequencies, which older files have.
[[nodiscard]] NANOVLLM_INLINE bool is_rotary_table(std::string_view name) {
  constexpr std::string_view kModule = "rotary_emb.";
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || !name.substr(0, dot + 1).ends_with(kModule)) return false;
  const std::string_view buffer = name.substr(dot + 1);
  return buffer == "inv_freq" || buffer == "cos_cached" || buffer == "sin_cached";
}

/// The module of a head that has nothing to do with tokens, "v_head" of "v_head.summary.weight";
/// empty for other tensors.
[[nodiscard]] NANOVLLM_INLINE std::string_view other_head(std::string_view name) {
  const std::string_view module = name.substr(0, name.find('.'));
  const bool is_head = (module.ends_with("_head") && module != "lm_head") || module == "score";
  return is_head && name.find("lora_") == name.npos ? module : std::string_view();
}

/// Lines for the tensors that are neither `expected` nor ignored. Ignored are those that one of
/// `readers` ignores, what every engine computes itself (`rotary_emb.inv_freq`), and, with a
/// warning, heads beside the one for tokens, such as the value head of a training by PPO: no other
/// tensor depends on them.
NANOVLLM_INLINE std::string surplus_of(const Checkpoint& checkpoint,
                                       const std::set<std::string_view>& expected,
                                       std::span<const std::unique_ptr<FormReader>> readers) {
  FirstLines surplus(" more that are not in the model");
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const auto ignores = [&](const auto& reader) { return reader->ignores(tensor); };
    if (expected.contains(tensor.name) || std::ranges::any_of(readers, ignores) ||
        is_rotary_table(tensor.name))
      continue;
    if (const std::string_view head = other_head(tensor.name); !head.empty()) {
      checkpoint.warn(concat("'", checkpoint.name(), "': the tensors '", head,
                             ".*' are ignored: tokens do not depend on them"));
      continue;
    }
    const bool is_adapter = tensor.name.find("lora_") != tensor.name.npos ||
                            tensor.name.find("base_layer") != tensor.name.npos;
    surplus.add("'", tensor.name, "' ", shape_string(tensor.shape),
                " is in the checkpoint, but not in the model",
                is_adapter ? ": it is of a LoRA adapter, which must be merged first" : "");
  }
  return surplus.text();
}

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

NANOVLLM_INLINE LoadJobs find_tensors(const Checkpoint& checkpoint,
                                      std::span<const WantedTensor> wanted,
                                      std::span<const std::string> ignored) {
  std::vector<std::unique_ptr<FormReader>> readers;
  for (const FormPart* part = FormPart::first; part != nullptr; part = part->next)
    readers.push_back(part->open(checkpoint));
  LoadJobs out;
  FirstLines problems(" more that are missing or wrong");
  std::set<std::string_view> expected(ignored.begin(), ignored.end());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const WantedTensor& parameter = wanted[i];
    expected.insert(parameter.name);
    const CheckpointTensor* const tensor = checkpoint.find(parameter.name);
    std::optional<StoredForm> form;
    for (const auto& reader : readers) {
      if (!form) form = reader->find(parameter);
    }
    std::string problem;
    if (tensor != nullptr || form) {
      problem = shard_problem(parameter);
    } else if (!parameter.optional) {
      problem = "is missing";
    }
    if (tensor != nullptr && problem.empty() && !has_shape(*tensor, parameter.shape))
      problem = concat("must have shape ", shape_string(parameter.shape), ", got ",
                       shape_string(tensor->shape));
    if (form) {
      expected.insert(form->names.begin(), form->names.end());
      if (problem.empty()) problem = form->problem;
    } else if (tensor != nullptr) {
      form = StoredForm{.matrix = std::make_shared<const StoredMatrix>(*tensor)};
      if (problem.empty() && tensor->blocks == nullptr && !is_float(tensor->dtype))
        problem = concat("must be F32, F16 or BF16, got ", tensor->type_name());
    }
    if (!problem.empty()) {
      problems.add("'", parameter.name, "' ", problem);
    } else if (form) {
      out.bytes += form->matrix->num_bytes(region_of(parameter.shape, parameter.shard));
      out.list.push_back({std::move(form->matrix), i});
    }
  }
  std::string text = problems.text() + surplus_of(checkpoint, expected, readers);
  if (!text.empty()) {
    for (const std::string& warning : checkpoint.warnings()) text += "\n  (" + warning + ")";
  }
  check<LoadError>(text.empty(), "'", checkpoint.name(),
                   "' does not hold this model's weights:", text);
  // Tensors lie in one array in file order, so their addresses sort the jobs.
  sort_stably(out.list, [](const auto& a, const auto& b) {
    return &a.matrix->tensor() < &b.matrix->tensor();
  });
  return out;
}

NANOVLLM_INLINE void on_threads(int num_threads, const std::function<void()>& work,
                                const std::function<void()>& stop) {
  std::mutex mutex;
  std::exception_ptr error;
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads = start_threads(
      "loading weights", num_threads - 1, [&guarded](int) { guarded(); }, stop);
  guarded();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
