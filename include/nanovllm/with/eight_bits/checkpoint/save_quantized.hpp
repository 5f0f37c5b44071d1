#pragma once
/// Keeps weights in integers as a checkpoint, so that later engines need not quantise.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/weights.hpp"
#include "nanovllm/ops/weight_format.hpp"
#include "nanovllm/with/eight_bits/checkpoint/safetensors_writer.hpp"

namespace nanovllm {

/// A copy of a checkpoint with the matrices of its layers in integers, as compressed-tensors has
/// them (`pack-quantized`, symmetric, with groups of columns). These are the seven projections of
/// Qwen3 and its experts, q, k, v, o, gate, up and down, by their names; all else, such as the
/// vocabulary, routers and norms, is copied with the bytes that it has. Scales are F16.
///
/// The directory is written under a temporary name next to its own, which it gets when it is whole;
/// so its parent must be writable. What ends with an exception leaves nothing, not even a directory
/// that was there and empty; a process that is killed leaves
/// `<directory>.<process id>.<number>.part`.
class PackedWriter {
 public:
  struct Matrix {
    std::string name;
    std::vector<std::int64_t> shape;  ///< [rows, columns]
  };

  /// Makes model.safetensors and copies what is not packed into it, and the texts beside it.
  /// Throws Error that names path and reason where `directory` is there and not an empty directory,
  /// cannot be renamed, such as a mount point or a link, or cannot be written; LoadError where a
  /// tensor of `source` is in integers already or of a type that is not copied, or where there is
  /// no projection.
  /// @param bits  4 or 8.
  PackedWriter(const Checkpoint& source, std::filesystem::path directory, int bits,
               std::int64_t group_columns);
  /// Removes what is not whole.
  ~PackedWriter();

  PackedWriter(const PackedWriter&) = delete;
  PackedWriter& operator=(const PackedWriter&) = delete;

  /// What is packed.
  [[nodiscard]] const std::vector<Matrix>& matrices() const { return matrices_; }
  /// The names of all tensors of the source that are not.
  [[nodiscard]] const std::vector<std::string>& others() const { return others_; }
  [[nodiscard]] std::int64_t groups_of(const Matrix& matrix) const;

  /// Writes rows [first_row, …) of `matrices()[index]`: `codes` [n, columns], in [-2^(bits - 1),
  /// 2^(bits - 1)), and `scales` [n, groups]. Several threads may write at once. Throws LoadError
  /// where a scale is not finite, Error where the file cannot be written.
  void write_rows(std::size_t index, std::int64_t first_row, std::span<const std::int8_t> codes,
                  std::span<const half> scales) const;

  /// All rows are written: gives the directory its name. Throws Error when it cannot.
  void finish();

 private:
  void plan(const Checkpoint& source);
  void make_temporary();
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) const;
  void remove() noexcept;
  void write_texts(const Checkpoint& source) const;
  void copy_others(const Checkpoint& source) const;

  std::filesystem::path directory_, temporary_;
  int bits_;
  std::int64_t group_columns_;
  std::vector<Matrix> matrices_;
  std::vector<std::string> others_, unquantised_;
  std::vector<TensorInfo>
      tensors_;  // of the file: three of each matrix, then those that are copied
  std::optional<SafetensorsFileWriter> file_;
};

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

#if NANOVLLM_BODIES

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "nanovllm/core/math.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed.hpp"
#include "nanovllm/with/eight_bits/checkpoint/tensor_scales.hpp"

