#pragma once
/// The JSON header of a safetensors file: what it may say, and its reader.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/file_dtype.hpp"

namespace nanovllm {

/// One tensor of a file. `begin` and `end` are byte offsets from the end of the header.
struct TensorInfo {
  std::string name;
  FileDType dtype{};
  std::vector<std::uint64_t> shape;  ///< empty for a scalar; an extent may be 0
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A file is not valid safetensors. `kind` says which check refused it.
struct SafetensorsError : LoadError {
  enum class Kind : std::uint8_t {
    header_too_small,                ///< fewer than 8 bytes
    header_too_large,                ///< the header claims more than 100,000,000 bytes
    invalid_header_length,           ///< the header reaches past the end of the file
    invalid_header,                  ///< the header is not UTF-8
    invalid_header_deserialization,  ///< not JSON, or not the JSON of this format
    invalid_offset,                  ///< a hole, an overlap, or an end before its begin
    validation_overflow,             ///< a tensor's size in bits exceeds 64 bits
    misaligned_slice,                ///< a tensor of sub-byte elements ends inside a byte
    tensor_invalid_info,             ///< the offsets do not span what dtype and shape need
    metadata_incomplete_buffer,      ///< the tensors do not end where the file ends
  };

  SafetensorsError(Kind kind_in, const std::string& message) : LoadError(message), kind(kind_in) {}

  Kind kind;
};

/// The name that the format's own library gives to this refusal, such as "InvalidOffset".
[[nodiscard]] constexpr std::string_view name(SafetensorsError::Kind kind) {
  using enum SafetensorsError::Kind;
  switch (kind) {
    case header_too_small: return "HeaderTooSmall";
    case header_too_large: return "HeaderTooLarge";
    case invalid_header_length: return "InvalidHeaderLength";
    case invalid_header: return "InvalidHeader";
    case invalid_header_deserialization: return "InvalidHeaderDeserialization";
    case invalid_offset: return "InvalidOffset";
    case validation_overflow: return "ValidationOverflow";
    case misaligned_slice: return "MisalignedSlice";
    case tensor_invalid_info: return "TensorInvalidInfo";
    case metadata_incomplete_buffer: return "MetadataIncompleteBuffer";
  }
  return "?";
}

namespace detail {

/// The tensors that header `json` describes, in the order of their bytes. `data_bytes` is the size
/// of what follows the header. Throws SafetensorsError.
[[nodiscard]] std::vector<TensorInfo> parse_safetensors_header(std::string_view json,
                                                               std::uint64_t data_bytes);

}  // namespace detail
}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "nanovllm/core/sort.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// Receives the header's JSON events and collects the tensors. Throws at the first thing that the
/// format forbids.
///
/// A tree of JSON values would do, but this is faster (checkpoints with 19,000 tensors exist), and
/// a tree has forgotten which keys came twice: a repeated tensor keeps its last entry, a repeated
/// field of one entry is an error.
class SafetensorsHeaderReader final : public JsonEvents {
 public:
  std::unordered_map<std::string, TensorInfo> tensors;

  void scalar(Json&& value) override {
    if (value.is_null() && place_ == Place::value && metadata_) return go(Place::names);
    if (!value.is_number_unsigned()) return unexpected(describe(value));
    if (place_ == Place::shape) {
      entry_.shape.push_back(value.get<std::uint64_t>());
    } else if (place_ == Place::offsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? entry_.begin : entry_.end) = value.get<std::uint64_t>();
    } else {
      unexpected("a number");
    }
  }

  void string(std::string& value) override {
    if (place_ == Place::metadata) return;
    if (place_ != Place::field || field_ != kDType) return unexpected("a string");
    const auto* found = std::find_if(kFileDTypes.begin(), kFileDTypes.end(),
                                     [&](const FileDTypeInfo& d) { return d.name == value; });
    if (found == kFileDTypes.end()) fail("unknown dtype '", value, "'");
    entry_.dtype = static_cast<FileDType>(found - kFileDTypes.begin());
    go(Place::entry);
  }

  void begin_object() override {
    switch (place_) {
      case Place::start: return go(Place::names);
      case Place::value: return metadata_ ? go(Place::metadata) : begin_entry();
      default: open("an object");
    }
  }

  void key(std::string& key) override {
    switch (place_) {
      case Place::names: return begin_value(key);
      case Place::entry: return begin_field(key);
      default: break;  // of the metadata, or inside an unknown field
    }
  }

  void end_object() override {
    switch (place_) {
      case Place::metadata: return go(Place::names);
      case Place::entry: return end_entry();
      case Place::unknown: return close();
      default: break;  // the end of the header
    }
  }

  void begin_array() override {
    if (place_ == Place::field && field_ == kShape) return go(Place::shape);
    if (place_ == Place::field && field_ == kOffsets) return go(Place::offsets);
    open("an array");
  }

  void end_array() override {
    if (place_ == Place::unknown) return close();
    if (place_ == Place::offsets && num_offsets_ != 2) {
      fail("tensor '", name_, "': data_offsets must hold 2 numbers, got ", num_offsets_);
    }
    go(Place::entry);
  }

 private:
  /// Where in the header the reader stands: which value or key comes next.
  enum class Place : std::uint8_t {
    start,     ///< before the outermost brace
    names,     ///< a tensor's name or `__metadata__`
    value,     ///< what belongs to that name
    metadata,  ///< inside the metadata: strings only
    entry,     ///< a field of a tensor's entry
    field,     ///< the value of a field
    shape,     ///< an extent
    offsets,   ///< a byte offset
    unknown,   ///< the value of a field this reader does not know; `depth_` brackets deep
  };

