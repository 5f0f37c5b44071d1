#pragma once
/// A checkpoint as the engine, its models and their loaders know it: texts and tensors by name.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint_like.hpp"

namespace nanovllm {

class Checkpoint;

namespace detail {

// `Checkpoint` itself is left out first: whether it is one of these depends on its constructors.
template <class P>
concept CheckpointPath =
    !std::same_as<P, Checkpoint> && std::convertible_to<P, std::filesystem::path>;
template <class C>
concept OtherCheckpoint = !std::same_as<C, Checkpoint> && CheckpointLike<C>;

}  // namespace detail

/// A checkpoint of any kind. Nothing of a directory is read before it is asked for. Copies are
/// cheap and share one state, which lives as long as any copy; every member may be called from
/// several threads at once.
class Checkpoint {
 public:
  /// The checkpoint at `path`: a directory as Hugging Face publishes it, or a GGUF file, which any
  /// file is taken for, and what is not there if its name ends in ".gguf". Throws LoadError where
  /// such a file cannot be read or is malformed, and in a header-only program without
  /// with/gguf/gguf_checkpoint.hpp.
  template <detail::CheckpointPath Path>
  Checkpoint(const Path& path)  // NOLINT(google-explicit-constructor): a path names a checkpoint
      : source_(open(path)) {}

  /// A checkpoint of the user's own kind.
  template <detail::OtherCheckpoint C>
  explicit Checkpoint(C checkpoint) : source_(std::make_shared<Source<C>>(std::move(checkpoint))) {}

  /// The same of one that stands for `base` in another form: they have their warnings in common.
  template <detail::OtherCheckpoint C>
  Checkpoint(C checkpoint, const Checkpoint& base)
      : source_(std::make_shared<Source<C>>(std::move(checkpoint))), warnings_(base.warnings_) {}

  /// For messages, such as its path.
  [[nodiscard]] std::string name() const { return source_->name(); }

  /// A file beside the weights, see `CheckpointLike`; nothing where there is none.
  [[nodiscard]] std::optional<std::string> text(std::string_view file) const {
    return source_->text(file);
  }

  /// The same of a file that there must be. Throws LoadError where there is none.
  [[nodiscard]] std::string required_text(std::string_view file) const;

  /// `file` with the checkpoint's name in front, for messages.
  [[nodiscard]] std::string path_of(std::string_view file) const;

  /// Every tensor, in the order in which they are best read. Throws LoadError for files that are
  /// missing or broken, and for a name that comes twice.
  [[nodiscard]] std::span<const CheckpointTensor> tensors() const { return read().tensors; }

  /// The tensor of that name, or null. Constant time. Throws as `tensors`.
  [[nodiscard]] const CheckpointTensor* find(std::string_view name) const;

  /// Bytes of all tensors. Throws as `tensors`.
  [[nodiscard]] std::uint64_t total_bytes() const { return read().total_bytes; }

  /// Notes that something of the checkpoint is ignored; a text that is noted already is no other.
  void warn(std::string text) const;

  /// What was noted, by this or by a loader, in that order.
  [[nodiscard]] std::vector<std::string> warnings() const;

 private:
  struct AnySource {
    virtual ~AnySource() = default;
    [[nodiscard]] virtual std::string name() const = 0;
    [[nodiscard]] virtual std::optional<std::string> text(std::string_view file) const = 0;
    [[nodiscard]] virtual std::vector<CheckpointTensor> read_tensors() = 0;
    [[nodiscard]] virtual std::vector<std::string> warnings() const = 0;

    std::mutex mutex;  // of the next; they do not change once they are read
    bool is_read = false;
    std::vector<CheckpointTensor> tensors;
    std::unordered_map<std::string_view, std::size_t> by_name;  // keys view `tensors`
    std::uint64_t total_bytes = 0;
  };

  template <class C>
  struct Source final : AnySource {
    explicit Source(C given) : checkpoint(std::move(given)) {}
    [[nodiscard]] std::string name() const override { return checkpoint.name(); }
    [[nodiscard]] std::optional<std::string> text(std::string_view file) const override {
      return checkpoint.text(file);
    }
    [[nodiscard]] std::vector<CheckpointTensor> read_tensors() override {
      return checkpoint.read_tensors();
    }
    [[nodiscard]] std::vector<std::string> warnings() const override {
      if constexpr (requires { std::vector<std::string>(checkpoint.warnings()); })
        return checkpoint.warnings();
      return {};
    }

    C checkpoint;
  };

