#include "nanovllm/serve/constraint/cached_constraint_compiler.hpp"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "grammar/json/takes.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/grammar/regex/regex_source.hpp"

namespace nv = nanovllm;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::takes;
using Kind = nv::serve::OutputConstraint::Kind;

namespace {

/// Compiles nothing, slowly, and counts.
struct SlowCompiler : nv::serve::SizedConstraintCompiler {
  std::shared_ptr<const nv::GrammarVocabulary> vocabulary = byte_vocabulary();
  std::atomic<int> num_calls = 0;

  nv::serve::CompiledConstraint compile_sized(
      const nv::serve::OutputConstraint& constraint) override {
    ++num_calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (constraint.text == "bad") throw nv::RequestError("bad");
    return {std::make_shared<const nv::RegexSource>(vocabulary, constraint.text),
            constraint.text.size()};
  }
};

}  // namespace

TEST_CASE("equal constraints are compiled once, by however many threads they are asked for") {
  const auto inner = std::make_shared<SlowCompiler>();
  nv::serve::CachedConstraintCompiler cache(inner, 100);
  std::vector<std::shared_ptr<const nv::TokenMaskSource>> sources(8);
  std::atomic<int> num_failures = 0;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < sources.size(); ++t) {
    threads.emplace_back([&, t] {
      sources[t] = cache.compile({.kind = Kind::regex, .text = "abc"});
      try {
        (void)cache.compile({.kind = Kind::regex, .text = "bad"});
      } catch (const nv::RequestError&) {
        ++num_failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& source : sources) CHECK(source == sources[0]);
  CHECK(num_failures == 8);
  CHECK(cache.size_bytes() == 3);
  const int before = inner->num_calls;
  CHECK(before >= 2);
  CHECK_THROWS_AS(cache.compile({.kind = Kind::regex, .text = "bad"}), nv::RequestError);
  CHECK(inner->num_calls == before + 1);  // failures are not remembered
  CHECK(cache.compile({.kind = Kind::regex, .text = "abc"}) == sources[0]);
  CHECK(inner->num_calls == before + 1);
  CHECK(cache.num_compiled() == static_cast<std::size_t>(before) + 1);
}

TEST_CASE("the cache forgets what was not asked for of late") {
  const auto inner = std::make_shared<SlowCompiler>();
  nv::serve::CachedConstraintCompiler cache(inner, 10);
  const auto compile = [&](const std::string& text) {
    return cache.compile({.kind = Kind::regex, .text = text});
  };
  CHECK(cache.compile({}) == nullptr);
  const auto first = compile("aaaa");
  (void)compile("bbbb");
  (void)compile("aaaa");
  CHECK(inner->num_calls == 2);
  (void)compile("cccc");  // bbbb goes
  CHECK(cache.size_bytes() == 8);
  CHECK(compile("aaaa") == first);
  CHECK(inner->num_calls == 3);
  (void)compile("bbbb");
  CHECK(inner->num_calls == 4);
  CHECK(takes(*first, "aaaa"));
  (void)compile(std::string(11, 'x'));  // larger than the cache: made, not remembered
  CHECK(cache.size_bytes() == 8);
  (void)compile(std::string(11, 'x'));
  CHECK(inner->num_calls == 6);
}

TEST_CASE("constraints that differ anywhere are not taken for each other") {
  const auto vocabulary = byte_vocabulary({"</think>"});
  nv::serve::CachedConstraintCompiler cache(
      std::make_shared<nv::serve::OutputConstraintCompiler>(vocabulary));
  const auto compile = [&](nv::serve::OutputConstraint constraint) {
    return cache.compile(constraint);
  };
  const std::vector<std::shared_ptr<const nv::TokenMaskSource>> sources{
      compile({.kind = Kind::regex, .text = "ab"}),
      compile({.kind = Kind::choice, .choices = {"ab"}}),
      compile({.kind = Kind::choice, .choices = {"a", "b"}}),
      compile({.kind = Kind::choice, .choices = {"a1:b"}}),
      compile({.kind = Kind::choice, .text = "ab", .choices = {"ab"}}),
      compile({.kind = Kind::regex, .text = "ab", .after_reasoning = true}),
      compile({.kind = Kind::json_object}),
      compile({.kind = Kind::json_object, .json_space = nv::serve::JsonSpace::none}),
      compile({.kind = Kind::json_object, .json_space = nv::serve::JsonSpace::any}),
      compile({.kind = Kind::regex, .text = "ab", .tools = nv::Json::array()}),
      compile({.kind = Kind::regex, .text = "ab", .parallel_tool_calls = false}),
      compile({.kind = Kind::regex,
               .text = "ab",
               .tool_call_format = nv::ToolCallFormat::qwen3_coder})};
  CHECK(cache.num_compiled() == sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(sources[i] != sources[j]);
}
