#pragma once
/// What operators do with values.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/chat/jinja/ast.hpp"
#include "nanovllm/api/chat/jinja/text.hpp"
#include "nanovllm/api/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

// Texts with places for values.

inline std::string to_fixed(double value, int precision) {
  char buffer[400];
  const int size = std::snprintf(buffer, sizeof buffer, "%.*f", std::min(precision, 60), value);
  return std::string(buffer, static_cast<std::size_t>(size));
}

/// How a value is written: "-8", "05" or ".2", ahead of a letter.
struct Field {
  char side = '\0';  ///< a sign of `sides`, if there is one
  bool zeros = false;
  std::size_t width = 0;
  std::optional<int> precision{};

  /// Takes it off the front of `text`.
  Field(std::string_view& text, std::string_view sides) {
    const auto number = [&] {
      int n = 0;
      for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; text.remove_prefix(1))
        n = std::min(10000, n * 10 + (text[0] - '0'));
      return n;
    };
    if (!text.empty() && sides.find(text[0]) != sides.npos) {
      side = text[0];
      text.remove_prefix(1);
    }
    zeros = text.starts_with('0');
    width = static_cast<std::size_t>(number());
    if (!text.starts_with('.')) return;
    text.remove_prefix(1);
    precision = number();
  }

  /// @param left  whether the value stands at the left of its width
  void append(std::string& out, const Value& value, char letter, bool left, Budget& budget) const {
    std::string piece = converted(value, letter, budget);
    const std::size_t size = num_characters(piece);
    const std::size_t pad = width > size ? width - size : 0;
    const bool filled = zeros && !left;
    if (left)
      piece.append(pad, ' ');
    else
      piece.insert(filled && piece.starts_with('-') ? 1 : 0, pad,
                   filled && letter != 's' ? '0' : ' ');
    append_text(out, piece, budget);
  }

 private:
  [[nodiscard]] std::string converted(const Value& value, char letter, Budget& budget) const {
    if (letter == 's' || letter == 'r') {
      std::string piece;
      if (letter == 'r' && value.is_string())
        append_repr(piece, value.text());
      else
        append_str(piece, value, budget);
      if (precision) piece.resize(part(piece, 0, *precision).first.size());
      return piece;
    }
    require(value.is_number(), "'%", letter, "' needs a number, got '", value.type_name(), "'");
    if (letter == 'f') return to_fixed(value.real(), precision.value_or(6));
    if ((letter == 'd' || letter == 'i') && !value.is_integer()) {
      require(std::isfinite(value.real()), "'%", letter, "' needs a finite number");
      return to_fixed(std::trunc(value.real()) + 0.0, 0);  // not -0
    }
    if (letter == 'd' || letter == 'i') return std::to_string(value.integer());
    require(letter == 'x' && value.is_integer() && value.integer() >= 0,
            "expected %s, %r, %d, %i, %x, %f or %%, got %", letter);
    char buffer[24];
    std::snprintf(buffer, sizeof buffer, "%llx", static_cast<unsigned long long>(value.integer()));
    return buffer;
  }
};

/// `text % values`: %s, %r, %d, %i, %x, %f and %%, with a width, '-', '0' and a precision.
inline std::string percent_format(std::string_view text, const Value& values, Budget& budget) {
  const std::size_t count = values.is_tuple() ? values.list().size() : 1;
  std::size_t used = 0;
  std::string out;
  for (std::size_t mark = text.find('%'); mark != text.npos; mark = text.find('%')) {
    append_text(out, text.substr(0, mark), budget);
    text.remove_prefix(mark + 1);
    const Value* value = nullptr;
    if (text.starts_with('(') && values.is_dict()) {
      const std::size_t end = std::min(text.find(')'), text.size() - 1);
      value = find(values.dict(), Value::of(text.substr(1, end - 1)), budget);
      require(value != nullptr, "a '%' format names what its dict lacks");
      text.remove_prefix(end + 1);
    }
    const Field field(text, "-");
    require(!text.empty(), "a '%' format lacks its letter");
    const char letter = text[0];
    text.remove_prefix(1);
    if (letter == '%') {
      out += '%';
      continue;
    }
    if (value == nullptr) {
      require(used < count, "a '%' format needs more values");
      value = values.is_tuple() ? &values.list()[used] : &values;
      ++used;
    }
    field.append(out, *value, letter, field.side == '-', budget);
  }
  append_text(out, text, budget);
  require(values.is_dict() || used == count, "not all values of a '%' format were used");
  return out;
}

// Arithmetic.

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

// Comparisons.

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

}  // namespace nanovllm::jinja
