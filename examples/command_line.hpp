#pragma once
/// The command line of the example programs that use CLI11: `--version`, and errors that name the
/// option which was meant.

#include <nanovllm/core/error.hpp>
#include <nanovllm/version.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "nearest_name.hpp"

namespace nanovllm::examples {

/// A number above 0, which "nan" is not.
inline const CLI::Validator kPositive(
    [](const std::string& text) {
      double value = 0;
      const bool is_positive = CLI::detail::lexical_cast(text, value) && value > 0;
      return is_positive ? std::string() : "must be a number above 0, got " + text;
    },
    "POSITIVE");

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
