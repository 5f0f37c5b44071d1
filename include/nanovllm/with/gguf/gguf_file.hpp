#pragma once
/// Reads a GGUF file, versions 2 and 3, little-endian.
///
/// A file is "GGUF", a u32 version, the numbers of tensors and of metadata entries as u64, the
/// entries (key, type, value), the tensors' descriptions (name, dimensions, type, offset), zeros up
/// to a multiple of the alignment, and the tensors' bytes. Strings have a u64 length in front.
/// Every length, count and offset is checked against the bytes that there are before it is used.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/mapped_file.hpp"
#include "nanovllm/with/gguf/gguf_metadata.hpp"
#include "nanovllm/with/gguf/gguf_types.hpp"

namespace nanovllm {

/// One tensor of a file. Its last extent is a multiple of the elements of a block.
struct GgufTensor {
  std::string_view name{};  ///< in the file
  const GgufTensorType* type = nullptr;
  std::vector<std::uint64_t> shape{};  ///< row-major, so reverse to the file's order
  std::uint64_t begin = 0;             ///< byte offset from the first tensor's
  std::uint64_t size = 0;              ///< in bytes
};

/// One GGUF file, mapped into memory. Moving it keeps every view valid, but not `mapping()`. Const
/// members may be called from several threads at once.
class GgufFile {
 public:
  /// Maps and checks the file at `path`. Throws LoadError that names the path, the place, what was
  /// expected and what came.
  explicit GgufFile(const std::filesystem::path& path);

  /// Checks a file that is already in memory; `bytes` must outlive the result.
  /// @param name  of the file, for messages.
  [[nodiscard]] static GgufFile parse(std::span<const std::byte> bytes, std::string name = "GGUF") {
    GgufFile out;
    out.read(bytes, std::move(name));
    return out;
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const GgufMetadata& metadata() const { return metadata_; }

  /// Every tensor, in the order of their bytes in the file. No two share a byte or a name.
  [[nodiscard]] std::span<const GgufTensor> tensors() const { return tensors_; }

  /// The tensor of that name, or null. Constant time.
  [[nodiscard]] const GgufTensor* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
  }

  /// The bytes of one of `tensors()`. They may lie at any address: copy, do not cast.
  [[nodiscard]] std::span<const std::byte> data(const GgufTensor& tensor) const {
    return data_.subspan(tensor.begin, tensor.size);
  }

  /// The file that `data` is mapped from, or null when it was parsed from memory.
  [[nodiscard]] const MappedFile* mapping() const {
    return file_.bytes().empty() ? nullptr : &file_;
  }

 private:
  GgufFile() = default;

  void read(std::span<const std::byte> bytes, std::string name);

  MappedFile file_;
  std::string name_;
  GgufMetadata metadata_;
  std::span<const std::byte> data_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/sort.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/io/file_dtype.hpp"

namespace nanovllm {

namespace detail {

/// Reads a file from front to back. Every fault is a LoadError.
class GgufReader {
 public:
  GgufReader(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes), name_(name) {}

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw LoadError(concat("'", name_, "', byte ", position_, ": ", parts...));
  }

  [[nodiscard]] std::size_t position() const { return position_; }
  [[nodiscard]] std::size_t left() const { return bytes_.size() - position_; }
  [[nodiscard]] std::span<const std::byte> since(std::size_t begin) const {
    return bytes_.subspan(begin, position_ - begin);
  }

  /// The next `size` bytes.
  /// @param what  names them in messages.
  template <class... Parts>
  std::span<const std::byte> take(std::uint64_t size, const Parts&... what) {
    if (size > left()) fail(concat(what...), " needs ", size, " bytes, but ", left(), " follow");
    position_ += static_cast<std::size_t>(size);
    return bytes_.subspan(position_ - static_cast<std::size_t>(size),
                          static_cast<std::size_t>(size));
  }

  template <class T, class... Parts>
  T number(const Parts&... what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what...).data(), sizeof(T));
    return value;
  }