  struct Warnings {
    std::mutex mutex;
    std::vector<std::string> list;
  };

  /// Chooses the kind of checkpoint.
  [[nodiscard]] static std::shared_ptr<AnySource> open(const std::filesystem::path& path);

  /// With its tensors.
  [[nodiscard]] const AnySource& read() const;

  std::shared_ptr<AnySource> source_;
  std::shared_ptr<Warnings> warnings_ = std::make_shared<Warnings>();
};

namespace detail {

[[nodiscard]] Checkpoint open_gguf(const std::filesystem::path& path);
NANOVLLM_DOOR(open_gguf);

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <system_error>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/safetensors_checkpoint.hpp"

namespace nanovllm {

NANOVLLM_INLINE std::shared_ptr<Checkpoint::AnySource> Checkpoint::open(
    const std::filesystem::path& path) {
  std::error_code ignored;  // what cannot be looked at cannot be opened: that names it
  const bool is_directory = std::filesystem::is_directory(path, ignored);
  if (std::filesystem::is_regular_file(path, ignored) ||
      (path.extension() == ".gguf" && !is_directory))
    return detail::through<LoadError>(detail::open_gguf_door, "nanovllm/with/gguf.hpp", "'",
                                      path.string(), "', a GGUF file,")(path)
        .source_;
  return std::make_shared<Source<SafetensorsCheckpoint>>(SafetensorsCheckpoint(path));
}

NANOVLLM_INLINE std::string Checkpoint::path_of(std::string_view file) const {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(name(), ignored)) return concat(file, " of ", name());
  return (std::filesystem::path(name()) / file).string();
}

NANOVLLM_INLINE std::string Checkpoint::required_text(std::string_view file) const {
  std::optional<std::string> out = text(file);
  check<LoadError>(out.has_value(), "there is no '", path_of(file), "'");
  return *std::move(out);
}

NANOVLLM_INLINE const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const AnySource& source = read();
  const auto found = source.by_name.find(name);
  return found == source.by_name.end() ? nullptr : &source.tensors[found->second];
}

NANOVLLM_INLINE void Checkpoint::warn(std::string text) const {
  text = without_nuls(std::move(text));
  const std::lock_guard lock(warnings_->mutex);
  std::vector<std::string>& list = warnings_->list;
  if (std::ranges::find(list, text) == list.end()) list.push_back(std::move(text));
}

NANOVLLM_INLINE std::vector<std::string> Checkpoint::warnings() const {
  const std::lock_guard lock(warnings_->mutex);
  return warnings_->list;
}

namespace detail {

/// Throws LoadError unless the bytes of a tensor are as many as its type and shape need.
NANOVLLM_INLINE void check_size(const CheckpointTensor& tensor, const std::string& checkpoint) {
  std::uint64_t bits = size_bits(tensor.dtype);
  std::vector<std::uint64_t> shape = tensor.shape;
  bool fits = true;
  if (const BlockFormat* blocks = tensor.blocks; blocks != nullptr) {
    fits = blocks->elements > 0 && blocks->elements <= kMaxBlockElements && blocks->bytes > 0 &&
           !shape.empty() && shape.back() % blocks->elements == 0;
    if (fits) shape.back() /= blocks->elements;
    bits = std::uint64_t{8} * blocks->bytes;
  }
  for (const std::uint64_t extent : shape)
    fits = fits && !__builtin_mul_overflow(bits, extent, &bits);
  check<LoadError>(fits && bits % 8 == 0 && bits / 8 == tensor.data.size(), "'", checkpoint,
                   "': the tensor '", tensor.name, "', ", tensor.type_name(), " ",
                   shape_string(tensor.shape), ", has ", tensor.data.size(), " bytes");
}

}  // namespace detail

NANOVLLM_INLINE const Checkpoint::AnySource& Checkpoint::read() const {
  AnySource& source = *source_;
  const std::lock_guard lock(source.mutex);
  if (source.is_read) return source;
  source.tensors = source.read_tensors();
  for (std::string& warning : source.warnings()) warn(std::move(warning));
  source.by_name.clear();
  source.total_bytes = 0;
  for (const CheckpointTensor& tensor : source.tensors) {
    detail::check_size(tensor, name());
    const bool is_new = source.by_name.emplace(tensor.name, source.by_name.size()).second;
    check<LoadError>(is_new, "'", name(), "' has the tensor '", tensor.name, "' twice");
    source.total_bytes += tensor.data.size();
  }
  source.is_read = true;
  return source;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
