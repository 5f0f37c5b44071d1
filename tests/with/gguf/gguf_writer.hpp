#pragma once
/// Builds GGUF files, valid and broken ones, for tests.

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/with/gguf/gguf_types.hpp"

namespace nanovllm_test {

/// The bytes of a number.
template <class T>
std::string raw(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

/// A string as the format has it.
inline std::string gguf_string(std::string_view text) {
  return raw(std::uint64_t{text.size()}).append(text);
}

/// Collects metadata and tensors; nothing is checked.
class GgufWriter {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;    ///< that the file is laid out by
  std::uint64_t more_tensors = 0;  ///< that the header claims
  std::uint64_t more_entries = 0;

  GgufWriter& add_raw(std::string_view key, std::uint32_t type, std::string_view value) {
    entries_ += gguf_string(key) + raw(type);
    entries_ += value;
    ++num_entries_;
    return *this;
  }
  template <class T>
  GgufWriter& add(std::string_view key, nanovllm::GgufValueType type, T value) {
    return add_raw(key, static_cast<std::uint32_t>(type), raw(value));
  }
  GgufWriter& add(std::string_view key, std::string_view value) {
    return add_raw(key, 8, gguf_string(value));
  }
  GgufWriter& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  GgufWriter& add(std::string_view key, std::uint32_t value) { return add_raw(key, 4, raw(value)); }
  GgufWriter& add(std::string_view key, float value) { return add_raw(key, 6, raw(value)); }
  GgufWriter& add(std::string_view key, bool value) { return add_raw(key, 7, raw(value)); }
  GgufWriter& add_strings(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = raw(std::uint32_t{8}) + raw(std::uint64_t{values.size()});
    for (const std::string& value : values) bytes += gguf_string(value);
    return add_raw(key, 9, bytes);
  }
  template <class T>
  GgufWriter& add_array(std::string_view key, nanovllm::GgufValueType type,
                        const std::vector<T>& values) {
    std::string bytes = raw(static_cast<std::uint32_t>(type)) + raw(std::uint64_t{values.size()});
    for (const T value : values) bytes += raw(value);
    return add_raw(key, 9, bytes);
  }

  /// `shape` is row-major; `data` are the tensor's bytes.
  GgufWriter& add_tensor(std::string_view name, std::uint32_t type,
                         const std::vector<std::uint64_t>& shape, std::string_view data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    describe(name, type, shape, data_.size());
    data_ += data;
    return *this;
  }
  /// The description alone.
  GgufWriter& describe(std::string_view name, std::uint32_t type,
                       const std::vector<std::uint64_t>& shape, std::uint64_t offset) {
    tensors_ += gguf_string(name) + raw(static_cast<std::uint32_t>(shape.size()));
    for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent) tensors_ += raw(*extent);
    tensors_ += raw(type) + raw(offset);
    ++num_tensors_;
    return *this;
  }

  std::string bytes() const {
    std::string out = "GGUF" + raw(version) + raw(num_tensors_ + more_tensors) +
                      raw(num_entries_ + more_entries) + entries_ + tensors_;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data_;
  }

 private:
  std::string entries_, tensors_, data_;
  std::uint64_t num_entries_ = 0, num_tensors_ = 0;
};

}  // namespace nanovllm_test
