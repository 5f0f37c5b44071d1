#pragma once
/// Filters that are more than a line of natives.hpp.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "nanovllm/api/chat/jinja/call.hpp"
#include "nanovllm/api/chat/jinja/methods.hpp"
#include "nanovllm/api/chat/jinja/operators.hpp"
#include "nanovllm/api/chat/jinja/text.hpp"
#include "nanovllm/api/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/sort.hpp"

namespace nanovllm::jinja {

// Texts.

/// The text of an indent: itself, or blanks.
inline std::string indent_of(const Value& value, std::string_view name) {
  require(value.is_string() || value.is_integer(), "'", name, "' must be an int or a str, got ",
          value.type_name());
  if (value.is_string()) return value.text();
  return std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(value.integer(), 0, 1024)),
                     ' ');
}

inline Value tojson_filter(Call& call) {
  Spelling how{.json = true};
  how.ensure_ascii = call.flag("ensure_ascii");
  if (const Value* indent = call.given("indent")) {
    how.indent = indent_of(*indent, "indent");
    how.item_separator.resize(1);  // without the blank
  }
  if (const Value* both = call.given("separators")) {
    const List parts = elements(*both, call.in);
    require(parts.size() == 2 && parts[0].is_string() && parts[1].is_string(),
            "'separators' must be two strings");
    how.item_separator = parts[0].text();
    how.key_separator = parts[1].text();
  }
  how.sort_keys = call.flag("sort_keys");
  std::string out;
  Writer(out, how, call.in).write(call.self);
  return Value::of(std::move(out));
}

inline Value replace_filter(Call& call) {
  const std::string from = str(call.required("old"), call.in);
  const std::string to = str(call.required("new"), call.in);
  const Value* count = call.next("count");
  return Value::of(replaced(call, from, to, count && count->is_integer() ? count->integer() : -1));
}

inline Value indent_filter(Call& call) {
  const Value* width = call.next("width");
  const std::string by = indent_of(width ? *width : Value::of(4), "width");
  const bool first = call.flag("first"), blank = call.flag("blank");
  const auto lines = parts_of(call, "\n");
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i == 0 ? first : blank || !lines[i].empty()) append_text(out, by, call.in);
    append_text(out, lines[i], call.in);
  }
  return Value::of(std::move(out));
}

inline Value format_filter(Call& call) {
  require(call.positional.empty() || call.named.empty(), "format takes values or names, not both");
  Dict names;
  for (const auto& [name, value] : call.named) names.emplace_back(Value::of(name), value);
  const Value values = names.empty() ? Value::of(call.positional, Kind::tuple) : Value::of(names);
  call.take_all();
  return Value::of(percent_format(call.subject(), values, call.in));
}

inline Value string_filter(Call& call) { return call.subject(), call.self; }
inline Value safe_filter(Call& call) { return Value::of(call.subject(), true); }
inline Value escape_filter(Call& call) {
  return call.self.is_safe() ? call.self : Value::of(escape(call.subject()), true);
}

// Numbers.

inline Value abs_filter(Call& call) {
  require(call.self.is_number(), "abs needs a number, got ", call.self.type_name());
  return binary(call.self.real() < 0 ? Op::subtract : Op::add, Value::of(0), call.self, call.in);
}

/// The number that the whole text is.
inline std::optional<double> to_real(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool hexadecimal = text.find_first_of("xX") != text.npos;
  if (text.empty() || hexadecimal || end != text.c_str() + text.size()) return std::nullopt;
  return value;
}

