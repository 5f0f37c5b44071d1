// Memory that runs out where nothing may throw: in callbacks, at the end of requests, in
// destructors.

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/grammar/vocabularies.hpp"
#include "catch.hpp"
#include "engine/models.hpp"
#include "failing_new.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/with/sessions.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using TestEngine = Engine<AnyModel, Float32Policy>;

EngineConfig small_config(bool overlap) {
  return {.model = model_directory("fairytale"),
          .num_threads = 1,
          .max_num_seqs = 8,
          .max_model_len = 64,
          .kv_size = KvSize::blocks(40),
          .overlap = overlap,
          .seed = 1};
}

SamplingParams greedy(std::int32_t max_tokens) {
  return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true};
}

/// Its message does not fit into a short string.
struct Thrown : std::exception {
  [[nodiscard]] const char* what() const noexcept override {
    return "a message that does not fit into a short string";
  }
};

/// Calls `action` with the first allocation failing, then the second, until none fails.
template <class Action>
int fail_each(const Action& action) {
  int num_failed = 0;
  for (std::int64_t n = 0;; ++n) {
    allocations_left = n;
    try {
      action();
    } catch (const std::bad_alloc&) {  // or it goes on without
    }
    const bool was_reached = allocations_left < 0;
    allocations_left = -1;
    if (!was_reached) return num_failed;
    ++num_failed;
  }
}

}  // namespace

TEST_CASE("a callback throws while there is no memory for its message", "[memory][callbacks]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const std::vector<TokenId> expected = engine.generate("The king", greedy(12)).token_ids;
  for (std::int64_t n = 0; n < 12; ++n) {
    INFO("allocation " << n);
    int num_heard = 0;
    std::vector<Output> a, b, c;
    engine.submit("Once upon a time", greedy(8), [&](const TokenEvent& event) {
      {
        const PausedFailures paused;
        if (event.output != nullptr) a.push_back(*event.output);
      }
      if (++num_heard != 2 || event.output != nullptr) return;
      allocations_left = n;
      throw Thrown();
    });
    engine.submit("The king", greedy(12), [&](const TokenEvent& event) {
      const PausedFailures paused;
      if (event.output != nullptr) b.push_back(*event.output);
    });
    for (bool goes_on = true; goes_on;) {
      try {
        goes_on = engine.step();
      } catch (const std::bad_alloc&) {  // before anything was planned
      }
    }
    allocations_left = -1;
    REQUIRE(a.size() == 1);
    CHECK(a[0].finish_reason == FinishReason::error);
    CHECK(a[0].error.find("callback threw") != std::string::npos);
    REQUIRE(b.size() == 1);
    if (b[0].finish_reason != FinishReason::error) CHECK(b[0].token_ids == expected);
    // Callbacks of other threads are called, too.
    std::thread([&] {
      engine.submit("The king", greedy(3), [&](const TokenEvent& event) {
        if (event.output != nullptr) c.push_back(*event.output);
      });
      while (engine.step()) {
      }
    }).join();
    REQUIRE(c.size() == 1);
    CHECK(c[0].token_ids == std::vector(expected.begin(), expected.begin() + 3));
    engine.check_invariants();
  }
}

TEST_CASE("what generate throws for want of memory is an Error", "[memory]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const std::vector<TokenId> expected = engine.generate("The king", greedy(4)).token_ids;
  int num_errors = 0;
  bool was_reached = true;
  for (std::int64_t n = 0; was_reached; ++n) {
    INFO("allocation " << n);
    const Prompt prompt("The king");
    const SamplingParams params = greedy(4);
    allocations_left = n;
    try {
      const Output out = engine.generate(prompt, params);
      was_reached = std::exchange(allocations_left, -1) < 0;
      CHECK((out.token_ids == expected || !out.error.empty()));
    } catch (const Error& error) {
      allocations_left = -1;
      CHECK_THAT(error.what(), Catch::Matchers::Contains("generate: no memory to go on"));
      ++num_errors;
    }
    while (engine.step()) {
    }
    CHECK(engine.generate("The king", greedy(4)).token_ids == expected);
    engine.check_invariants();
  }
  CHECK(num_errors > 3);
}

TEST_CASE("a session's call returns, though there is no memory for its output", "[memory]") {
  TestEngine engine(small_config(false));
  Session session(engine);
  SamplingParams params = greedy(3);
  params.logprobs = 2;
  int num_lost = 0;
  bool was_reached = true;
  for (std::int64_t n = 0; was_reached; ++n) {
    int num_tokens = 0;
    try {
      const Output out = session.generate("Once upon", params, [&](const TokenEvent&) {
        if (++num_tokens == 2) allocations_left = n;  // of the last step, and of its delivery
      });
      const PausedFailures paused;
      num_lost += out.error == "out of memory" && out.token_ids.empty() ? 1 : 0;
    } catch (const std::bad_alloc&) {  // before the step was planned
    }
    was_reached = allocations_left < 0;
    allocations_left = -1;
    while (engine.step()) {
    }
    session.clear();
    engine.check_invariants();
  }
  CHECK(num_lost > 0);
  CHECK(session.generate("Once upon", greedy(3)).error == "");
}

TEST_CASE("a tokeniser has no need of memory when a call ends", "[memory]") {
  const Checkpoint files(model_directory("fairytale"));
  const Tokenizer tokenizer = Tokenizer::from_checkpoint(files);
  const std::vector<TokenId> expected = tokenizer.encode("Once upon a time");
  int num_failed = 0;
  for (bool was_reached = true; was_reached; ++num_failed) {
    const Tokenizer fresh = Tokenizer::from_checkpoint(files);  // it has no workspace yet
    allocations_left = num_failed;
    try {
      static_cast<void>(fresh.encode("Once upon a time"));
    } catch (const std::bad_alloc&) {
    }
    was_reached = allocations_left < 0;
    allocations_left = -1;
    CHECK(fresh.encode("Once upon a time") == expected);
  }
  CHECK(num_failed > 3);
}

TEST_CASE("a grammar's readings need no memory to be freed", "[memory]") {
  JsonSchemaCompiler compiler(nanovllm_test::byte_vocabulary());
  const auto source = compiler.json_schema(
      R"({"$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}},
          "$ref": "#/$defs/list"})");
  std::vector<std::uint32_t> bits(num_mask_words(static_cast<std::size_t>(source->vocab_size())));
  const auto token_of = [](char c) { return static_cast<TokenId>(2 + c); };
  const int num_failed = fail_each([&] {
    const auto matcher = source->matcher();
    for (const char c : {'[', '[', '[', '[', ']', ',', '[', ']', ']', ',', '['}) {
      static_cast<void>(matcher->accept(token_of(c)));
      const auto clone = matcher->clone();
      std::ranges::fill(bits, 0u);
      clone->fill(bits);
    }
  });
  CHECK(num_failed > 20);
  // However deep the brackets are, by frames that lead to each other.
  const auto deep = source->matcher();
  int depth = 0;
  while (depth < 200'000 && deep->accept(token_of('['))) ++depth;
  CHECK(depth > 200);
}
