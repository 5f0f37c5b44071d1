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
#include <vector>

#include "nanovllm/chat/jinja/ast.hpp"
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

inline std::string to_fixed(double value, int precision) {
  char buffer[400];
  const int size = std::snprintf(buffer, sizeof buffer, "%.*f", std::min(precision, 60), value);
  return std::string(buffer, static_cast<std::size_t>(size));
}

/// `text % value`: %s, %r, %d, %i, %x, %f and %%, with a width, '-', '0' and a precision.
class PercentFormat {
 public:
  PercentFormat(const Value& values, Budget& budget) : budget_(budget) {
    const bool several = values.is_list() && values.sequence() == Sequence::tuple;
    values_ = several ? values.list().items : std::vector<Value>{values};
    names_ = values.is_dict() ? &values.dict() : nullptr;
  }

  [[nodiscard]] std::string format(std::string_view text) {
    std::string out;
    while (true) {
      const std::size_t mark = text.find('%');
      append_text(out, text.substr(0, mark), budget_);
      if (mark == text.npos) break;
      text.remove_prefix(mark + 1);
      read(out, text);
    }
    check<RequestError>(names_ != nullptr || used_ == values_.size(),
                        "not all values of a '%' format were used");
    return out;
  }

 private:
  void read(std::string& out, std::string_view& text) {
    const Value* value = nullptr;
    if (text.starts_with('(') && names_ != nullptr) {
      const std::size_t end = std::min(text.find(')'), text.size() - 1);
      value = names_->find(text.substr(1, end - 1), budget_);
      check<RequestError>(value != nullptr, "a '%' format names what its dict lacks");
      text.remove_prefix(end + 1);
    }
    const auto number = [&] {
      int n = 0;
      for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; text.remove_prefix(1))
        n = std::min(10000, n * 10 + (text[0] - '0'));
      return n;
    };
    const bool left = text.starts_with('-'), zero = text.starts_with('0');
    if (left) text.remove_prefix(1);
    const auto width = static_cast<std::size_t>(number());
    std::optional<int> precision;
    if (text.starts_with('.')) {
      text.remove_prefix(1);
      precision = number();
    }
    check<RequestError>(!text.empty(), "a '%' format lacks its letter");
    const char letter = text[0];
    text.remove_prefix(1);
    if (letter == '%') {
      out += '%';
      return;
    }
    if (value == nullptr) {
      check<RequestError>(used_ < values_.size(), "a '%' format needs more values");
      value = &values_[used_++];
    }
    std::string piece = converted(*value, letter, precision);
    const std::size_t size = num_characters(piece);
    const std::size_t pad = width > size ? width - size : 0;
    if (left)
      piece.append(pad, ' ');
    else
      piece.insert(zero && piece.starts_with('-') ? 1 : 0, pad, zero && letter != 's' ? '0' : ' ');
    append_text(out, piece, budget_);
  }

  std::string converted(const Value& value, char letter, std::optional<int> precision) {
    if (letter == 's' || letter == 'r') {
      std::string piece;
      if (letter == 'r' && value.is_string())
        append_repr(piece, value.text());
      else
        append_str(piece, value, budget_);
      if (precision) {
        const auto starts = character_starts(piece);
        piece.resize(starts[std::min(starts.size() - 1, static_cast<std::size_t>(*precision))]);
      }
      return piece;
    }
    check<RequestError>(value.is_number(), "'%", letter, "' needs a number, got '",
                        value.type_name(), "'");
    if (letter == 'f') return to_fixed(value.real(), precision.value_or(6));
    if (letter == 'd' || letter == 'i')
      return std::to_string(value.is_integer() ? value.integer()
                                               : static_cast<std::int64_t>(value.real()));
    check<RequestError>(letter == 'x' && value.is_integer() && value.integer() >= 0,
                        "expected %s, %r, %d, %i, %x, %f or %%, got %", letter);
    char buffer[24];
    std::snprintf(buffer, sizeof buffer, "%llx", static_cast<unsigned long long>(value.integer()));
    return buffer;
  }

  Budget& budget_;
  std::vector<Value> values_;
  const Dict* names_ = nullptr;
  std::size_t used_ = 0;
};

