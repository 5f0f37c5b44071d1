// What constraints cost on the host, one thread:
//
//   token_masks TOKENIZER STOP_TOKEN
//
// TOKENIZER is a tokenizer.json or a model's directory, STOP_TOKEN a token's name, `<|im_end|>`. Each
// constraint is compiled, and a text that it allows is gone through token by token: at first, when
// every mask is worked out, and again. Then schemas of all kinds, each with 400 tokens drawn at random
// from what it allows, and the longest of their masks.

#include <time.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/core/error.hpp"

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

double cpu_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

/// One schema of each kind, those that have cost most among them.
std::vector<std::pair<std::string, std::string>> schemas() {
  const auto object_of = [](int count, const std::string& value, const std::string& more) {
    std::string out = R"({"type": "object", "properties": {)";
    for (int i = 0; i < count; ++i)
      out += (i ? ", \"property " : "\"property ") + std::to_string(i) + "\": " + value;
    return out + "}" + more + "}";
  };
  std::string values;
  for (int i = 0; i < 1000; ++i)
    values += (i ? ", \"value " : "\"value ") + std::to_string(i * 7919) + '"';
  const auto string = [](const std::string& key, const std::string& value) {
    return R"({"type": "string", ")" + key + "\": " + value + "}";
  };
  std::vector<std::pair<std::string, std::string>> out{
      {"any value", "true"},
      {"maxLength 40", string("maxLength", "40")},
      {"maxLength 200", string("maxLength", "200")},
      {"maxLength 100000", string("maxLength", "100000")},
      {"minLength 1000", string("minLength", "1000")},
      {"pattern ^[a-z]{1,200}$", string("pattern", "\"^[a-z]{1,200}$\"")},
      {"pattern ^.{1,2000}$", string("pattern", "\"^.{1,2000}$\"")},
      {"pattern ^(\\w{1,50} ){1,50}$", string("pattern", R"("^(\\w{1,50} ){1,50}$")")},
      {"enum of 1000", "{\"enum\": [" + values + "]}"},
      {"300 optional properties", object_of(300, R"({"type": "string", "maxLength": 20})", "")},
      {"1000 properties, not strict", object_of(
                                          1000, R"({"type": "integer"})",
                                          R"(, "additionalProperties": true, "required": [")" +
                                              [] {
                                                std::string names = "property 0";
                                                for (int i = 1; i < 1000; ++i)
                                                  names += "\", \"property " + std::to_string(i);
                                                return names;
                                              }() +
                                              "\"]")},
      {"20 to 40 of 60 properties",
       object_of(60, "true", R"(, "minProperties": 20, "maxProperties": 40)")},
      {"100 to 100000 items", R"({"type": "array", "items": {"type": "string", "maxLength": 9},
           "minItems": 100, "maxItems": 100000})"},
      {"propertyNames",
       R"({"type": "object", "propertyNames": {"maxLength": 10}, "additionalProperties": true})"},
      {"patternProperties", R"({"type": "object", "patternProperties": {
           "^x-[a-z]{1,100}$": {"type": "string", "maxLength": 9}, "^y": {"type": "integer"}}})"},
      {"anyOf of strings", R"({"anyOf": [{"type": "string", "maxLength": 5},
           {"type": "string", "minLength": 60}, {"type": "string", "pattern": "^a{7,50}$"}]})"},
      {"recursive $ref", R"({"anyOf": [{"type": "array", "items": {"$ref": "#"}},
           {"type": "array", "items": {"$ref": "#"}, "maxItems": 5}, {"type": "null"}]})"},
      {"bounded number", R"({"type": "number", "minimum": -1.2345, "maximum": 98765.4321})"},
      {"multipleOf 997", R"({"type": "integer", "multipleOf": 997})"}};
  for (const char* format :
       {"date-time", "duration", "email", "hostname", "ipv6", "json-pointer", "uri", "uuid"})
    out.emplace_back(std::string("format ") + format,
                     string("format", "\"" + std::string(format) + '"'));
  return out;
}

void measure_random(const nv::GrammarVocabulary& vocabulary) {
  std::printf("\n%-34s %9s %9s %9s %9s\n%-34s %9s %9s %9s %9s\n",
              "400 random tokens, processor time", "compile", "fill", "", "accept", "", "ms",
              "mean us", "max us", "max us");
  std::mt19937 random(1);
  for (const auto& [name, schema] : schemas()) {
    // A compiler of its own, so that no schema is the better for those before it.
    const nv::JsonSchemaCompiler compiler(
        std::shared_ptr<const nv::GrammarVocabulary>(std::shared_ptr<void>(), &vocabulary));
    double begin = cpu_us();
    const auto source = compiler.json_schema(schema);
    const double compile_us = cpu_us() - begin;
    std::vector<double> fills;
    double max_accept_us = 0;
    std::unique_ptr<nv::TokenMatcher> matcher;
    while (fills.size() < 400) {
      if (!matcher || matcher->is_finished()) matcher = source->matcher();
      std::vector<std::uint32_t> bits(
          nv::num_mask_words(static_cast<std::size_t>(vocabulary.vocab_size())));
      begin = cpu_us();
      matcher->fill(bits);
      fills.push_back(cpu_us() - begin);
      std::vector<nv::TokenId> tokens;
      for (nv::TokenId token = 0; token < vocabulary.vocab_size(); ++token)
        if (nv::is_allowed(bits, token)) tokens.push_back(token);
      begin = cpu_us();
      nv::check(matcher->accept(tokens[random() % tokens.size()]), "a token of a mask is refused");
      max_accept_us = std::max(max_accept_us, cpu_us() - begin);
    }
    std::printf("%-34s %9.2f %9.1f %9.1f %9.1f\n", name.c_str(), compile_us / 1000, mean(fills),
                *std::max_element(fills.begin(), fills.end()), max_accept_us);
  }
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

  begin = Clock::now();
  const nv::JsonSchemaCompiler compiler(vocabulary);
  std::printf("JsonSchemaCompiler made in %.1f ms\n", microseconds_since(begin) / 1000);
  const std::string schema = R"({"type": "object", "properties": {
      "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "email": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
      "about": {"type": "string"}}, "required": ["name", "age", "email", "tags", "about"]})";
  const std::string bounded = R"({"type": "object", "properties": {
      "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"},
      "email": {"type": "string"}, "tags": {"type": "array", "items":
      {"enum": ["mathematics", "poetry", "Analytical Engine"]}, "maxItems": 4},
      "about": {"type": "string", "maxLength": 200}},
      "required": ["name", "age", "email", "tags", "about"]})";
  measure(
      tokenizer, "JSON", [&] { return compiler.json(); }, kPerson);
  measure(
      tokenizer, "JSON Schema", [&] { return compiler.json_schema(schema); }, kPerson);
  measure(
      tokenizer, "JSON Schema with maxLength", [&] { return compiler.json_schema(bounded); },
      kPerson);
  measure_random(*vocabulary);
} catch (const nv::Error& error) {
  std::fprintf(stderr, "token_masks: %s\n", error.what());
  return 1;
}
