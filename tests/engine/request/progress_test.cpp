// Bars on a terminal, and that nothing else is told anything.

#include "nanovllm/engine/request/progress.hpp"

#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "catch.hpp"
#include "terminal.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::Terminal;

namespace {

/// NO_COLOR is set, or not.
struct NoColor {
  explicit NoColor(bool is_set) { is_set ? ::setenv("NO_COLOR", "1", 1) : ::unsetenv("NO_COLOR"); }
  ~NoColor() { ::unsetenv("NO_COLOR"); }
};

}  // namespace

TEST_CASE("a bar is as long as its share") {
  CHECK(progress_bar("load", 0.5, "50%", 30, false) == "load [#########          ] 50%");
  CHECK(progress_bar("load", 0.0, "0%", 79, false) == "load [                              ] 0%");
  CHECK(progress_bar("", 1.0, "3/3", 79, false) == "[##############################] 3/3");
  CHECK(progress_bar("load", 7.0, "x", 20, false) == "load [###########] x");
  CHECK(progress_bar("load", -1.0, "x", 20, false) == "load [           ] x");
}

TEST_CASE("a line is never longer than the terminal is wide, with colours or without") {
  const std::string text = "12/100 requests, 8 under way";
  for (std::size_t columns = 0; columns < 90; ++columns) {
    const std::string plain = progress_bar("generating", 0.4, text, columns, false);
    CHECK(plain.size() <= columns);
    std::string coloured = progress_bar("generating", 0.4, text, columns, true);
    for (const std::string code : {"\033[32m", "\033[0m"})
      if (const auto at = coloured.find(code); at != coloured.npos) coloured.erase(at, code.size());
    CHECK(coloured == plain);
  }
  CHECK(progress_bar("load", 0.4, "40%", 12, false) == "load 40%");
  CHECK(progress_bar("load", {}, "4 lines", 79, false) == "load 4 lines");
}

TEST_CASE("a terminal gets a bar, is told again at most ten times a second, and gets it off") {
  const NoColor colours(false);
  Terminal terminal("xterm", 60);
  {
    ProgressLine line(terminal.stream);
    CHECK(line.is_shown());
    line.show("load", 0.5, "50%");
    CHECK(terminal.shown() == "\r" + progress_bar("load", 0.5, "50%", 59, true) + "\033[K");
    CHECK_FALSE(line.is_due());
    line.show("load", 0.6, "60%");
    CHECK(terminal.shown().empty());
    line.show("load", 1.0, "100%");  // what is done is always shown
    CHECK_THAT(terminal.shown(), Contains("100%"));
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
    line.show("load", 0.7, "70%");
    CHECK_THAT(terminal.shown(), Contains("70%"));
  }
  CHECK(terminal.shown() == "\r\033[K");
  ProgressLine line(terminal.stream);
  line.show("load", 1.0, "100%");
  static_cast<void>(terminal.shown());
  line.keep();
  line.clear();
  CHECK(terminal.shown() == "\r\n");  // as a terminal writes "\n"
}

TEST_CASE("NO_COLOR takes the colours away and nothing else") {
  const bool is_set = GENERATE(false, true);
  const NoColor colours(is_set);
  Terminal terminal;
  ProgressLine line(terminal.stream);
  line.show("load", 0.5, "50%");
  const std::string shown = terminal.shown();
  CHECK_THAT(shown, Contains("####"));
  CHECK((shown.find("\033[32m") == shown.npos) == is_set);
}

TEST_CASE("a terminal that cannot take a line back, a file and no stream are told nothing") {
  const auto is_silent = [](std::FILE* stream) {
    ProgressLine line(stream);
    line.show("load", 1.0, "100%");
    line.clear();
    line.keep();
    return !line.is_shown() && !line.is_due() && !load_progress_line(stream) &&
           !generate_progress_line(stream);
  };
  for (const char* term : {"dumb", ""}) {
    Terminal terminal(term);
    CHECK(is_silent(terminal.stream));
    CHECK(terminal.shown().empty());
  }
  Terminal terminal;
  ::unsetenv("TERM");
  CHECK(is_silent(terminal.stream));
  CHECK(terminal.shown().empty());
  ::setenv("TERM", "xterm", 1);
  std::FILE* const file = std::tmpfile();
  CHECK(is_silent(file));
  CHECK(std::ftell(file) == 0);
  std::fclose(file);
  CHECK(is_silent(nullptr));
}

TEST_CASE("loading is a bar that is taken off, and stages are lines") {
  Terminal terminal;
  const LoadCallback load = load_progress_line(terminal.stream);
  load({1'000'000, 4'000'000});
  CHECK_THAT(terminal.shown(), Contains("loading weights [") && Contains(" 25% of 4.0 MB"));
  load({4'000'000, 4'000'000});
  CHECK_THAT(terminal.shown(), Contains("100% of 4.0 MB") && Catch::Matchers::EndsWith("\r\033[K"));
  load({4'000'000, 4'000'000, "tuning products"});
  CHECK(terminal.shown() == "tuning products\r\n");
  load_progress_line(terminal.stream, 5'000'000)({1'000'000, 4'000'000});
  CHECK(terminal.shown().empty());
}

TEST_CASE("a load that fails leaves no bar") {
  Terminal terminal;
  {
    const LoadCallback load = load_progress_line(terminal.stream);
    load({1'000'000, 4'000'000});
    static_cast<void>(terminal.shown());
  }
  CHECK(terminal.shown() == "\r\033[K");
}

TEST_CASE("generation is a bar that stays in the end") {
  Terminal terminal;
  const GenerateCallback show = generate_progress_line(terminal.stream);
  show({1, 4, 500, 20});
  CHECK_THAT(terminal.shown(), Contains("1/4  prefill 500 tok/s  decode 20 tok/s"));
  show({4, 4, 500, 20});
  CHECK_THAT(terminal.shown(), Contains("4/4") && Catch::Matchers::EndsWith("\r\n"));
}
