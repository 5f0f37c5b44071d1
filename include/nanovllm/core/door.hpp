#pragma once
/// Doors: to parts of the library that a header-only program has only where it includes them.
///
/// A header that every engine has declares a function of such a part, and calls it through a door:
///
///     [[nodiscard]] Image read_png(std::string_view bytes);
///     NANOVLLM_DOOR(read_png);
///
///     return through<LoadError>(read_png_door, "nanovllm/io/png.hpp", "a picture in PNG")(bytes);
///
/// The header of the part has the function's body, and opens the door for the whole program, before
/// `main`, if any of its files includes it:
///
///     NANOVLLM_OPEN_DOOR(read_png);
///
/// With NANOVLLM_SEPARATE all doors are open: the library has every part.

#include <atomic>
#include <string>
#include <string_view>

#include "nanovllm/core/error.hpp"

#if defined(NANOVLLM_SEPARATE)
#define NANOVLLM_DOOR(function) \
  inline constinit std::atomic<decltype(&function)> function##_door { &function }
#define NANOVLLM_OPEN_DOOR(function) static_assert(true)
#else
#define NANOVLLM_DOOR(function) \
  inline constinit std::atomic<decltype(&function)> function##_door { nullptr }
#define NANOVLLM_OPEN_DOOR(function) \
  inline const bool function##_is_open = (function##_door.store(&function), true)
#endif

namespace nanovllm::detail {

/// What a program is told that lacks the part in `header`, which `what` needs.
[[nodiscard]] inline std::string missing_part(std::string_view what, std::string_view header) {
  return concat(what,
                " needs a part of the library that this program was compiled without; '#include <",
                header, ">' in one of its files adds it");
}

/// The function behind `door`. Throws E if it is shut.
/// @param what  needs the part.
template <class E, class Function, class... What>
[[nodiscard]] Function through(const std::atomic<Function>& door, std::string_view header,
                               const What&... what) {
  const Function function = door.load();
  if (function == nullptr) throw E(missing_part(concat(what...), header));
  return function;
}

}  // namespace nanovllm::detail
