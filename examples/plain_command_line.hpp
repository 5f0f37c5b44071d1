#pragma once
/// The command line of the example programs that do without CLI11: arguments in their places, a few
/// options, `--help` and `--version`.

#include <nanovllm/core/error.hpp>
#include <nanovllm/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nearest_name.hpp"

namespace nanovllm::examples {

/// What a program takes.
struct PlainUsage {
  std::string_view text;                   ///< what `--help` prints
  std::size_t least = 0, most = 0;         ///< arguments
  std::vector<std::string> flags = {};     ///< options without a value, with their dashes
  std::vector<std::string> settings = {};  ///< options with one
};

/// What a command line says.
struct PlainCommandLine {
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> options;  ///< name and value, in their order
  std::optional<int> status;  ///< the program is to end with it, and what to say has been printed

  [[nodiscard]] std::string argument(std::size_t index, std::string_view otherwise = "") const {
    return index < arguments.size() ? arguments[index] : std::string(otherwise);
  }
  [[nodiscard]] bool has(std::string_view name) const {
    return std::any_of(options.begin(), options.end(),
                       [&](const auto& option) { return option.first == name; });
  }
  /// The last value of an option, or nothing.
  [[nodiscard]] std::optional<std::string> value(std::string_view name) const {
    std::optional<std::string> out;
    for (const auto& option : options)
      if (option.first == name) out = option.second;
    return out;
  }
};

/// Whether an argument is meant as an option: "-h", "--name" or "--name=value", but neither "-", a
/// number below 0 nor a text that begins with a dash.
[[nodiscard]] inline bool looks_like_option(std::string_view argument) {
  const std::string_view name = argument.substr(0, argument.find('='));
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return name.size() > 1 && name[0] == '-' && name.find_first_of(" \t\n") == name.npos &&
         name.find_first_of(kLetters) != name.npos;
}

/// Reads "--name value", "--name=value" and arguments; after "--" there are only arguments. What
/// is wrong is printed on standard error, and `status` is 2 then.
[[nodiscard]] inline PlainCommandLine read_command_line(int argc, const char* const* argv,
                                                        const PlainUsage& usage) {
  PlainCommandLine out;
  const auto holds = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto fail = [&](const std::string& what) {
    const std::string_view path = argc > 0 ? argv[0] : "";
    const std::string program(path.substr(path.rfind('/') + 1));  // npos + 1 is 0
    std::fprintf(stderr, "%s: %s\nRun with --help for more information.\n", program.c_str(),
                 what.c_str());
    out.status = 2;
  };
  bool only_arguments = false;
  for (int i = 1; i < argc && !out.status; ++i) {
    const std::string argument = argv[i];
    if (only_arguments || !looks_like_option(argument)) {
      only_arguments = only_arguments || argument == "--";
      if (only_arguments && argument == "--") continue;
      out.arguments.push_back(argument);
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (name == "--help" || name == "-h") {
      std::printf("%s", std::string(usage.text).c_str());
      out.status = 0;
    } else if (name == "--version") {
      std::printf("nanovllm %d.%d.%d\n", NANOVLLM_VERSION_MAJOR, NANOVLLM_VERSION_MINOR,
                  NANOVLLM_VERSION_PATCH);
      out.status = 0;
    } else if (holds(usage.flags, name)) {
      if (equals != argument.npos) fail(concat(name, " takes no value"));
      out.options.emplace_back(name, "");
    } else if (holds(usage.settings, name)) {
      if (equals == argument.npos && i + 1 == argc) {
        fail(concat(name, " needs a value"));
      } else {
        out.options.emplace_back(name,
                                 equals == argument.npos ? argv[++i] : argument.substr(equals + 1));
      }
    } else {
      std::vector<std::string> names{"--help", "--version"};
      names.insert(names.end(), usage.flags.begin(), usage.flags.end());
      names.insert(names.end(), usage.settings.begin(), usage.settings.end());
      fail(concat("unknown option ", name, did_you_mean(name, names)));
    }
  }
  const std::size_t count = out.arguments.size();
  if (!out.status && count > usage.most)
    fail(concat("at most ", usage.most, " arguments, got ", count, ", the last one '",
                out.arguments.back(), "'"));
  if (!out.status && count < usage.least)
    fail(concat("at least ", usage.least, " arguments, got ", count));
  return out;
}

}  // namespace nanovllm::examples
