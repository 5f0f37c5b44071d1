#pragma once
/// Reads and writes the structs of c/nanovllm.h for callers of any version of the header; errors.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "nanovllm/c/nanovllm.h"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm::c_api {

/// NVLLM_ERROR_INVALID.
struct InvalidError : Error {
  using Error::Error;
};
/// NVLLM_ERROR_UNSUPPORTED.
struct UnsupportedError : Error {
  using Error::Error;
};
/// NVLLM_ERROR_BUSY.
struct BusyError : Error {
  using Error::Error;
};

/// No version has a larger struct, so memory beyond this size is never read.
inline constexpr std::size_t kMaxStructSize = 4096;

/// What this file knows of a type: its name, and the size that every version has at least.
template <class Struct>
struct StructTraits;

template <>
struct StructTraits<nvllm_engine_config> {
  static constexpr const char* kName = "nvllm_engine_config";
  static constexpr std::size_t kMinSize = offsetof(nvllm_engine_config, device);
};
template <>
struct StructTraits<nvllm_sampling_params> {
  static constexpr const char* kName = "nvllm_sampling_params";
  static constexpr std::size_t kMinSize = offsetof(nvllm_sampling_params, seed);
};
template <>
struct StructTraits<nvllm_request> {
  static constexpr const char* kName = "nvllm_request";
  static constexpr std::size_t kMinSize = offsetof(nvllm_request, text_size);
};
template <>
struct StructTraits<nvllm_embed_options> {
  static constexpr const char* kName = "nvllm_embed_options";
  static constexpr std::size_t kMinSize = offsetof(nvllm_embed_options, dimensions);
};
template <>
struct StructTraits<nvllm_score_options> {
  static constexpr const char* kName = "nvllm_score_options";
  static constexpr std::size_t kMinSize = offsetof(nvllm_score_options, instruction);
};
template <>
struct StructTraits<nvllm_stats> {
  static constexpr const char* kName = "nvllm_stats";
  static constexpr std::size_t kMinSize = offsetof(nvllm_stats, num_waiting);
};
template <>
struct StructTraits<nvllm_health> {
  static constexpr const char* kName = "nvllm_health";
  static constexpr std::size_t kMinSize = offsetof(nvllm_health, seconds);
};
template <>
struct StructTraits<nvllm_info> {
  static constexpr const char* kName = "nvllm_info";
  static constexpr std::size_t kMinSize = offsetof(nvllm_info, vocab_size);
};

/// Throws InvalidError unless `pointer` is one.
template <class T>
void check_pointer(const T* pointer, const char* name) {
  check<InvalidError>(pointer != nullptr, name, " must not be NULL");
}

/// The size that the caller's header gives a struct. Throws InvalidError for none, and for one that
/// no version has: structs consist of whole 8 bytes, so that a field never lies where an older
/// version has padding.
template <class Struct>
[[nodiscard]] std::size_t checked_size(const Struct* given) {
  using Traits = StructTraits<Struct>;
  check_pointer(given, Traits::kName);
  const std::size_t size = given->struct_size;
  check<InvalidError>(size >= Traits::kMinSize && size <= kMaxStructSize && size % 8 == 0,
                      Traits::kName, ": struct_size must be a multiple of 8 in [", Traits::kMinSize,
                      ", ", kMaxStructSize, "], got ", size, "; sizeof(", Traits::kName,
                      ") of this library is ", sizeof(Struct));
  return size;
}

/// A caller's struct as one of this version. Fields that an older one lacks are zero, the default.
/// Throws UnsupportedError for a newer one with a field set that this version does not know.
template <class Struct>
[[nodiscard]] Struct read_struct(const Struct* given) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % 8 == 0);
  const std::size_t size = checked_size(given);
  Struct out{};
  std::memcpy(&out, given, std::min(size, sizeof(Struct)));
  const std::string_view bytes(reinterpret_cast<const char*>(given), size);
  const std::size_t unknown = bytes.find_first_not_of('\0', std::min(size, sizeof(Struct)));
  check<UnsupportedError>(unknown == std::string_view::npos, StructTraits<Struct>::kName, ": byte ",
                          unknown, " is set, of a field after the ", sizeof(Struct),
                          " bytes that this version of the library knows");
  out.struct_size = sizeof(Struct);
  return out;
}

/// Writes as much of `value` as the caller's struct has room for. The rest of it becomes zero, and
/// its `struct_size` the number of bytes that were written.
template <class Struct>
void write_struct(Struct* to, Struct value) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % 8 == 0);
  const std::size_t size = checked_size(to);
  value.struct_size = std::min(size, sizeof(Struct));
  auto* const bytes = reinterpret_cast<char*>(to);
  std::memcpy(bytes, &value, value.struct_size);
  std::memset(bytes + value.struct_size, 0, size - value.struct_size);
}

/// A field that is 0 or 1. Throws InvalidError naming it otherwise.
[[nodiscard]] inline bool read_flag(std::int32_t value, const char* name) {
  check<InvalidError>(value == 0 || value == 1, name, " must be 0 or 1, got ", value);
  return value == 1;
}

inline void check_reserved(std::int32_t value, const char* struct_name,
                           const char* field = "reserved") {
  check<UnsupportedError>(value == 0, struct_name, ": ", field, " must be 0, got ", value);
}

/// The longest prefix of `text` that fits into `capacity` bytes with a zero byte after it. Of UTF-8
/// it ends with a whole character.
[[nodiscard]] inline std::string_view fitting(std::string_view text, std::size_t capacity) {
  if (text.size() < capacity) return text;
  const std::string_view cut = text.substr(0, capacity - 1);
  return cut.substr(0, utf8::complete_prefix(cut));
}

/// Writes that prefix and the zero byte; nothing if `capacity` is 0.
inline void copy_text(std::string_view text, char* to, std::size_t capacity) {
  if (capacity == 0) return;
  const std::string_view part = fitting(text, capacity);
  std::memcpy(to, part.data(), part.size());
  to[part.size()] = '\0';
}

}  // namespace nanovllm::c_api