  template <class... Parts>
  std::string_view string(const Parts&... what) {
    const auto length = number<std::uint64_t>("the length of ", what...);
    const std::span<const std::byte> text = take(length, what...);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  /// A string that is UTF-8.
  template <class... Parts>
  std::string_view text(const Parts&... what) {
    const std::string_view out = string(what...);
    if (const std::size_t valid = utf8::valid_prefix(out); valid != out.size())
      fail(concat(what...), " must be UTF-8, and is not at its byte ", valid);
    return out;
  }

  /// A number of things that take at least `min_bytes` each.
  std::uint64_t count(std::uint64_t min_bytes, std::string_view what) {
    const auto out = number<std::uint64_t>("the number of ", what);
    if (out > left() / min_bytes)
      fail("the file claims ", out, " ", what, " of at least ", min_bytes, " bytes each, but ",
           left(), " bytes follow");
    return out;
  }

  /// The value that belongs to `key`.
  GgufValue value(std::string_view key) {
    GgufValue out;
    out.type = value_type(key);
    if (out.type == GgufValueType::array) {
      out.is_array = true;
      out.type = value_type(key);
      if (out.type == GgufValueType::array) fail("'", key, "' is an array of arrays");
      out.count = number<std::uint64_t>("the length of '", key, "'");
    }
    const std::size_t begin = position_;
    if (out.type == GgufValueType::string) {
      for (std::uint64_t i = 0; i < out.count; ++i) string("'", key, "'");
    } else {
      const std::uint64_t item = kGgufValues[static_cast<std::size_t>(out.type)].bytes;
      if (out.count > left() / item)
        fail("'", key, "' has ", out.count, " values of ", item, " bytes, but ", left(),
             " bytes follow");
      take(out.count * item, "'", key, "'");
    }
    out.bytes = since(begin);
    return out;
  }

 private:
  GgufValueType value_type(std::string_view key) {
    const auto type = number<std::uint32_t>("the type of '", key, "'");
    if (type >= kGgufValues.size())
      fail("the type of '", key, "' must be in [0, ", kGgufValues.size(), "), got ", type);
    return static_cast<GgufValueType>(type);
  }

  std::span<const std::byte> bytes_;
  const std::string& name_;
  std::size_t position_ = 0;
};

/// Reads what stands before the metadata. Gives the numbers of tensors and of metadata entries.
NANOVLLM_INLINE std::pair<std::uint64_t, std::uint64_t> read_gguf_head(GgufReader& reader) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::uint64_t kMinTensor = 24, kMinEntry = 13;  // with names of no letters
  const auto magic = reader.number<std::uint32_t>("\"GGUF\"");
  if (magic != 0x46554747u)
    reader.fail("the file must begin with \"GGUF\"; a checkpoint is a directory or a GGUF file");
  const auto version = reader.number<std::uint32_t>("the version");
  if (version == 0x02000000u || version == 0x03000000u)
    reader.fail("the file is big-endian; only little-endian files are supported");
  if (version != 2 && version != 3) reader.fail("the version must be 2 or 3, got ", version);
  const std::uint64_t num_tensors = reader.count(kMinTensor, "tensors");
  return {num_tensors, reader.count(kMinEntry, "metadata entries")};
}

/// Reads the description of one tensor.
NANOVLLM_INLINE GgufTensor read_gguf_tensor(GgufReader& reader) {
  constexpr std::uint32_t kMaxDimensions = 4;
  GgufTensor out{.name = reader.text("a tensor's name")};
  const auto num_dimensions =
      reader.number<std::uint32_t>("the number of dimensions of '", out.name, "'");
  if (num_dimensions > kMaxDimensions)
    reader.fail("'", out.name, "' has ", num_dimensions, " dimensions; at most ", kMaxDimensions,
                " are possible");
  for (std::uint32_t i = 0; i < num_dimensions; ++i)
    out.shape.push_back(reader.number<std::uint64_t>("a dimension of '", out.name, "'"));
  std::ranges::reverse(out.shape);  // the file has that of the row first
  const auto type = reader.number<std::uint32_t>("the type of '", out.name, "'");
  out.type = find_gguf_type(type);
  if (out.type == nullptr)
    reader.fail("'", out.name, "' is of type ", type, ", which is not known");
  out.begin = reader.number<std::uint64_t>("the offset of '", out.name, "'");

  const std::uint64_t row = out.shape.empty() ? 1 : out.shape.back();
  if (row % out.type->elements != 0)
    reader.fail("'", out.name, "' is ", out.type->name, " with rows of ", row,
                " elements; they must be a multiple of ", out.type->elements);
  out.size = row / out.type->elements;
  bool fits = !__builtin_mul_overflow(out.size, out.type->bytes, &out.size);
  for (std::size_t i = 0; i + 1 < out.shape.size(); ++i)
    fits = fits && !__builtin_mul_overflow(out.size, out.shape[i], &out.size);
  if (!fits)
    reader.fail("'", out.name, "', ", out.type->name, " ", shape_string(out.shape),
                ", has more than 2^64 bytes");
  return out;
}

/// Throws unless the tensors, in the order of their bytes, lie in the file and apart.
NANOVLLM_INLINE void check_gguf_places(std::span<const GgufTensor> tensors, std::uint64_t num_bytes,
                                       std::uint64_t alignment, const std::string& file) {
  const GgufTensor* before = nullptr;
  for (const GgufTensor& tensor : tensors) {
    const auto require = [&](bool condition, const auto&... parts) {
      check<LoadError>(condition, "'", file, "': the offset of '", tensor.name, "' (",
                       tensor.type->name, " ", shape_string(tensor.shape), ", ", tensor.size,
                       " bytes) is ", tensor.begin, parts...);
    };
    require(tensor.begin % alignment == 0, "; it must be a multiple of ", alignment);
    require(tensor.begin <= num_bytes && tensor.size <= num_bytes - tensor.begin, ", but only ",
            num_bytes, " bytes follow the descriptions");
    if (tensor.size == 0) continue;
    if (before != nullptr)
      require(before->begin + before->size <= tensor.begin, ", but '", before->name, "' ends at ",
              before->begin + before->size);
    before = &tensor;
  }
}

}  // namespace detail

