#pragma once
/// Reads a safetensors file.
///
/// A file is a little-endian u64 n, n bytes of JSON, then the tensors' bytes. The checks, their
/// order and their names are those of the format's own library, so that a file is refused here for
/// the reason it is refused there. (Two forms that the library's JSON layer takes by accident, an
/// entry written as an array and a dtype written as an object, are refused.)

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/mapped_file.hpp"
#include "nanovllm/io/safetensors_header.hpp"

namespace nanovllm {

/// One safetensors file, mapped into memory. Moving it keeps every view valid. Const members may be
/// called from several threads at once.
class SafetensorsFile {
 public:
  /// Maps and checks the file at `path`. Throws LoadError when it cannot be read, SafetensorsError
  /// when it is not valid; both name the path.
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// Checks a file that is already in memory; `bytes` must outlive the result. Throws
  /// SafetensorsError.
  [[nodiscard]] static SafetensorsFile parse(std::span<const std::byte> bytes) {
    SafetensorsFile out;
    out.read(bytes);
    return out;
  }

  /// Empty when the file was parsed from memory.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Every tensor, in the order of their bytes in the file.
  [[nodiscard]] std::span<const TensorInfo> tensors() const { return tensors_; }

  /// The tensor of that name, or null. Constant time.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
  }

  /// The bytes of one of `tensors()`. They may lie at any address: copy, do not cast.
  [[nodiscard]] std::span<const std::byte> data(const TensorInfo& tensor) const {
    return data_.subspan(tensor.begin, tensor.end - tensor.begin);
  }

  /// The file that `data` is mapped from, or null when it was parsed from memory.
  [[nodiscard]] const MappedFile* mapping() const {
    return file_.bytes().empty() ? nullptr : &file_;
  }

 private:
  SafetensorsFile() = default;

  void read(std::span<const std::byte> bytes);

  MappedFile file_;
  std::filesystem::path path_;
  std::span<const std::byte> data_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  ///< keys view `tensors_`
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <bit>
#include <cstring>
namespace nanovllm {

NANOVLLM_INLINE SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), path_(path) {
  try {
    read(file_.bytes());
  } catch (const SafetensorsError& error) {
    throw SafetensorsError(error.kind, concat("'", path.string(), "': ", error.what()));
  }
  file_.advise_sequential();
}

NANOVLLM_INLINE void SafetensorsFile::read(std::span<const std::byte> bytes) {
  using Kind = SafetensorsError::Kind;
  static_assert(std::endian::native == std::endian::little);
  constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
  std::uint64_t n = 0;
  if (bytes.size() < sizeof n) {
    throw SafetensorsError(Kind::header_too_small,
                           concat("a file has at least 8 bytes, got ", bytes.size()));
  }
  std::memcpy(&n, bytes.data(), sizeof n);
  if (n > kMaxHeaderBytes) {
    throw SafetensorsError(Kind::header_too_large, concat("the header may have ", kMaxHeaderBytes,
                                                          " bytes, but claims ", n));
  }
  if (n > bytes.size() - sizeof n) {
    throw SafetensorsError(
        Kind::invalid_header_length,
        concat("the header claims ", n, " bytes, but ", bytes.size() - sizeof n, " follow"));
  }
  const auto header = bytes.subspan(sizeof n, n);
  data_ = bytes.subspan(sizeof n + n);
  tensors_ = detail::parse_safetensors_header(
      {reinterpret_cast<const char*>(header.data()), header.size()}, data_.size());
  by_name_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
