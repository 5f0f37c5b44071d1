// What constraints cost on the host, one thread:
//
//   token_masks TOKENIZER STOP_TOKEN
//
// TOKENIZER is a tokenizer.json or a model's directory, STOP_TOKEN a token's name, `<|im_end|>`. Each
// constraint is compiled, and a text that it allows is gone through token by token: at first, when
// every mask is worked out, and again. Where the program was built with nanovllm::xgrammar, it
// measures JSON Schemas, too.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/grammar/regex_source.hpp"
#if __has_include(<xgrammar/xgrammar.h>)
#include "nanovllm/grammar/xgrammar_source.hpp"
#endif

namespace nv = nanovllm;

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

/// The times of the masks of one way through a text, and of what else it took.
struct Walk {
  std::vector<double> fills;
  double accept_us = 0;
};

Walk walk(const nv::TokenMaskSource& source, const std::vector<nv::TokenId>& ids) {
  std::vector<std::uint32_t> bits(
      nv::num_mask_words(static_cast<std::size_t>(source.vocab_size())));
  Walk out;
  const auto matcher = source.matcher();
  for (nv::TokenId id : ids) {
    std::fill(bits.begin(), bits.end(), 0);
    auto begin = Clock::now();
    matcher->fill(bits);
    out.fills.push_back(microseconds_since(begin));
    nv::check(nv::is_allowed(bits, id), "token ", id, " is not allowed");
    begin = Clock::now();
    nv::check(matcher->accept(id), "token ", id, " is refused");
    out.accept_us += microseconds_since(begin);
  }
  std::sort(out.fills.begin(), out.fills.end());
  return out;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

using Compile = std::function<std::shared_ptr<const nv::TokenMaskSource>()>;

void measure(const nv::Tokenizer& tokenizer, const char* name, const Compile& compile,
             const std::string& text) {
  const std::vector<nv::TokenId> ids = tokenizer.encode(text);
  const auto begin = Clock::now();
  const std::shared_ptr<const nv::TokenMaskSource> source = compile();
  const double compile_us = microseconds_since(begin);
  const Walk first = walk(*source, ids);
  Walk again;
  for (int i = 0; i < 20; ++i) {
    Walk next = walk(*source, ids);
    again.fills.insert(again.fills.end(), next.fills.begin(), next.fills.end());
    again.accept_us += next.accept_us;
  }
  std::sort(again.fills.begin(), again.fills.end());
  std::printf("%-34s %7zu %9.2f %9.1f %9.1f %9.2f %9.2f %9.2f %8.2f\n", name, ids.size(),
              compile_us / 1000, mean(first.fills), first.fills.back(), mean(again.fills),
              again.fills[again.fills.size() / 2], again.fills[again.fills.size() * 99 / 100],
              again.accept_us / static_cast<double>(again.fills.size()));
}

constexpr const char* kPerson =
    R"({"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "tags": ["mathematics", "poetry", "Analytical Engine"], "about": "She wrote, in 1843, what many hold to be the first program; it computes Bernoulli numbers."})";

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: token_masks TOKENIZER STOP_TOKEN\n");
    return 2;
  }
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_file(argv[1]);
  const std::optional<nv::TokenId> stop = tokenizer.token_to_id(argv[2]);
  nv::check(stop.has_value(), "there is no token '", argv[2], "'");
  auto begin = Clock::now();
  const auto vocabulary =
      std::make_shared<const nv::GrammarVocabulary>(tokenizer, std::span(&*stop, 1));
  std::printf("%d tokens; GrammarVocabulary made in %.1f ms\n", vocabulary->vocab_size(),
              microseconds_since(begin) / 1000);
  std::printf("%-34s %7s %9s %9s %9s %9s %9s %9s %8s\n", "", "tokens", "compile", "first fill", "",
              "again", "", "", "accept");
  std::printf("%-34s %7s %9s %9s %9s %9s %9s %9s %8s\n", "", "", "ms", "mean us", "max", "mean us",
              "median", "p99", "us");

  const auto regex = [&](const std::string& pattern) {
    return [=] { return std::make_shared<const nv::RegexSource>(vocabulary, pattern); };
  };
  const std::string prose =
      "Once upon a time there was a king who had twelve daughters; each was "
      "more beautiful than the other, and all slept in one room.";
  measure(tokenizer, "regex yes|no|maybe", regex("yes|no|maybe"), "maybe");
  measure(tokenizer, "regex of a date", regex("\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])"),
          "2026-11-23");
  measure(tokenizer, "regex of an e-mail address", regex("[\\w.+-]+@[\\w-]+(\\.[\\w-]+)+"),
          "ada.lovelace+list@engines.example.org");
  measure(tokenizer, "regex .*", regex(".*"), prose);
  measure(tokenizer, "regex .{1,500}", regex(".{1,500}"), prose);
  measure(tokenizer, "regex [a-z ;,.A-Z]{1,500}", regex("[a-z ;,.A-Z]{1,500}"), prose);
  const std::string string = R"("([^"\\\x00-\x1f]|\\["\\/bfnrt])*")";
  measure(
      tokenizer, "regex of a JSON object",
      regex("\\{\"name\": " + string + ", \"age\": \\d{1,3}, \"email\": " + string +
            ", \"tags\": \\[(" + string + "(, " + string + ")*)?\\], \"about\": " + string + "\\}"),
      kPerson);

#if __has_include(<xgrammar/xgrammar.h>)
  begin = Clock::now();
  const nv::XGrammarCompiler compiler(vocabulary);
  std::printf("XGrammarCompiler made in %.1f ms\n", microseconds_since(begin) / 1000);
  const std::string schema = R"({"type": "object", "properties": {
      "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "email": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
      "about": {"type": "string"}}, "required": ["name", "age", "email", "tags", "about"]})";
  measure(
      tokenizer, "JSON", [&] { return compiler.json(); }, kPerson);
  measure(
      tokenizer, "JSON Schema", [&] { return compiler.json_schema(schema); }, kPerson);
  measure(
      tokenizer, "JSON Schema, compiled before", [&] { return compiler.json_schema(schema); },
      kPerson);
  const std::string bounded = R"({"type": "object", "properties": {
      "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"},
      "email": {"type": "string"}, "tags": {"type": "array", "items":
      {"enum": ["mathematics", "poetry", "Analytical Engine"]}, "maxItems": 4},
      "about": {"type": "string", "maxLength": 200}},
      "required": ["name", "age", "email", "tags", "about"]})";
  measure(
      tokenizer, "JSON Schema with maxLength", [&] { return compiler.json_schema(bounded); },
      kPerson);
#endif
} catch (const nv::Error& error) {
  std::fprintf(stderr, "token_masks: %s\n", error.what());
  return 1;
}
