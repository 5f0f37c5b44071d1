#pragma once
/// Exceptions for bad input, and `check()`, the one way to raise them.
///
/// Every exception derives from `nanovllm::Error`. The message names what was expected and what
/// came. Ordinary outcomes (no free block, nothing to schedule) are never exceptions.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace nanovllm {

/// `text` with each NUL, where a C string would end, as the four characters \x00.
[[nodiscard]] inline std::string without_nuls(std::string text) {
  for (std::size_t at = 0; (at = text.find('\0', at)) != text.npos;) text.replace(at, 1, "\\x00");
  return text;
}

/// Root of every exception this library throws.
struct Error : std::runtime_error {
  explicit Error(std::string message) : std::runtime_error(without_nuls(std::move(message))) {}
};

/// A setting or a config.json field has a value we cannot honour.
struct ConfigError : Error {
  using Error::Error;
};

/// A checkpoint is of a model that the program was not built for.
struct UnsupportedModelError : ConfigError {
  using ConfigError::ConfigError;
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

/// One request cannot be served; the engine and its other requests continue.
struct RequestError : Error {
  using Error::Error;
};

/// A field of a request has a value that it cannot have.
struct FieldError : RequestError {
  FieldError(const std::string& message, std::string path)
      : RequestError(message), field(std::move(path)) {}

  std::string field;  ///< where it lies: "messages[2].content"
};

/// A prompt is longer than what can be served.
struct ContextLengthError : RequestError {
  ContextLengthError(const std::string& message, std::int64_t num_tokens_, std::int64_t max_tokens_)
      : RequestError(message), num_tokens(num_tokens_), max_tokens(max_tokens_) {}

  std::int64_t num_tokens;  ///< of the prompt, at least: a long text is not encoded as a whole
  std::int64_t max_tokens;  ///< that a prompt may have
};

/// Work was given up because its caller requested a stop, see text/check_stop.hpp.
struct Cancelled : Error {
  using Error::Error;
};

/// Memory has run out: a std::bad_alloc that says how many bytes were asked for. While an engine is
/// made it becomes a ConfigError that names the settings.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::uint64_t num_bytes) noexcept {
    std::snprintf(text_, sizeof text_, "%llu bytes were asked for",
                  static_cast<unsigned long long>(num_bytes));
  }
  [[nodiscard]] const char* what() const noexcept override { return text_; }

 private:
  char text_[48];
};

namespace detail {

/// One part of a message. Parts have one type, so that joining and throwing them is compiled once
/// and not for every list of types.
class Part {
 public:
  Part(std::string_view text) : kind_(Kind::text), text_(text) {}
  Part(const std::string& text) : Part(std::string_view(text)) {}
  Part(const char* text) : Part(std::string_view(text)) {}
  Part(char c) : kind_(Kind::character), character_(c) {}
  /// A template, because a plain `bool` parameter would also take pointers.
  template <std::same_as<bool> Bool>
  Part(Bool value) : Part(std::string_view(value ? "true" : "false")) {}
  template <std::signed_integral N>
  Part(N value) : kind_(Kind::integer), integer_(value) {}
  template <std::unsigned_integral N>
  requires(!std::same_as<N, bool>) Part(N value) : kind_(Kind::natural), natural_(value) {}
  template <std::floating_point N>
  Part(N value) : kind_(Kind::real), real_(static_cast<double>(value)) {}

  void append_to(std::string& out) const {
    switch (kind_) {
      case Kind::text: out += text_; return;
      case Kind::character: out += character_; return;
      case Kind::integer: out += std::to_string(integer_); return;
      case Kind::natural: out += std::to_string(natural_); return;
      case Kind::real: out += std::to_string(real_); return;
    }
  }

 private:
  enum class Kind : unsigned char { text, character, integer, natural, real };

  Kind kind_;
  union {
    std::string_view text_;
    char character_;
    long long integer_;
    unsigned long long natural_;
    double real_;
  };
};

[[gnu::noinline]] inline std::string join(std::initializer_list<Part> parts) {
  std::string out;
  for (const Part& part : parts) part.append_to(out);
  return out;
}

template <class E>
[[noreturn, gnu::cold, gnu::noinline]] void fail(std::initializer_list<Part> message) {
  throw E(join(message));
}

}  // namespace detail

/// Concatenates strings, characters, booleans and numbers without iostreams.
template <class... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  return detail::join({detail::Part(parts)...});
}

/// The message of `error`; "out of memory" if there is none for it. Not empty.
[[nodiscard]] inline std::string message_of(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    try {
      return *e.what() != '\0' ? e.what() : "unknown";
    } catch (...) {
      return "out of memory";  // short enough to need none, as is the next
    }
  } catch (...) {
    return "unknown";
  }
}

/// Whether `error` is a RequestError: the request itself is at fault.
[[nodiscard]] inline bool is_request_error(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const RequestError&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// Throws `E` with the concatenated parts unless `condition` holds. The message is only built on
/// failure.
template <class E = Error, class... Parts>
void check(bool condition, const Parts&... message) {
  if (!condition) [[unlikely]]
    detail::fail<E>({detail::Part(message)...});
}

}  // namespace nanovllm
