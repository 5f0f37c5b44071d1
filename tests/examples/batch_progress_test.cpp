// What a batch says on a terminal, and that it is silent elsewhere.

#include "../../examples/batch_progress.hpp"

#include <cstdio>
#include <fstream>
#include <string>

#include "catch.hpp"
#include "safetensors_writer.hpp"
#include "terminal.hpp"

using namespace nanovllm;
using namespace nanovllm::examples;

namespace {

struct CountingEngine {
  [[nodiscard]] EngineStats stats() const {
    EngineStats out;
    out.num_prefill_tokens = 100;
    out.num_sampled_tokens = 50;
    return out;
  }
};

}  // namespace

TEST_CASE("Lines are counted that are not blank") {
  const nanovllm_test::TempDirectory directory;
  const std::string path = (directory.path() / "in.jsonl").string();
  const auto count = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return count_lines(path);
  };
  CHECK(count("") == 0u);
  CHECK(count("a") == 1u);
  CHECK(count("a\n") == 1u);
  CHECK(count("a\n \t\r\n\nb c\n  d\n") == 3u);
  std::string longer(140'000, ' ');  // than what is read at a time
  longer.replace(70'000, 3, "a b");
  CHECK(count(longer + "\nc\n") == 2u);
  CHECK_FALSE(count_lines("-").has_value());
  CHECK_FALSE(count_lines("/dev/null").has_value());
}

TEST_CASE("A terminal is told how far the run is, and how fast it was") {
  const nanovllm_test::TempDirectory directory;
  const std::string path = (directory.path() / "in.jsonl").string();
  std::ofstream(path) << "1\n2\n3\n";
  nanovllm_test::Terminal terminal;
  BatchProgress progress(path, terminal.stream);
  progress.show(1, 2, CountingEngine());
  const std::string shown = terminal.shown();
  CHECK_THAT(shown, Catch::Matchers::Contains("##") &&
                        Catch::Matchers::Contains("] 1/3 requests, 2 under way"));
  CHECK(shown.find('\n') == std::string::npos);
  progress.show(2, 1, CountingEngine());  // within a tenth of a second
  const std::string end = progress.end(CountingEngine().stats());
  CHECK_THAT(end, Catch::Matchers::Contains(" s, ") && Catch::Matchers::Contains(" per second"));
  CHECK(terminal.shown() == "\r\033[K");
}

TEST_CASE("A file and a pipe are told nothing") {
  const nanovllm_test::TempDirectory directory;
  std::FILE* const file = std::fopen((directory.path() / "err").c_str(), "w");
  {
    BatchProgress progress("-", file);
    progress.show(1, 2, CountingEngine());
    CHECK(progress.end({}).empty());
  }
  CHECK(std::ftell(file) == 0);
  std::fclose(file);
  BatchProgress none("-", nullptr);
  none.show(1, 2, CountingEngine());
  CHECK(none.end({}).empty());
}