inline Value int_filter(Call& call) {
  const Value* otherwise = call.next("default");
  const auto base = static_cast<int>(std::clamp<std::int64_t>(call.integer("base", 10), 2, 36));
  require(!call.self.is_undefined(), "int cannot take an undefined value");
  if (call.self.is_integer()) return Value::of(call.self.integer());
  if (call.self.kind() == Kind::big_integer) return call.self;
  double real = call.self.kind() == Kind::real ? call.self.real() : std::nan("");
  if (call.self.is_string()) {
    const std::string text(strip(call.self.text(), true, true));
    std::int64_t out = 0;
    const char* const end = text.data() + text.size();
    const auto result =
        std::from_chars(text.data() + (text.starts_with('+') ? 1 : 0), end, out, base);
    if (result.ec == std::errc() && result.ptr == end) return Value::of(out);
    if (base == 10 && result.ec == std::errc::result_out_of_range && result.ptr == end)
      return Value::big_integer(text);
    if (text.find_first_not_of("0123456789+-.eE_") == text.npos)
      real = to_real(text).value_or(real);
  }
  if (std::fabs(real) < 9.2e18) return Value::of(static_cast<std::int64_t>(real));
  if (std::isfinite(real)) return Value::big_integer(to_fixed(real, 0));
  return otherwise ? *otherwise : Value::of(0);
}

inline Value float_filter(Call& call) {
  const Value* otherwise = call.next("default");
  require(!call.self.is_undefined(), "float cannot take an undefined value");
  if (call.self.is_number()) return Value::of(call.self.real());
  const bool digits = call.self.is_string() || call.self.kind() == Kind::big_integer;
  const auto value =
      digits ? to_real(std::string(strip(call.self.text(), true, true))) : std::nullopt;
  return value ? Value::of(*value) : otherwise ? *otherwise : Value::of(0.0);
}