/// + and * of what is not a number; an undefined value if they do not take it.
inline Value binary_sequence(Op op, const Value& a, const Value& b, Budget& budget) {
  budget.charge(a.weight() + b.weight());
  if (op == Op::add && a.is_string() && b.is_string()) {
    const bool safe = a.is_safe() || b.is_safe();
    std::string out = safe && !a.is_safe() ? escape(a.text()) : a.text();
    append_text(out, safe && !b.is_safe() ? escape(b.text()) : b.text(), budget);
    return Value::of(std::move(out), safe);
  }
  if (op == Op::add && a.is_list() && b.is_list() && a.sequence() == b.sequence() &&
      a.sequence() <= Sequence::tuple) {
    std::vector<Value> out = a.list().items;
    out.insert(out.end(), b.list().items.begin(), b.list().items.end());
    return Value::of(std::move(out), a.sequence());
  }
  if (op != Op::multiply || !(a.is_integer() || b.is_integer())) return Value();
  const Value& what = a.is_integer() ? b : a;
  const std::int64_t count = std::max<std::int64_t>(0, (a.is_integer() ? a : b).integer());
  const bool list = what.is_list() && what.sequence() <= Sequence::tuple;
  if (!what.is_string() && !list) return Value();
  const std::size_t size = what.is_string() ? what.text().size() : what.list().items.size();
  check<RequestError>(size == 0 || static_cast<std::uint64_t>(count) <= Budget::kMaxText / size,
                      "'*' makes too long a value");
  budget.charge(size * static_cast<std::size_t>(count) / (list ? 1 : 32));
  if (what.is_string()) {
    std::string out;
    for (std::int64_t i = 0; i < count && size > 0; ++i) out += what.text();
    return Value::of(std::move(out), what.is_safe());
  }
  std::vector<Value> out;
  for (std::int64_t i = 0; i < count && size > 0; ++i)
    out.insert(out.end(), what.list().items.begin(), what.list().items.end());
  return Value::of(std::move(out), what.sequence());
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
  check<RequestError>(!overflow, "an integer exceeds 64 bits");
  return Value::of(out);
}

inline Value binary(Op op, const Value& a, const Value& b, Budget& budget) {
  constexpr std::string_view kNames[] = {"+", "-", "*", "/", "//", "%", "**"};
  if (op == Op::modulo && a.is_string())
    return Value::of(PercentFormat(b, budget).format(a.text()), a.is_safe());
  if (!a.is_number() || !b.is_number()) {
    Value out = binary_sequence(op, a, b, budget);
    if (out.is_undefined()) refuse_types(kNames[static_cast<std::size_t>(op)], a, b);
    return out;
  }
  const bool divides = op >= Op::divide && op <= Op::modulo;
  check<RequestError>(!divides || b.real() != 0.0, "division by zero");
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
  if (b.is_dict()) return b.dict().find(a, budget) != nullptr;
  if (b.is_undefined()) return false;
  if (!b.is_list()) refuse_types("in", a, b);
  const auto& items = b.list().items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(item, a, budget); });
}

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
inline Value slice(const std::vector<Value>& parts, Budget& budget) {
  const Value& of = parts[0];
  check<RequestError>(of.is_string() || of.is_indexable(), "a value of type '", of.type_name(),
                      "' cannot be sliced");
  for (std::size_t i = 1; i < 4; ++i)
    check<RequestError>(parts[i].is_none() || parts[i].is_integer(),
                        "the bounds of a slice must be int or None, got ", parts[i].type_name());
  budget.charge(of.weight());
  const auto starts = of.is_string() ? character_starts(of.text()) : std::vector<std::size_t>();
  const auto size =
      static_cast<std::int64_t>(of.is_string() ? starts.size() - 1 : of.list().items.size());
  const std::int64_t step = parts[3].is_none() ? 1 : parts[3].integer();
  check<RequestError>(step != 0, "the step of a slice cannot be 0");
  const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](const Value& part, std::int64_t otherwise) {
    if (part.is_none()) return otherwise;
    return std::clamp(part.integer() < 0 ? part.integer() + size : part.integer(), low, high);
  };
  const std::int64_t begin = bound(parts[1], step > 0 ? low : high);
  const std::int64_t end = bound(parts[2], step > 0 ? high : low);
  std::string text;
  std::vector<Value> items;
  const std::int64_t stride = std::clamp(step, -size - 1, size + 1);
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += stride) {
    const auto at = static_cast<std::size_t>(i);
    if (of.is_string())
      text.append(of.text(), starts[at], starts[at + 1] - starts[at]);
    else
      items.push_back(of.list().items[at]);
  }
  if (of.is_string()) return Value::of(std::move(text), of.is_safe());
  return Value::of(std::move(items), of.sequence());
}

}  // namespace nanovllm::jinja
