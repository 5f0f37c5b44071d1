#pragma once
/// Filters of numbers.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

#include "nanovllm/chat/jinja/environment.hpp"
#include "nanovllm/chat/jinja/operators.hpp"
#include "nanovllm/chat/jinja/text.hpp"
#include "nanovllm/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

inline Value abs_filter(Arguments& call) {
  check<RequestError>(call.self.is_number(), "abs needs a number, got ", call.self.type_name());
  const bool negative = call.self.real() < 0;
  const Value zero = Value::of(std::int64_t{0});
  return binary(negative ? Op::subtract : Op::add, zero, call.self, call.in.budget);
}

inline Value int_filter(Arguments& call) {
  const Value* otherwise = call.next("default");
  const std::int64_t base = call.integer("base", 10);
  const Value fallback = otherwise ? *otherwise : Value::of(std::int64_t{0});
  if (call.self.is_integer()) return Value::of(call.self.integer());
  if (call.self.kind() == Kind::big_integer) return call.self;
  double real = call.self.kind() == Kind::real ? call.self.real() : std::nan("");
  if (call.self.is_string()) {
    const std::string text(strip(call.self.text(), true, true));
    const bool plus = text.starts_with('+');
    std::int64_t out = 0;
    const char *begin = text.data() + (plus ? 1 : 0), *end = text.data() + text.size();
    const auto result =
        std::from_chars(begin, end, out, static_cast<int>(std::clamp<std::int64_t>(base, 2, 36)));
    if (result.ec == std::errc() && result.ptr == end) return Value::of(out);
    char* stop = nullptr;
    const double value = std::strtod(text.c_str(), &stop);
    const bool plain = text.find_first_not_of("0123456789+-.eE_") == text.npos;
    if (plain && !text.empty() && stop == text.c_str() + text.size()) real = value;
  }
  check<RequestError>(!call.self.is_undefined(), "int cannot take an undefined value");
  if (!(std::fabs(real) < 9.2e18)) return fallback;
  return Value::of(static_cast<std::int64_t>(real));
}

inline Value float_filter(Arguments& call) {
  const Value* otherwise = call.next("default");
  check<RequestError>(!call.self.is_undefined(), "float cannot take an undefined value");
  if (call.self.is_number()) return Value::of(call.self.real());
  if (call.self.is_string()) {
    const std::string text(strip(call.self.text(), true, true));
    char* stop = nullptr;
    const double value = std::strtod(text.c_str(), &stop);
    const bool hexadecimal = text.find_first_of("xX") != text.npos;
    if (!text.empty() && !hexadecimal && stop == text.c_str() + text.size())
      return Value::of(value);
  }
  return otherwise ? *otherwise : Value::of(0.0);
}

inline Value round_filter(Arguments& call) {
  const std::int64_t precision = call.integer("precision", 0);
  const Value* method = call.next("method");
  const std::string how = method ? str(*method, call.in.budget) : "common";
  check<RequestError>(call.self.is_number(), "round needs a number, got ", call.self.type_name());
  check<RequestError>(precision >= 0 && precision < 60, "'precision' must be in [0, 60)");
  if (how == "common") {
    if (call.self.is_integer()) return Value::of(call.self.integer());
    return Value::of(
        std::strtod(to_fixed(call.self.real(), static_cast<int>(precision)).c_str(), nullptr));
  }
  check<RequestError>(how == "ceil" || how == "floor",
                      "expected 'common', 'ceil' or 'floor', got '", how, "'");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = call.self.real() * scale;
  return Value::of((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

}  // namespace nanovllm::jinja
