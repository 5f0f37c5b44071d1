#pragma once
/// Names of types, for messages and `describe()`.

#include <cstddef>
#include <string_view>

namespace nanovllm {

/// The name of `T` as the compiler spells it, qualified.
template <class T>
[[nodiscard]] constexpr std::string_view type_name() {
  // "... type_name() [with T = NAME; std::string_view = ...]" (g++), "... [T = NAME]" (clang++)
  const std::string_view signature = __PRETTY_FUNCTION__;
  const std::size_t begin = signature.find("T = ") + 4;
  return signature.substr(begin, signature.find_first_of(";]", begin) - begin);
}

/// The same without template arguments.
template <class T>
[[nodiscard]] constexpr std::string_view template_name() {
  return type_name<T>().substr(0, type_name<T>().find('<'));
}

/// False, for a `static_assert` in a branch that is wrong whenever it is taken: the message of the
/// compiler names `Got`.
template <class... Got>
inline constexpr bool kFits = false;

}  // namespace nanovllm