NANOVLLM_INLINE GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
  read(file_.bytes(), path.string());
  file_.advise_sequential();
}

NANOVLLM_INLINE void GgufFile::read(std::span<const std::byte> bytes, std::string name) {
  name_ = std::move(name);
  metadata_ = GgufMetadata(name_);
  detail::GgufReader reader(bytes, name_);
  const auto [num_tensors, num_entries] = detail::read_gguf_head(reader);
  for (std::uint64_t i = 0; i < num_entries; ++i) {
    const std::string_view key = reader.text("the key of metadata entry ", i);
    if (!metadata_.add(key, reader.value(key))) reader.fail("'", key, "' comes twice");
  }
  constexpr const char* kAlignment = "general.alignment";
  const std::int64_t alignment = metadata_.integer(kAlignment).value_or(32);
  if (alignment <= 0 || !std::has_single_bit(static_cast<std::uint64_t>(alignment)) ||
      alignment > (1 << 30))
    reader.fail("'", kAlignment, "' must be a power of two up to 2^30, got ", alignment);

  for (std::uint64_t i = 0; i < num_tensors; ++i)
    tensors_.push_back(detail::read_gguf_tensor(reader));
  const auto align = static_cast<std::uint64_t>(alignment);
  const std::uint64_t padding = (align - reader.position() % align) % align;
  if (num_tensors > 0) {
    reader.take(padding, "the padding ahead of the tensors");
    data_ = bytes.subspan(reader.position());
  }
  sort_stably(tensors_, [](const GgufTensor& a, const GgufTensor& b) {
    return std::tie(a.begin, a.size) < std::tie(b.begin, b.size);
  });
  detail::check_gguf_places(tensors_, data_.size(), align, name_);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    check<LoadError>(by_name_.emplace(tensors_[i].name, i).second, "'", name_, "' has the tensor '",
                     tensors_[i].name, "' twice");
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
