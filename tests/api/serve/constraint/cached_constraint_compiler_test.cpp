#include "nanovllm/api/serve/constraint/cached_constraint_compiler.hpp"

#include <atomic>
#include <chrono>
#include <new>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "api/grammar/json/takes.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::takes;
using Kind = nv::serve::OutputConstraint::Kind;

namespace {

/// Compiles nothing, slowly, and counts.
struct SlowCompiler : nv::serve::SizedConstraintCompiler {
  std::shared_ptr<const nv::GrammarVocabulary> vocabulary = byte_vocabulary();
  std::atomic<int> num_calls = 0;

  nv::serve::CompiledConstraint compile_sized(const nv::serve::OutputConstraint& constraint,
                                              std::stop_token stop) override {
    const bool until_stopped = ++num_calls == 1 && constraint.text == "slow";
    for (int i = 0; i < 20 || until_stopped; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (stop.stop_requested()) throw nv::CompileCancelled("stopped");
    }
    if (constraint.text == "bad") throw nv::RequestError("bad");
    if (constraint.text == "unlucky") throw std::bad_alloc();
    return {std::make_shared<const nv::RegexSource>(vocabulary, constraint.text),
            constraint.text.size()};
  }
};

}  // namespace

TEST_CASE("equal constraints are compiled once, by however many threads they are asked for") {
  const auto inner = std::make_shared<SlowCompiler>();
  nv::serve::CachedConstraintCompiler cache(inner, 10'000);
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
  CHECK(inner->num_calls == 2);
  CHECK_THROWS_AS(cache.compile({.kind = Kind::regex, .text = "bad"}), nv::RequestError);
  CHECK(inner->num_calls == 2);  // a refusal is remembered
  CHECK(cache.compile({.kind = Kind::regex, .text = "abc"}) == sources[0]);
  CHECK_THROWS_AS(cache.compile({.kind = Kind::regex, .text = "unlucky"}), std::bad_alloc);
  CHECK_THROWS_AS(cache.compile({.kind = Kind::regex, .text = "unlucky"}), std::bad_alloc);
  CHECK(inner->num_calls == 4);  // any other failure is not
  CHECK(cache.num_compiled() == 4);
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

TEST_CASE("refusals are remembered within the same memory") {
  const auto inner = std::make_shared<SlowCompiler>();
  nv::serve::CachedConstraintCompiler cache(inner, 10'000);
  for (int i = 0; i < 20; ++i) {
    CHECK_THROWS_AS(
        cache.compile({.kind = Kind::regex, .text = "bad", .choices = {std::to_string(i)}}),
        nv::RequestError);
    CHECK(cache.size_bytes() <= 10'000);
  }
  CHECK(cache.size_bytes() > 5000);
}

TEST_CASE("a compilation that is stopped ends for its request alone") {
  const auto inner = std::make_shared<SlowCompiler>();
  nv::serve::CachedConstraintCompiler cache(inner, 10'000);
  const nv::serve::OutputConstraint slow{.kind = Kind::regex, .text = "slow"};
  std::stop_source first_stop, third_stop;
  std::atomic<int> num_stopped = 0;
  const auto compile = [&](std::stop_token stop) {
    try {
      return cache.compile(slow, stop);
    } catch (const nv::CompileCancelled&) {
      ++num_stopped;
      return std::shared_ptr<const nv::TokenMaskSource>();
    }
  };
  const auto wait_for = [](auto&& condition) {
    while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::shared_ptr<const nv::TokenMaskSource> second;
  std::thread one([&] { (void)compile(first_stop.get_token()); });
  wait_for([&] { return inner->num_calls == 1; });
  std::thread two([&] { second = compile({}); });
  std::thread three([&] { (void)compile(third_stop.get_token()); });
  third_stop.request_stop();  // it waits for the first
  three.join();
  CHECK(num_stopped == 1);
  first_stop.request_stop();
  one.join();
  CHECK(num_stopped == 2);
  two.join();  // compiled by itself
  CHECK(second != nullptr);
  CHECK(inner->num_calls == 2);
  CHECK(cache.compile(slow) == second);
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