inline Value round_filter(Call& call) {
  const std::int64_t precision = call.integer("precision", 0);
  const Value* method = call.next("method");
  const std::string how = method ? str(*method, call.in) : "common";
  const Value& self = call.self;
  require(self.is_number(), "round needs a number, got ", self.type_name());
  require(precision >= 0 && precision < 60, "'precision' must be in [0, 60)");
  require(how == "common" || how == "ceil" || how == "floor",
          "expected 'common', 'ceil' or 'floor', got '", how, "'");
  if (how == "common" && self.is_integer()) return Value::of(self.integer());
  if (how == "common")
    return Value::of(
        std::strtod(to_fixed(self.real(), static_cast<int>(precision)).c_str(), nullptr));
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = self.real() * scale;
  return Value::of((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// Members and orders of elements.

/// `value.a.0.b`, for the path "a.0.b"; the value itself without a path.
/// @param otherwise  takes the place of what is undefined, unless it is null.
inline Value member(Value value, const Value* path, Budget& budget,
                    const Value* otherwise = nullptr) {
  const auto step = [&](const Value& key) {
    value = item(value, key, budget);
    if (value.is_undefined() && otherwise != nullptr) value = *otherwise;
  };
  if (path != nullptr && path->is_integer()) step(*path);
  if (path == nullptr || path->is_integer()) return value;
  for (const std::string_view part : split(path->text(), ".", -1, false)) {
    std::int64_t index = 0;
    const char* const end = part.data() + part.size();
    const auto result = std::from_chars(part.data(), end, index);
    const bool number = result.ec == std::errc() && result.ptr == end;
    step(number ? Value::of(index) : Value::of(part));
  }
  return value;
}

/// `items` in the order of their keys.
inline List sorted(const List& items, const List& keys, bool reverse, Budget& budget) {
  const auto order = stable_order(items.size(), [&](std::uint32_t a, std::uint32_t b) {
    return compare(keys[reverse ? b : a], keys[reverse ? a : b], budget) < 0;
  });
  List out;
  for (const std::uint32_t i : order) out.push_back(items[i]);
  return out;
}

/// What values are ordered by: a text in lower case unless `exact`.
inline List order_keys(List values, bool exact) {
  for (Value& value : values)
    if (!exact && value.is_string()) value = Value::of(in_case(value.text(), Case::lower));
  return values;
}

/// The elements, and what they are ordered by, by the parameters that several filters have.
struct Keyed {
  explicit Keyed(Call& call) {
    const bool exact = call.flag("case_sensitive");
    const Value* path = call.path();
    items = elements(call.self, call.in);
    for (const Value& item : items) keys.push_back(member(item, path, call.in));
    keys = order_keys(std::move(keys), exact);
  }
  List items, keys{};
};

inline Value sort_filter(Call& call) {
  const bool reverse = call.flag("reverse");
  const Keyed by(call);
  return Value::of(sorted(by.items, by.keys, reverse, call.in));
}

/// min and max.
template <bool kMost>
Value extreme_filter(Call& call) {
  const Keyed by(call);
  const List out = sorted(by.items, by.keys, kMost, call.in);
  return out.empty() ? Value() : out[0];
}

inline Value unique_filter(Call& call) {
  const Keyed by(call);
  List out, known;
  for (std::size_t i = 0; i < by.items.size(); ++i) {
    const auto same = [&](const Value& other) { return equal(by.keys[i], other, call.in); };
    if (std::any_of(known.begin(), known.end(), same)) continue;
    known.push_back(by.keys[i]);
    out.push_back(by.items[i]);
  }
  return Value::of(std::move(out), Kind::generator);
}

inline Value dictsort_filter(Call& call) {
  const bool exact = call.flag("case_sensitive");
  const Value* by = call.next("by");
  const bool by_value = by != nullptr && by->is_string() && by->text() == "value";
  const bool reverse = call.flag("reverse");
  require(call.self.is_dict(), "dictsort needs a dict, got ", call.self.type_name());
  List keys;
  for (const auto& [key, value] : call.self.dict()) keys.push_back(by_value ? value : key);
  const Value items = view_method<Kind::items>(call);
  return Value::of(sorted(items.list(), order_keys(keys, exact), reverse, call.in));
}

/// Elements by what a member of theirs is, in its order.
inline Value groupby_filter(Call& call) {
  const Value* path = call.path();
  require(path != nullptr, "groupby needs an 'attribute'");
  const Value* otherwise = call.next("default");
  const bool exact = call.flag("case_sensitive");
  const List items = elements(call.self, call.in);
  List members, out;
  for (const Value& item : items) members.push_back(member(item, path, call.in, otherwise));
  List keys = order_keys(members, exact);
  const List ordered = sorted(items, keys, false, call.in);
  members = sorted(members, keys, false, call.in);
  keys = order_keys(members, exact);
  for (std::size_t i = 0, first = 0; i < ordered.size(); ++i) {
    if (i + 1 < ordered.size() && equal(keys[i], keys[i + 1], call.in)) continue;
    const auto begin = ordered.begin();
    List group(begin + static_cast<std::ptrdiff_t>(first),
               begin + static_cast<std::ptrdiff_t>(i + 1));
    out.push_back(Value::of({members[first], Value::of(std::move(group))}, Kind::group));
    first = i + 1;
  }
  return Value::of(std::move(out));
}

inline Value sum_filter(Call& call) {
  const Value* path = call.path();
  const Value* start = call.next("start");
  Value out = start ? *start : Value::of(0);
  for (const Value& item : elements(call.self, call.in))
    out = binary(Op::add, out, member(item, path, call.in), call.in);
  return out;
}

inline Value join_filter(Call& call) {
  const Value* separator = call.next("d");
  const Value* path = call.path();
  List items = elements(call.self, call.in);
  for (Value& item : items) item = member(std::move(item), path, call.in);
  return join_values(items, separator ? str(*separator, call.in) : "", call.in);
}

inline Value length_filter(Call& call) {
  const Value& of = call.self;
  if (of.is_string()) return Value::of(num_characters(of.text()));
  if (of.is_dict()) return Value::of(of.dict().size());
  if (of.is_undefined()) return Value::of(0);
  require(of.is_list() && of.kind() != Kind::generator, "a value of type '", of.type_name(),
          "' has no length");
  return Value::of(of.list().size());
}

inline Value default_filter(Call& call) {
  const Value* otherwise = call.next("default_value");
  const bool falsy = call.flag("boolean");
  if (!call.self.is_undefined() && (!falsy || call.self.truth())) return call.self;
  return otherwise ? *otherwise : Value::of(std::string());
}

/// first and last.
template <bool kLast>
Value end_filter(Call& call) {
  const List items = elements(call.self, call.in);
  if (items.empty()) return Value();
  return kLast ? items.back() : items.front();
}

inline Value list_filter(Call& call) { return Value::of(elements(call.self, call.in)); }

inline Value reverse_filter(Call& call) {
  List items = elements(call.self, call.in);
  std::reverse(items.begin(), items.end());
  if (call.self.is_string()) return join_values(items, "", call.in);
  return Value::of(std::move(items), Kind::generator);
}

inline Value items_filter(Call& call) {
  if (call.self.is_undefined()) return Value::of(List(), Kind::generator);
  require(call.self.is_dict(), "items needs a dict, got ", call.self.type_name());
  return Value::of(view_method<Kind::items>(call).list(), Kind::generator);
}

inline Value batch_filter(Call& call) {
  const auto size =
      static_cast<std::size_t>(std::max<std::int64_t>(1, call.integer("linecount", 1)));
  const Value* fill = call.given("fill_with");
  List out, row;
  for (const Value& item : elements(call.self, call.in)) {
    row.push_back(item);
    if (row.size() == size) out.push_back(Value::of(std::exchange(row, {})));
  }
  require(fill == nullptr || size < 100000, "'linecount' is too large");
  if (fill != nullptr && !row.empty()) row.resize(size, *fill);
  if (!row.empty()) out.push_back(Value::of(std::move(row)));
  return Value::of(std::move(out), Kind::generator);
}

/// The elements of what map and select get; none of what is false, as None.
inline List elements_if_any(Call& call) {
  return call.self.truth() ? elements(call.self, call.in) : List();
}

/// What the filter, or the test, that the next argument names makes of `values`; the arguments
/// after it are its own.
inline void apply_named(Call& call, Natives set, List& values) {
  const bool tests = set == Natives::test;
  const std::string& name = call.text(tests ? "test" : "name");
  const Native native = find_native(set, name);
  require(native != nullptr || values.empty(), "there is no ", tests ? "test" : "filter",
          " called '", name, "'");
  const auto first = call.positional.begin() + static_cast<std::ptrdiff_t>(call.num_taken);
  for (Value& value : values) {
    Call inner{.in = call.in,
               .self = std::move(value),
               .positional = {first, call.positional.end()},
               .named = call.named};
    value = run_native(native, inner);
  }
  call.take_all();
}

inline Value map_filter(Call& call) {
  List values = elements_if_any(call);
  if (call.positional.empty()) {
    const Value* path = call.path();
    require(path != nullptr, "map needs a filter's name or 'attribute'");
    const Value* otherwise = call.next("default");
    for (Value& value : values) value = member(std::move(value), path, call.in, otherwise);
  } else {
    apply_named(call, Natives::filter, values);
  }
  return Value::of(std::move(values), Kind::generator);
}

/// select and reject; with `kAttribute` a member is tested.
template <bool kWanted, bool kAttribute>
Value select_filter(Call& call) {
  require(!kAttribute || !call.positional.empty(), "expected an argument 'attribute'");
  const Value* path = kAttribute ? call.path() : nullptr;
  const List items = elements_if_any(call);
  List results;
  for (const Value& item : items) results.push_back(member(item, path, call.in));
  if (call.num_taken < call.positional.size()) apply_named(call, Natives::test, results);
  call.take_all();  // without a test the others count for nothing
  List out;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (results[i].truth() == kWanted) out.push_back(items[i]);
  return Value::of(std::move(out), Kind::generator);
}

}  // namespace nanovllm::jinja