namespace nanovllm {

namespace detail {

/// Tensors of a packed matrix: words, scales, shape.
inline constexpr std::size_t kPackedParts = 3;

/// Whether the tensor is a projection of a Qwen3, or of one of its experts: by the end of its name.
NANOVLLM_INLINE bool is_projection(const CheckpointTensor& tensor) {
  return tensor.shape.size() == 2 &&
         std::ranges::any_of(qwen3_modules::all, [&](const FamilyModule& module) {
           const std::string_view end = module.name.substr(module.name.rfind('.') + 1);
           return module.is_projection() && tensor.name.ends_with(concat(".", end, ".weight"));
         });
}

/// What is wrong with a tensor that is to be packed or copied; empty if nothing.
NANOVLLM_INLINE std::string unsaved_problem(const CheckpointTensor& tensor) {
  if (tensor.blocks != nullptr || is_packed_name(tensor.name))
    return "is quantised already: open the checkpoint itself";
  if (tensor.shape.size() < 2) return {};
  const FileDType dtype = tensor.dtype;
  if (dtype == FileDType::f32 || dtype == FileDType::f16 || dtype == FileDType::bf16) return {};
  if (!is_projection(tensor)) return "must be F32, F16 or BF16";
  return dtype == FileDType::f8_e4m3 ? "" : "must be F32, F16, BF16 or F8_E4M3";
}

/// What config.json of a packed checkpoint has beside the model's own.
/// Source: compressed-tensors 0.20, QuantizationConfig.
NANOVLLM_INLINE Json packed_config(int bits, std::int64_t group_columns,
                                   const std::vector<std::string>& ignored) {
  const Json weights = Json::object({{"num_bits", bits},
                                     {"type", "int"},
                                     {"symmetric", true},
                                     {"strategy", "group"},
                                     {"group_size", group_columns},
                                     {"dynamic", false}});
  const Json group = Json::object({{"targets", Json::array({"Linear"})},
                                   {"weights", weights},
                                   {"input_activations", nullptr},
                                   {"output_activations", nullptr},
                                   {"format", "pack-quantized"}});
  return Json::object({{"quant_method", "compressed-tensors"},
                       {"format", "pack-quantized"},
                       {"quantization_status", "compressed"},
                       {"config_groups", Json::object({{"group_0", group}})},
                       {"ignore", Json(ignored)},
                       {"kv_cache_scheme", nullptr}});
}

/// Writes a small file. Throws Error when it cannot.
NANOVLLM_INLINE void write_new_file(const std::filesystem::path& path, std::string_view text) {
  std::FILE* const file = std::fopen(path.c_str(), "wbx");
  bool done = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
              std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
  const int error = errno;
  if (file != nullptr) std::fclose(file);
  check(done, "cannot write '", path.string(), "': ", std::generic_category().message(error));
}

}  // namespace detail

NANOVLLM_INLINE PackedWriter::PackedWriter(const Checkpoint& source,
                                           std::filesystem::path directory, int bits,
                                           std::int64_t group_columns)
    : directory_(std::move(directory)), bits_(bits), group_columns_(group_columns) {
  if (!directory_.has_filename()) directory_ = directory_.parent_path();  // of "model/"
  std::error_code error;
  check(!directory_.empty(), "cannot save to '': a directory must have a name");
  const bool is_free = !std::filesystem::exists(directory_, error) ||
                       (std::filesystem::is_directory(directory_, error) &&
                        std::filesystem::is_empty(directory_, error));
  check(is_free && !error, "cannot save to '", directory_.string(),
        "': ", error ? error.message() : "it is there already, and not an empty directory");
  plan(source);
  make_temporary();
  try {
    rename(temporary_, directory_);  // whether it may have that name
    rename(directory_, temporary_);
    write_texts(source);
    file_.emplace(temporary_ / "model.safetensors", tensors_);
    copy_others(source);
  } catch (...) {  // a constructor that throws has no destructor
    remove();
    throw;
  }
}

NANOVLLM_INLINE PackedWriter::~PackedWriter() {
  if (!temporary_.empty()) remove();
}

NANOVLLM_INLINE void PackedWriter::make_temporary() {
  static std::atomic<int> num_directories{0};
  std::error_code error;
  do {  // others may be of a process with the same number, on another host or in a container
    temporary_ = directory_;
    temporary_ += concat(".", ::getpid(), ".", num_directories++, ".part");
  } while (!std::filesystem::create_directory(temporary_, error) && !error);
  check(!error, "cannot make the directory '", temporary_.string(), "': ", error.message());
}

NANOVLLM_INLINE void PackedWriter::rename(const std::filesystem::path& from,
                                          const std::filesystem::path& to) const {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  check(!error, "cannot save to '", directory_.string(), "': renaming '", from.string(), "' to '",
        to.string(), "' fails: ", error.message());
}

NANOVLLM_INLINE void PackedWriter::remove() noexcept {
  file_.reset();  // some file systems keep a directory whose files are open
  try {
    std::error_code ignored;
    std::filesystem::remove_all(temporary_, ignored);
  } catch (...) {  // out of memory: it is left there
  }
}

NANOVLLM_INLINE std::int64_t PackedWriter::groups_of(const Matrix& matrix) const {
  return ceil_div(matrix.shape[1], group_columns_);
}

NANOVLLM_INLINE void PackedWriter::plan(const Checkpoint& source) {
  unquantised_.emplace_back("lm_head");
  std::set<std::string_view> dropped;  // what packed matrices have no use for
  for (const CheckpointTensor& tensor : source.tensors()) {
    if (tensor.name.ends_with(".input_scale")) dropped.insert(tensor.name);
    if (!detail::is_projection(tensor)) continue;
    if (const auto* scales = find_scale_tensor(source, tensor.name); scales != nullptr)
      dropped.insert(scales->name);
    const std::uint64_t rows = tensor.shape[0], columns = tensor.shape[1];
    matrices_.push_back(
        {tensor.name, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)}});
    const auto groups = static_cast<std::uint64_t>(groups_of(matrices_.back()));
    const std::uint64_t words = ceil_div(columns, static_cast<std::uint64_t>(32 / bits_));
    tensors_.push_back({tensor.name + "_packed", FileDType::i32, {rows, words}});
    tensors_.push_back({tensor.name + "_scale", FileDType::f16, {rows, groups}});
    tensors_.push_back({tensor.name + "_shape", FileDType::i64, {2}});
  }
  for (const CheckpointTensor& tensor : source.tensors()) {
    const bool is_packed = detail::is_projection(tensor),
               is_dropped = dropped.contains(tensor.name);
    const std::string problem = is_dropped ? "" : detail::unsaved_problem(tensor);
    check<LoadError>(problem.empty(), "cannot save '", source.name(), "' in integers: '",
                     tensor.name, "', ", tensor.type_name(), " ",
                     detail::shape_string(tensor.shape), ", ", problem);
    if (!is_packed) others_.push_back(tensor.name);
    if (is_packed || is_dropped) continue;
    tensors_.push_back({tensor.name, tensor.dtype, tensor.shape});
    if (tensor.shape.size() == 2 && tensor.name != "lm_head.weight")
      unquantised_.push_back(tensor.name.substr(0, tensor.name.rfind('.')));
  }
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : tensors_) {
    check<LoadError>(names.insert(tensor.name).second, "cannot save '", source.name(),
                     "' in integers: it would have two tensors '", tensor.name, "'");
  }
  check<LoadError>(!matrices_.empty(), "cannot save '", source.name(),
                   "' in integers: it has no matrix of a layer that is named as Qwen3's are, such ",
                   "as 'model.layers.0.self_attn.q_proj.weight'");
}

