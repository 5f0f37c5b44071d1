// The command lines of the programs without CLI11, and the settings of a tale.

#include "../../examples/plain_command_line.hpp"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "../../examples/tale.hpp"
#include "catch.hpp"

using namespace nanovllm;
using namespace nanovllm::examples;

namespace {

PlainCommandLine read(std::vector<const char*> words, std::size_t least = 0, std::size_t most = 2) {
  words.insert(words.begin(), "folder/program");
  return read_command_line(static_cast<int>(words.size()), words.data(),
                           {.text = "",
                            .least = least,
                            .most = most,
                            .flags = {"--no-think"},
                            .settings = sampling_options()});
}

SamplingParams tale_of(const std::vector<const char*>& words) {
  const PlainCommandLine line = read(words);
  REQUIRE_FALSE(line.status.has_value());
  SamplingParams params = tale_params(line);
  validate(params);
  return params;
}

}  // namespace

TEST_CASE("Arguments and options may stand in any order") {
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"model", "a tale", "--seed", "7", "--no-think"},
        {"--seed=7", "model", "--no-think", "a tale"},
        {"--no-think", "--seed", "7", "--", "model", "a tale"}}) {
    const PlainCommandLine line = read(words);
    CHECK_FALSE(line.status.has_value());
    CHECK(line.arguments == std::vector<std::string>{"model", "a tale"});
    CHECK(line.has("--no-think"));
    CHECK(line.has("--seed"));
    CHECK_FALSE(line.has("--top-k"));
  }
  CHECK(read({}).argument(1, "otherwise") == "otherwise");
  CHECK(read({"--seed", "7", "--seed=8"}).value("--seed") == "8");
  CHECK_FALSE(read({"model"}).value("--seed").has_value());
}

TEST_CASE("A text that begins with a dash is an argument") {
  for (const char* text : {"-", "-5", "- said the fox", "--- a tale", "-12 degrees", "", "--5"}) {
    INFO(text);
    CHECK(read({"model", text}).argument(1) == text);
  }
  CHECK(read({"--", "--seed", "--help"}).arguments == std::vector<std::string>{"--seed", "--help"});
  CHECK(tale_of({"--temperature", "0"}).temperature == 0.f);
  CHECK(tale_of({"--top-k", "-1"}).top_k == -1);
}

TEST_CASE("What no option takes ends the program with 2, a question with 0") {
  for (const std::vector<const char*>& words : {std::vector<const char*>{"--sede", "7"},
                                                {"--seed"},
                                                {"--no-think=1"},
                                                {"-x"},
                                                {"a", "b", "c"}}) {
    INFO(words[0]);
    CHECK(read(words).status == 2);
  }
  CHECK(read({"model"}, 2).status == 2);
  CHECK(read({"--help"}, 2).status == 0);
  CHECK(read({"-h", "--sede"}).status == 0);
  CHECK(read({"--version"}).status == 0);
}

TEST_CASE("An option with a slip is told the nearest one") {
  const auto said_of = [](const char* word) {
    std::FILE* const file = std::tmpfile();
    const int before = ::dup(STDERR_FILENO);
    ::dup2(::fileno(file), STDERR_FILENO);
    CHECK(read({word, "7"}).status == 2);
    ::dup2(before, STDERR_FILENO);
    ::close(before);
    std::rewind(file);
    char text[256]{};
    const std::size_t size = std::fread(text, 1, sizeof text, file);
    std::fclose(file);
    return std::string(text, size);
  };
  const std::string rest = "\nRun with --help for more information.\n";
  CHECK(said_of("--sede") == "program: unknown option --sede; did you mean --seed?" + rest);
  CHECK(said_of("--no-thinc") ==
        "program: unknown option --no-thinc; did you mean --no-think?" + rest);
  CHECK(said_of("--hlep") == "program: unknown option --hlep; did you mean --help?" + rest);
  CHECK(said_of("--quux") == "program: unknown option --quux" + rest);
}

TEST_CASE("A tale has at most 160 tokens, and options take precedence") {
  const SamplingParams plain = tale_of({});
  CHECK(plain.max_tokens <= 160);
  CHECK(plain.seed.has_value());
  CHECK_FALSE(plain.temperature.has_value());  // the checkpoint's

  const SamplingParams own =
      tale_of({"--max-tokens", "20", "--seed=7", "--stop", "the end", "--logit-bias", R"({"5": 2})",
               "--repetition-penalty", "1", "--ignore-eos", "true"});
  CHECK(own.max_tokens == 20);
  CHECK(own.seed == 7u);
  CHECK(own.stop == std::vector<std::string>{"the end"});
  CHECK(own.logit_bias.size() == 1);
  CHECK(own.repetition_penalty == 1.f);
  CHECK(own.ignore_eos);
  CHECK(tale_of({"--stop", R"(["a", "b"])"}).stop == std::vector<std::string>{"a", "b"});
  CHECK(tale_of({"--min-tokens", "3"}).min_tokens == 3);

  CHECK_THROWS_AS(tale_params(read({"--temperature", "warm"})), RequestError);
  CHECK_THROWS_AS(tale_params(read({"--max-tokens", "0"})), RequestError);
}

TEST_CASE("The line after a tale has what it was drawn with") {
  const SamplingParams params{.temperature = 0.5f, .top_k = 40, .min_p = 0.25f, .seed = 3};
  CHECK(describe_draws(params) == "temperature 0.5, top_k 40, min_p 0.25, seed 3");
  CHECK(describe_draws({}) == "temperature 1, seed 0");
}
