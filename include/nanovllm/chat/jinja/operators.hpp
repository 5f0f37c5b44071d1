#pragma once
/// What operators do with values.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/ast.hpp"
#include "nanovllm/chat/jinja/format.hpp"
#include "nanovllm/chat/jinja/text.hpp"
#include "nanovllm/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

[[noreturn]] inline void refuse_types(std::string_view op, const Value& a, const Value& b) {
  const auto name = [](const Value& value) {
    return value.is_undefined() && value.undefined_name() != nullptr
               ? concat("'", *value.undefined_name(), "', which is undefined")
               : concat("'", value.type_name(), "'");
  };
  throw RequestError(concat("'", op, "' cannot take ", name(a), " and ", name(b)));
}

/// `what * count`, for a text, a list or a tuple.
inline Value repeated(const Value& what, std::int64_t count, Budget& budget) {
  const std::size_t size = what.is_string() ? what.text().size() : what.list().size();
  const std::size_t times =
      size == 0 ? 0 : static_cast<std::size_t>(std::max<std::int64_t>(0, count));
  require(times == 0 || times <= Budget::kMaxText / size, "'*' makes too long a value");
  budget.charge(size * times / (what.is_string() ? 32 : 1));
  std::string text;
  List items;
  for (std::size_t i = 0; i < times; ++i) {
    if (what.is_string())
      text += what.text();
    else
      items.insert(items.end(), what.list().begin(), what.list().end());
  }
  return what.is_string() ? Value::of(std::move(text), what.is_safe())
                          : Value::of(std::move(items), what.kind());
}

/// + and * of what is not a number; an undefined value if they do not take it.
inline Value binary_sequence(Op op, const Value& a, const Value& b, Budget& budget) {
  const auto plain = [](const Value& value) {
    return value.kind() == Kind::list || value.kind() == Kind::tuple;
  };
  budget.charge(a.weight() + b.weight());
  if (op == Op::add && a.is_string() && b.is_string()) {
    const bool safe = a.is_safe() || b.is_safe();
    std::string out = safe && !a.is_safe() ? escape(a.text()) : a.text();
    append_text(out, safe && !b.is_safe() ? escape(b.text()) : b.text(), budget);
    return Value::of(std::move(out), safe);
  }
  if (op == Op::add && plain(a) && a.kind() == b.kind()) {
    List out = a.list();
    out.insert(out.end(), b.list().begin(), b.list().end());
    return Value::of(std::move(out), a.kind());
  }
  const Value& what = a.is_integer() ? b : a;
  const Value& count = a.is_integer() ? a : b;
  if (op != Op::multiply || !count.is_integer() || !(what.is_string() || plain(what)))
    return Value();
  return repeated(what, count.integer(), budget);
}

inline Value binary_integers(Op op, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  bool overflow = false;
  switch (op) {
    case Op::add: overflow = __builtin_add_overflow(a, b, &out); break;
    case Op::subtract: overflow = __builtin_sub_overflow(a, b, &out); break;
    case Op::multiply: overflow = __builtin_mul_overflow(a, b, &out); break;
    case Op::power:
      if (b < 0) return Value::of(std::pow(static_cast<double>(a), static_cast<double>(b)));
      out = 1;
      for (std::int64_t i = 0; i < b && !overflow && out != 0 && (a != 1 || i == 0); ++i)
        overflow = __builtin_mul_overflow(out, a, &out) || i > 64 * 64;
      break;
    default: {
      overflow = b == -1 && a == INT64_MIN;
      if (overflow) break;
      const std::int64_t rest = a % b;
      const bool down = rest != 0 && (rest < 0) != (b < 0);
      out = op == Op::modulo ? rest + (down ? b : 0) : a / b - (down ? 1 : 0);
    }
  }
  require(!overflow, "an integer exceeds 64 bits");
  return Value::of(out);
}

