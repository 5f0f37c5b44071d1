#pragma once
/// Builds safetensors files, valid and broken ones, for tests.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm_test {

/// A header and data as one file's bytes; nothing is checked.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = {}) {
  const std::uint64_t n = header.size();
  std::string out(sizeof n, '\0');
  std::memcpy(out.data(), &n, sizeof n);
  return out.append(header).append(data);
}

/// Collects tensors and lays them out one after another.
class SafetensorsWriter {
 public:
  /// `dtype` as the format spells it; `data` are the tensor's bytes.
  SafetensorsWriter& add(const std::string& name, const std::string& dtype,
                         const std::vector<std::int64_t>& shape, std::string_view data) {
    header_[name] = {{"dtype", dtype},
                     {"shape", shape},
                     {"data_offsets", {data_.size(), data_.size() + data.size()}}};
    data_.append(data);
    return *this;
  }

  /// The same from elements.
  template <class T>
  SafetensorsWriter& add(const std::string& name, const std::string& dtype,
                         const std::vector<std::int64_t>& shape, const std::vector<T>& elements) {
    return add(name, dtype, shape,
               std::string_view(reinterpret_cast<const char*>(elements.data()),
                                elements.size() * sizeof(T)));
  }

  /// Pads the header by `padding` spaces, which shifts the data's alignment.
  std::string bytes(std::size_t padding = 0) const {
    return safetensors_bytes(header_.dump() + std::string(padding, ' '), data_);
  }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

/// A directory that lives as long as the test that made it.
class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "nanovllm-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Writes `content` to file `name` and gives its path.
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + name);
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace nanovllm_test
