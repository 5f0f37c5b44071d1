// What a program with CLI11 says of an option or a value with a slip.

#include "../../examples/command_line.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "../../examples/server/options.hpp"
#include "catch.hpp"

using namespace nanovllm::examples;
using nanovllm::concat;

namespace {

/// What is said of a command line, without the program's name; empty if it is taken.
std::string said_of(std::vector<std::string> arguments) {
  ServeOptions options;
  CLI::App app("a program", "program");
  add_options(app, options);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
    return "";
  } catch (const CLI::ParseError& error) {
    const std::string unknown = unknown_options(app);
    return unknown.empty() ? error.what() : unknown;
  }
}

/// The last word of `--option` that is one letter shorter, or has two letters swapped.
std::vector<std::string> with_a_slip(const std::string& name) {
  std::string swapped = name, shorter = name;
  std::swap(swapped[name.size() - 1], swapped[name.size() - 2]);
  shorter.pop_back();
  return {swapped, shorter};
}

}  // namespace

TEST_CASE("every long option is suggested where it has a slip") {
  EngineOptions options;
  CLI::App app;
  add_engine_options(app, options);
  int num_names = 0;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      for (const std::string& slip : with_a_slip("--" + name)) {
        if (slip == "--" + name || slip.size() < 5) continue;
        INFO(slip);
        CHECK(said_of({"--model", "m", slip, "1"}) ==
              "unknown option " + slip + "; did you mean --" + name + "?");
        ++num_names;
      }
    }
  }
  CHECK(num_names > 30);
}

TEST_CASE("an option is suggested whatever else is wrong, and several are named") {
  CHECK(said_of({"--model", "m"}).empty());
  CHECK(said_of({"--modle", "m"}) == "unknown option --modle; did you mean --model?");
  CHECK(said_of({"--model", "m", "--max-num-sqes=4"}) ==
        "unknown option --max-num-sqes; did you mean --max-num-seqs?");
  CHECK(said_of({"--model", "m", "--quux", "--devise", "cpu"}) ==
        "unknown option --quux\nunknown option --devise; did you mean --device?");
}

TEST_CASE("a value of a list is suggested, and the list is named") {
  CHECK(said_of({"--model", "m", "--device", "cdua"}) ==
        "--device: expected auto, cpu or cuda, got 'cdua'; did you mean cuda?");
  CHECK(said_of({"--model", "m", "--dtype=bfloat61"}) ==
        "--dtype: expected float32 or bfloat16, got 'bfloat61'; did you mean bfloat16?");
  CHECK(said_of({"--model", "m", "--kv-cache-dtype", "int7"}) ==
        "--kv-dtype: expected auto, int8 or fp8, got 'int7'; did you mean int8?");
  CHECK(said_of({"--model", "m", "-q", "awq-marlin"}) ==
        "--quantization: expected none, fp8, int8 or int4, got 'awq-marlin'");
  CHECK(said_of({"--model", "m", "--device", "gpu"}) ==  // it is nearer to cpu than to cuda
        "--device: expected auto, cpu or cuda, got 'gpu'");
}

TEST_CASE("a number says what was expected and what came") {
  CHECK(said_of({"--model", "m", "--port", "abc"}) ==
        "--port: expected an integer from 0 to 65535, got 'abc'");
  CHECK(
      said_of({"--model", "m", "--port", "08080"}) ==
      "--port: expected an integer from 0 to 65535, without a 0 ahead of its digits, got '08080'");
  CHECK(said_of({"--model", "m", "--port", "65536"}) ==
        "--port: expected an integer from 0 to 65535, got '65536'");
  CHECK(said_of({"--model", "m", "--io-threads=0"}) ==
        "--io-threads: expected an integer from 1 to 256, got '0'");
  CHECK(said_of({"--model", "m", "--drain-timeout", "nan"}) ==
        "--drain-timeout: expected a number above 0, got 'nan'");
  CHECK(said_of({"--model", "m", "--step-timeout", "-1"}) ==
        "--step-timeout: expected a number from 0 on, got '-1'");
  CHECK(said_of({"--model", "m", "--drain-timeout", "1e18", "--step-timeout", "0.5"}).empty());
  CHECK(said_of({"--model", "m", "--drain-timeout", "inf"}).empty());
  CHECK(said_of({"--model", "m", "--port", "0", "--max-model-len", "9223372036854775807"}).empty());

  ServeOptions options;
  CLI::App app;
  add_options(app, options);
  int num_numbers = 0;
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name(), name = option->get_name();
    const bool is_number =
        type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
    if (!is_number) continue;
    ++num_numbers;
    const std::string digits(400, '9');
    for (const std::string& value : {std::string("abc"), std::string("1x"), digits, "-" + digits,
                                     std::string("nan"), std::string("1e400")}) {
      INFO(name << " " << value);
      const std::string said = said_of({"--model", "m", concat(name, "=", value)});
      CHECK_THAT(said, Catch::StartsWith(name + ": expected "));
      CHECK_THAT(said, Catch::EndsWith(concat(", got '", value, "'")));
    }
  }
  CHECK(num_numbers > 20);
}

TEST_CASE("help names the values of a list") {
  EngineOptions options;
  CLI::App app;
  add_engine_options(app, options);
  CHECK_THAT(app.help(), Catch::Matchers::Contains("{auto,cpu,cuda}"));
}