/// `a op b`, for the operators of arithmetic.
inline Value binary(Op op, const Value& a, const Value& b, Budget& budget) {
  constexpr std::string_view kNames[] = {"", "+", "-", "*", "/", "//", "%", "**"};
  if (op == Op::modulo && a.is_string())
    return Value::of(percent_format(a.text(), b, budget), a.is_safe());
  if (!a.is_number() || !b.is_number()) {
    Value out = binary_sequence(op, a, b, budget);
    if (out.is_undefined()) refuse_types(kNames[static_cast<std::size_t>(op)], a, b);
    return out;
  }
  const bool divides = op >= Op::divide && op <= Op::modulo;
  require(!divides || b.real() != 0.0, "division by zero");
  if (a.is_integer() && b.is_integer() && op != Op::divide)
    return binary_integers(op, a.integer(), b.integer());
  const double x = a.real(), y = b.real();
  switch (op) {
    case Op::add: return Value::of(x + y);
    case Op::subtract: return Value::of(x - y);
    case Op::multiply: return Value::of(x * y);
    case Op::divide: return Value::of(x / y);
    case Op::floor_divide: return Value::of(std::floor(x / y));
    case Op::modulo: {
      const double rest = std::fmod(x, y);
      return Value::of(rest != 0.0 && (rest < 0) != (y < 0) ? rest + y : rest);
    }
    default: return Value::of(std::pow(x, y));
  }
}

/// Whether `a` is in `b`.
inline bool contains(const Value& b, const Value& a, Budget& budget) {
  budget.charge(b.weight());
  if (b.is_string() && a.is_string()) return b.text().find(a.text()) != std::string::npos;
  if (b.is_dict()) return find(b.dict(), a, budget) != nullptr;
  if (b.is_undefined()) return false;
  if (!b.is_list()) refuse_types("in", a, b);
  return std::any_of(b.list().begin(), b.list().end(),
                     [&](const Value& item) { return equal(item, a, budget); });
}

/// `a op b`, for comparisons.
inline bool holds(Op op, const Value& a, const Value& b, Budget& budget) {
  switch (op) {
    case Op::equal: return equal(a, b, budget);
    case Op::not_equal: return !equal(a, b, budget);
    case Op::less: return compare(a, b, budget) < 0;
    case Op::less_equal: return compare(a, b, budget) <= 0;
    case Op::greater: return compare(a, b, budget) > 0;
    case Op::greater_equal: return compare(a, b, budget) >= 0;
    case Op::in: return contains(b, a, budget);
    default: return !contains(b, a, budget);
  }
}

/// `parts[0][parts[1]:parts[2]:parts[3]]`; None stands for what is not given.
inline Value slice(const List& parts, Budget& budget) {
  const Value& of = parts[0];
  require(of.is_string() || of.is_indexable(), "a value of type '", of.type_name(),
          "' cannot be sliced");
  for (std::size_t i = 1; i < 4; ++i)
    require(parts[i].is_none() || parts[i].is_integer(),
            "the bounds of a slice must be int or None, got ", parts[i].type_name());
  budget.charge(of.weight());
  const auto starts = of.is_string() ? character_starts(of.text()) : std::vector<std::size_t>();
  const auto size =
      static_cast<std::int64_t>(of.is_string() ? starts.size() - 1 : of.list().size());
  const std::int64_t step = parts[3].is_none() ? 1 : parts[3].integer();
  require(step != 0, "the step of a slice cannot be 0");
  const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](const Value& part, std::int64_t otherwise) {
    if (part.is_none()) return otherwise;
    return std::clamp(part.integer() < 0 ? part.integer() + size : part.integer(), low, high);
  };
  const std::int64_t begin = bound(parts[1], step > 0 ? low : high);
  const std::int64_t end = bound(parts[2], step > 0 ? high : low);
  std::string text;
  List items;
  const std::int64_t stride = std::clamp(step, -size - 1, size + 1);
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += stride) {
    const auto at = static_cast<std::size_t>(i);
    if (of.is_string())
      text.append(of.text(), starts[at], starts[at + 1] - starts[at]);
    else
      items.push_back(of.list()[at]);
  }
  if (of.is_string()) return Value::of(std::move(text), of.is_safe());
  return Value::of(std::move(items), of.kind());
}

}  // namespace nanovllm::jinja