  /// Bits of `seen_`; a field without a bit is ignored.
  enum Field : unsigned { kOther = 0, kDType = 1, kShape = 2, kOffsets = 4, kAll = 7 };

  template <class... Parts>
  [[noreturn]] static void fail(const Parts&... parts) {
    throw SafetensorsError(SafetensorsError::Kind::invalid_header_deserialization,
                           concat("bad header: ", parts...));
  }

  void go(Place next) { place_ = next; }

  static std::string_view describe(const Json& value) {
    if (value.is_null()) return "null";
    if (value.is_boolean()) return "a boolean";
    if (value.is_number_integer()) return "a negative number";
    return "a fraction or too large a number";
  }

  /// A value that has a meaning nowhere but in an unknown field.
  void unexpected(std::string_view what) {
    if (place_ == Place::unknown) {
      if (depth_ == 0) go(Place::entry);
      return;
    }
    switch (place_) {
      case Place::start: fail("the header must be an object, got ", what);
      case Place::value: fail("'", name_, "' must be an object, got ", what);
      case Place::metadata: fail("'__metadata__' must hold strings only, got ", what);
      default: fail("tensor '", name_, "': unexpected ", what, " in '", key_, "'");
    }
  }

  void open(std::string_view what) {
    if (place_ != Place::unknown) unexpected(what);
    ++depth_;
  }

  void close() {
    if (--depth_ == 0) go(Place::entry);
  }

  void begin_value(std::string& key) {
    name_ = std::move(key);
    metadata_ = name_ == "__metadata__";
    if (metadata_ && std::exchange(has_metadata_, true)) fail("'__metadata__' comes twice");
    go(Place::value);
  }

  void begin_entry() {
    entry_ = TensorInfo{};
    seen_ = 0;
    num_offsets_ = 0;
    go(Place::entry);
  }

  void begin_field(std::string& key) {
    key_ = std::move(key);
    field_ = key_ == "dtype"          ? kDType
             : key_ == "shape"        ? kShape
             : key_ == "data_offsets" ? kOffsets
                                      : kOther;
    if ((seen_ & field_) != 0) fail("tensor '", name_, "': '", key_, "' comes twice");
    seen_ |= field_;
    go(field_ == kOther ? Place::unknown : Place::field);
  }

  void end_entry() {
    if (seen_ != kAll) {
      fail("tensor '", name_, "' must have dtype, shape and data_offsets");
    }
    entry_.name = name_;
    tensors.insert_or_assign(name_, std::move(entry_));
    go(Place::names);
  }

  Place place_ = Place::start;
  bool metadata_ = false;      ///< the name just read is `__metadata__`
  bool has_metadata_ = false;  ///< it has been read before
  std::string name_;
  std::string key_;
  Field field_ = kOther;
  unsigned seen_ = 0;
  std::size_t num_offsets_ = 0;
  std::size_t depth_ = 0;
  TensorInfo entry_;
};

/// Throws unless `tensor` begins at `previous_end` and its offsets span exactly what its dtype and
/// shape need.
NANOVLLM_INLINE void check_extent(const TensorInfo& tensor, std::uint64_t previous_end) {
  using Kind = SafetensorsError::Kind;
  const auto fail = [&](Kind kind, const auto&... parts) {
    throw SafetensorsError(kind, concat("tensor '", tensor.name, "' (", name(tensor.dtype), " ",
                                        shape_string(tensor.shape), ", bytes [", tensor.begin, ", ",
                                        tensor.end, ")) ", parts...));
  };
  if (tensor.begin != previous_end || tensor.end < tensor.begin) {
    fail(Kind::invalid_offset, "must begin at byte ", previous_end, " and not end before it");
  }
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t bits = 1;
  const auto multiply = [&](std::uint64_t factor) {
    if (factor != 0 && bits > kMax / factor) {
      fail(Kind::validation_overflow, "has more than 2^64 bits");
    }
    bits *= factor;
  };
  for (const std::uint64_t extent : tensor.shape) multiply(extent);
  multiply(size_bits(tensor.dtype));
  if (bits % 8 != 0) fail(Kind::misaligned_slice, "ends inside a byte");
  if (tensor.end - tensor.begin != bits / 8) {
    fail(Kind::tensor_invalid_info, "needs ", bits / 8, " bytes");
  }
}

NANOVLLM_INLINE std::vector<TensorInfo> parse_safetensors_header(std::string_view json,
                                                                 std::uint64_t data_bytes) {
  using Kind = SafetensorsError::Kind;
  const auto check_kind = [](bool ok, Kind kind, const auto&... parts) {
    if (!ok) throw SafetensorsError(kind, concat(parts...));
  };
  const std::size_t valid = utf8::valid_prefix(json);
  check_kind(valid == json.size(), Kind::invalid_header, "the header is not UTF-8 at byte ", valid);

  SafetensorsHeaderReader reader;
  // The JSON reader would skip a byte order mark.
  check_kind(!json.starts_with("\xEF\xBB\xBF"), Kind::invalid_header_deserialization,
             "the header is not JSON");
  try {
    read_json(json, reader);
  } catch (const JsonError& error) {
    check_kind(false, Kind::invalid_header_deserialization, "the header is ", error.what());
  }

  std::vector<TensorInfo> tensors;
  tensors.reserve(reader.tensors.size());
  for (auto& [key, tensor] : reader.tensors) tensors.push_back(std::move(tensor));
  sort_stably(tensors, [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    check_extent(tensor, end);
    end = tensor.end;
  }
  check_kind(end == data_bytes, Kind::metadata_incomplete_buffer, "the tensors span ", end,
             " bytes, but ", data_bytes, " follow the header");
  return tensors;
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
