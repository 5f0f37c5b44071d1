#pragma once
/// The command line of the example programs that use CLI11: `--version`, and errors that name the
/// option which was meant.

#include <nanovllm/core/error.hpp>
#include <nanovllm/version.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nearest_name.hpp"

namespace nanovllm::examples {

/// Whether CLI11 takes `text` for an octal number, as few people mean it.
[[nodiscard]] inline bool is_octal(const std::string& text) {
  const std::size_t first = text.find_first_not_of("+- ");
  return first != std::string::npos && first + 1 < text.size() && text[first] == '0' &&
         text[first + 1] >= '0' && text[first + 1] <= '9';
}

/// The number that CLI11 reads in `text`; nothing for another text, and beyond the range of T, where
/// it would take the nearest number.
template <class T>
[[nodiscard]] std::optional<T> number_of(const std::string& text) {
  T value{};
  errno = 0;
  if constexpr (std::is_floating_point_v<T>) {
    char* end = nullptr;
    value = static_cast<T>(std::strtod(text.c_str(), &end));
    if (text.empty() || end != text.c_str() + text.size() || std::isnan(value)) return {};
  } else if (is_octal(text) || !CLI::detail::lexical_cast(text, value)) {
    return {};
  }
  return errno == ERANGE ? std::nullopt : std::optional(value);
}

/// A number above 0.
inline const CLI::Validator kPositive(
    [](const std::string& text) {
      const bool is_positive = number_of<double>(text).value_or(0) > 0;
      return is_positive ? std::string() : concat("expected a number above 0, got '", text, "'");
    },
    "POSITIVE");

/// An option that is a number from `low` on, of integers to `high`.
/// @param value  of a type of numbers, or an optional of one.
template <class Value,
          class T = typename decltype(std::optional(std::declval<Value>()))::value_type>
CLI::Option* add_number(CLI::App& app, const std::string& name, Value& value,
                        const std::string& meaning, std::type_identity_t<T> low = 0,
                        std::type_identity_t<T> high = std::numeric_limits<T>::max()) {
  const auto check = [low, high](const std::string& text) {
    const std::optional<T> found = number_of<T>(text);
    if (found && *found >= low && *found <= high) return std::string();
    if (std::is_integral_v<T>)
      return concat("expected an integer from ", low, " to ", high,
                    is_octal(text) ? ", without a 0 ahead of its digits" : "", ", got '", text,
                    "'");
    return concat("expected a number from ", CLI::detail::to_string(low), " on, got '", text, "'");
  };
  CLI::Option* const option = app.add_option(name, value, meaning)->check(check, "");
  if constexpr (std::is_same_v<Value, T>) option->capture_default_str();
  return option;
}

/// One of `names`.
[[nodiscard]] inline CLI::Validator one_of(const std::vector<std::string>& names) {
  return CLI::Validator(
      [names](const std::string& text) {
        const bool is_there = std::ranges::find(names, text) != names.end();
        return is_there ? std::string() : expected_one_of(names, text);
      },
      CLI::detail::generate_set(names));
}

/// What to say of arguments that no option takes: "unknown option --modle; did you mean --model?"
/// Empty if there is no option among them.
[[nodiscard]] inline std::string unknown_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  std::string out;
  for (const std::string& argument : app.remaining()) {
    const std::string name = argument.substr(0, argument.find('='));
    if (name.size() < 2 || name[0] != '-') continue;  // a value
    out += concat(out.empty() ? "" : "\n", "unknown option ", name, did_you_mean(name, names));
  }
  return out;
}

/// Adds `--version` and parses. Returns the exit status if the program is to end at once, after
/// `--help`, `--version` or an error, which it has printed.
[[nodiscard]] inline std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", concat("nanovllm ", NANOVLLM_VERSION_MAJOR, '.',
                                           NANOVLLM_VERSION_MINOR, '.', NANOVLLM_VERSION_PATCH));
  try {
    app.parse(argc, argv);
    return {};
  } catch (const CLI::ParseError& error) {
    // A name with a slip also leaves the option that was meant without its value.
    const std::string unknown = error.get_exit_code() != 0 ? unknown_options(app) : "";
    if (unknown.empty()) return app.exit(error);
    std::fprintf(stderr, "%s\nRun with --help for more information.\n", unknown.c_str());
    return error.get_exit_code();
  }
}

}  // namespace nanovllm::examples