NANOVLLM_INLINE void PackedWriter::write_texts(const Checkpoint& source) const {
  const std::string path = concat("'", source.path_of("config.json"), "'");
  Json config = parse_json<LoadError>(source.required_text("config.json"), path);
  check<LoadError>(config.is_object(), path, " must be an object");
  config["quantization_config"] = detail::packed_config(bits_, group_columns_, unquantised_);
  detail::write_new_file(temporary_ / "config.json", config.dump() + "\n");
  for (const char* file :
       {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json", "LICENSE"}) {
    if (const auto text = source.text(file)) detail::write_new_file(temporary_ / file, *text);
  }
}

NANOVLLM_INLINE void PackedWriter::copy_others(const Checkpoint& source) const {
  constexpr std::size_t kPanelBytes = 4 << 20;
  for (std::size_t i = 0; i < matrices_.size(); ++i)
    file_->write(detail::kPackedParts * i + 2, 0, std::as_bytes(std::span(matrices_[i].shape)));
  for (std::size_t i = detail::kPackedParts * matrices_.size(); i < tensors_.size(); ++i) {
    const CheckpointTensor& tensor = *source.find(tensors_[i].name);
    for (std::size_t begin = 0; begin < tensor.data.size(); begin += kPanelBytes) {
      const auto panel =
          tensor.data.subspan(begin, std::min(kPanelBytes, tensor.data.size() - begin));
      if (tensor.mapping != nullptr) tensor.mapping->prefetch(panel);
      file_->write(i, begin, panel);
      if (tensor.mapping != nullptr) tensor.mapping->release(panel);
    }
  }
}

NANOVLLM_INLINE void PackedWriter::write_rows(std::size_t index, std::int64_t first_row,
                                              std::span<const std::int8_t> codes,
                                              std::span<const half> scales) const {
  const Matrix& matrix = matrices_[index];
  const std::int64_t columns = matrix.shape[1], groups = groups_of(matrix);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const std::int64_t row = first_row + static_cast<std::int64_t>(i) / groups;
    check<LoadError>(std::isfinite(static_cast<float>(scales[i])), "'", matrix.name,
                     "' has an element in row ", row, " that is not finite, or too large for ",
                     bits_, " bits and a scale of 16");
  }
  const int per_word = 32 / bits_, bias = 1 << (bits_ - 1);
  const std::int64_t across = ceil_div<std::int64_t>(columns, per_word);
  const std::int64_t rows = static_cast<std::int64_t>(codes.size()) / columns;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(rows * across));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int8_t* const row = codes.data() + r * columns;
    std::uint32_t* const to = words.data() + r * across;
    for (std::int64_t c = 0; c < columns; ++c)
      to[c / per_word] |= static_cast<std::uint32_t>(row[c] + bias) << (c % per_word * bits_);
  }
  const auto row = static_cast<std::uint64_t>(first_row);
  const std::size_t part = detail::kPackedParts * index;
  file_->write(part, row * static_cast<std::uint64_t>(across) * sizeof(std::uint32_t),
               std::as_bytes(std::span(words)));
  file_->write(part + 1, row * static_cast<std::uint64_t>(groups) * sizeof(half),
               std::as_bytes(scales));
}

NANOVLLM_INLINE void PackedWriter::finish() {
  file_->finish();
  rename(temporary_, directory_);
  temporary_.clear();
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
