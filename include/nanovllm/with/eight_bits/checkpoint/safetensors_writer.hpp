#pragma once
/// Writes a safetensors file whose tensors are known by name, type and shape before their bytes.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/safetensors_header.hpp"

namespace nanovllm {

/// One new file, whose tensors are written in pieces and in any order. It is the caller's to remove
/// a file that is not finished. Little-endian hosts only.
class SafetensorsFileWriter {
 public:
  /// Makes the file and reserves room for all of it, so that a full disk is known at once. Tensors
  /// lie as given, but for those of larger elements, which come first: then all lie at multiples of
  /// their elements. `begin` and `end` of the tensors are not read. Throws Error that names the
  /// path and the reason where the file is there already or cannot be made.
  SafetensorsFileWriter(std::filesystem::path path, std::vector<TensorInfo> tensors);
  ~SafetensorsFileWriter();

  SafetensorsFileWriter(const SafetensorsFileWriter&) = delete;
  SafetensorsFileWriter& operator=(const SafetensorsFileWriter&) = delete;

  /// Writes bytes of tensor `index` of those given, from its byte `offset` on. Several threads may
  /// write at once. Throws Error when it cannot, or when they reach beyond the tensor's end.
  void write(std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes) const;

  /// All tensors are written: brings the file to the disk. Throws Error when it cannot.
  void finish();

 private:
  void put(std::uint64_t offset, std::span<const std::byte> bytes) const;
  [[noreturn]] void fail() const;

  std::filesystem::path path_;
  std::vector<TensorInfo> tensors_;  // with their places in the file
  int file_ = -1;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <system_error>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/sort.hpp"
#include "nanovllm/io/json_value.hpp"
#include "nanovllm/io/json_writer.hpp"

namespace nanovllm {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace detail {

/// Gives each tensor its place, and returns the header's text.
NANOVLLM_INLINE std::string place_tensors(std::vector<TensorInfo>& tensors) {
  const auto is_larger = [&](std::size_t a, std::size_t b) {
    return size_bits(tensors[a].dtype) > size_bits(tensors[b].dtype);
  };
  std::string out = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t offset = 0;
  for (const std::size_t i : stable_order(tensors.size(), is_larger)) {
    TensorInfo& tensor = tensors[i];
    std::uint64_t bits = size_bits(tensor.dtype);
    for (const std::uint64_t extent : tensor.shape) bits *= extent;
    tensor.begin = offset;
    tensor.end = offset += bits / 8;
    out += ',';
    append_json_string(out, tensor.name);
    out += concat(R"(:{"dtype":")", name(tensor.dtype), R"(","shape":)", shape_string(tensor.shape),
                  R"(,"data_offsets":[)", tensor.begin, ',', tensor.end, "]}");
  }
  out += '}';
  out.resize(align_up(out.size(), std::size_t{8}), ' ');
  return out;
}

}  // namespace detail

NANOVLLM_INLINE SafetensorsFileWriter::SafetensorsFileWriter(std::filesystem::path path,
                                                             std::vector<TensorInfo> tensors)
    : path_(std::move(path)), tensors_(std::move(tensors)) {
  const std::string header = detail::place_tensors(tensors_);
  const std::uint64_t length = header.size();
  std::uint64_t size = sizeof length + length;
  for (TensorInfo& tensor : tensors_) {
    tensor.begin += sizeof length + length;
    size = std::max(size, tensor.end += sizeof length + length);
  }
  constexpr int kMode = 0666;  // less what the umask takes
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (file_ < 0) fail();
  try {
#if defined(__linux__)  // a file system that cannot reserve room runs out of it in a write
    const bool is_reserved = ::fallocate(file_, 0, 0, static_cast<off_t>(size)) == 0;
    if (!is_reserved && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO))
      fail();
#endif
    put(0, std::as_bytes(std::span(&length, 1)));
    put(sizeof length, std::as_bytes(std::span(header)));
  } catch (...) {  // a constructor that throws has no destructor
    ::close(file_);
    throw;
  }
}

NANOVLLM_INLINE SafetensorsFileWriter::~SafetensorsFileWriter() {
  if (file_ >= 0) ::close(file_);
}

NANOVLLM_INLINE void SafetensorsFileWriter::write(std::size_t index, std::uint64_t offset,
                                                  std::span<const std::byte> bytes) const {
  const TensorInfo& tensor = tensors_[index];
  const std::uint64_t size = tensor.end - tensor.begin;
  check(offset <= size && bytes.size() <= size - offset, "cannot write '", path_.string(), "': '",
        tensor.name, "' has ", size, " bytes, got ", bytes.size(), " at ", offset);
  put(tensor.begin + offset, bytes);
}

NANOVLLM_INLINE void SafetensorsFileWriter::finish() {
  if (::fsync(file_) != 0) fail();
  if (::close(std::exchange(file_, -1)) != 0) fail();
}

NANOVLLM_INLINE void SafetensorsFileWriter::put(std::uint64_t offset,
                                                std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail();
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

NANOVLLM_INLINE void SafetensorsFileWriter::fail() const {
  throw Error(
      concat("cannot write '", path_.string(), "': ", std::generic_category().message(errno)));
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
