#pragma once
/// Exceptions for bad input, and `check()`, the one way to raise them.
///
/// Every exception derives from `nanovllm::Error`. The message names what was expected and what
/// came. Ordinary outcomes (no free block, nothing to schedule) are never exceptions.

#include <concepts>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace nanovllm {

/// Root of every exception this library throws.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A setting or a config.json field has a value we cannot honour.
struct ConfigError : Error {
  using Error::Error;
};

/// Operands of an op disagree in shape, stride or type.
struct ShapeError : Error {
  using Error::Error;
};

/// A file is missing, truncated or not what its format says.
struct LoadError : Error {
  using Error::Error;
};

/// A call of the CUDA runtime, cuBLASLt or NCCL failed, or the device cannot do what was asked.
struct CudaError : Error {
  using Error::Error;
};

/// One request cannot be served; the engine and its other requests go on.
struct RequestError : Error {
  using Error::Error;
};

namespace detail {

inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, char c) { out += c; }

/// A template, because a plain `bool` parameter would also take pointers, string literals included.
template <std::same_as<bool> Bool>
void append(std::string& out, Bool value) {
  out += value ? "true" : "false";
}

template <class T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool> && !std::same_as<T, char>;

template <Number N>
void append(std::string& out, N value) {
  out += std::to_string(value);
}

}  // namespace detail

/// Concatenates strings, characters, booleans and numbers without iostreams.
template <class... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

/// What `error` says. Empty where there is no memory for it.
[[nodiscard]] inline std::string message_of(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    try {
      return e.what();
    } catch (...) {
      return {};
    }
  } catch (...) {
    return "unknown";  // short enough to need no memory
  }
}

/// Throws `E` with the concatenated parts unless `condition` holds. The message is only built on
/// failure.
template <class E = Error, class... Parts>
void check(bool condition, const Parts&... message) {
  if (!condition) [[unlikely]]
    throw E(concat(message...));
}

}  // namespace nanovllm
