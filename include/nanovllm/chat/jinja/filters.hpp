#pragma once
/// Filters.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/environment.hpp"
#include "nanovllm/chat/jinja/methods.hpp"
#include "nanovllm/chat/jinja/operators.hpp"
#include "nanovllm/chat/jinja/text.hpp"
#include "nanovllm/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/sort.hpp"

namespace nanovllm::jinja {

/// A filter that is a method of the text of what it gets.
template <Native kMethod>
Value on_text(Arguments& call) {
  if (!call.self.is_string()) call.self = Value::of(str(call.self, call.in.budget));
  return kMethod(call);
}

inline Value tojson_filter(Arguments& call) {
  Spelling how{.json = true};
  how.ensure_ascii = call.flag("ensure_ascii");
  if (const Value* indent = call.next("indent"); indent != nullptr && !indent->is_none()) {
    check<RequestError>(indent->is_string() || indent->is_integer(),
                        "'indent' must be an int or a str, got ", indent->type_name());
    how.indent =
        indent->is_string()
            ? indent->text()
            : std::string(
                  static_cast<std::size_t>(std::clamp<std::int64_t>(indent->integer(), 0, 1024)),
                  ' ');
    how.item_separator = ",";
  }
  if (const Value* both = call.next("separators"); both != nullptr && !both->is_none()) {
    const std::vector<Value> parts = call.in.elements(*both);
    check<RequestError>(parts.size() == 2 && parts[0].is_string() && parts[1].is_string(),
                        "'separators' must be two strings");
    how.item_separator = parts[0].text();
    how.key_separator = parts[1].text();
  }
  how.sort_keys = call.flag("sort_keys");
  std::string out;
  Writer(out, how, call.in.budget).write(call.self);
  return Value::of(std::move(out));
}

inline Value length_filter(Arguments& call) {
  const Value& of = call.self;
  if (of.is_string()) return Value::of(num_characters(of.text()));
  if (of.is_dict()) return Value::of(of.dict().items.size());
  if (of.is_undefined()) return Value::of(std::int64_t{0});
  check<RequestError>(of.is_list() && of.sequence() != Sequence::generator, "a value of type '",
                      of.type_name(), "' has no length");
  return Value::of(of.list().items.size());
}

inline Value default_filter(Arguments& call) {
  const Value* otherwise = call.next("default_value");
  const bool falsy = call.flag("boolean");
  if (!call.self.is_undefined() && (!falsy || call.self.truth())) return call.self;
  return otherwise ? *otherwise : Value::of(std::string());
}

inline Value string_filter(Arguments& call) {
  return call.self.is_string() ? call.self : Value::of(str(call.self, call.in.budget));
}
inline Value escape_filter(Arguments& call) {
  if (call.self.is_safe()) return call.self;
  return Value::of(escape(str(call.self, call.in.budget)), true);
}
inline Value safe_filter(Arguments& call) {
  return Value::of(str(call.self, call.in.budget), true);
}

/// A word begins behind white space and - ( { [ <.
inline Value title_filter(Arguments& call) {
  const std::string& text = call.self.text();
  std::string out;
  bool begins = true;
  for (std::size_t i = 0; i < text.size();) {
    const utf8::Char c = utf8::decode(text, i);
    append_case(out, std::string_view(text).substr(i, c.size), begins ? Case::upper : Case::lower);
    begins = is_space(c.code_point) ||
             (c.size == 1 && std::string_view("-({[<").find(text[i]) != std::string_view::npos);
    i += c.size;
  }
  return Value::of(std::move(out));
}

inline Value trim_filter(Arguments& call) { return strip_method<true, true>(call); }

inline Value replace_filter(Arguments& call) {
  const std::string from = str(call.required("old"), call.in.budget);
  const std::string to = str(call.required("new"), call.in.budget);
  const Value* count = call.next("count");
  const bool all = count == nullptr || !count->is_integer();
  return Value::of(
      replaced(call.self.text(), from, to, all ? -1 : count->integer(), call.in.budget));
}

inline Value indent_filter(Arguments& call) {
  const Value* width = call.next("width");
  const bool first = call.flag("first"), blank = call.flag("blank");
  check<RequestError>(width == nullptr || width->is_string() || width->is_integer(),
                      "'width' must be an int or a str");
  const std::string by = width != nullptr && width->is_string()
                             ? width->text()
                             : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(
                                               width ? width->integer() : 4, 0, 1024)),
                                           ' ');
  std::string_view rest = call.self.text();
  std::string out;
  for (bool is_first = true;; is_first = false) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    if (is_first ? first : blank || !line.empty()) append_text(out, by, call.in.budget);
    append_text(out, line, call.in.budget);
    if (end == rest.npos) break;
    out += '\n';
    rest.remove_prefix(end + 1);
  }
  return Value::of(std::move(out));
}

inline Value wordcount_filter(Arguments& call) {
  return Value::of(split_text(call.self.text(), nullptr, -1, false).size());
}

/// `value.a.0.b`, for the path "a.0.b". `otherwise` takes the place of what is undefined.
inline Value member(Environment& in, Value value, const Value& path,
                    const Value* otherwise = nullptr) {
  const auto step = [&](const Value& key) {
    value = in.item(value, key);
    if (value.is_undefined() && otherwise != nullptr) value = *otherwise;
  };
  if (path.is_integer()) {
    step(path);
    return value;
  }
  std::string_view rest = path.text();
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    std::int64_t index = 0;
    const auto result = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = result.ec == std::errc() && result.ptr == part.data() + part.size();
    step(number ? Value::of(index) : Value::of(part));
    if (dot == rest.npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

/// What an element is ordered by: its member of that path, in lower case unless `exact`.
inline Value order_key(Environment& in, const Value& element, const Value* path, bool exact) {
  Value key = path != nullptr && !path->is_none() ? member(in, element, *path) : element;
  return exact || !key.is_string() ? key : Value::of(in_case(key.text(), Case::lower));
}

inline void check_path(const Value* path) {
  check<RequestError>(path == nullptr || path->is_none() || path->is_string() || path->is_integer(),
                      "'attribute' must be a str or an int");
}

inline std::vector<Value> sorted(const std::vector<Value>& items, const std::vector<Value>& keys,
                                 bool reverse, Budget& budget) {
  const auto order = stable_order(items.size(), [&](std::uint32_t a, std::uint32_t b) {
    return reverse ? compare(keys[b], keys[a], budget) < 0 : compare(keys[a], keys[b], budget) < 0;
  });
  std::vector<Value> out;
  for (const std::uint32_t i : order) out.push_back(items[i]);
  return out;
}

inline Value sort_filter(Arguments& call) {
  const bool reverse = call.flag("reverse"), exact = call.flag("case_sensitive");
  const Value* path = call.next("attribute");
  check_path(path);
  const std::vector<Value> items = call.in.elements(call.self);
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(order_key(call.in, item, path, exact));
  return Value::of(sorted(items, keys, reverse, call.in.budget));
}

inline Value dictsort_filter(Arguments& call) {
  const bool exact = call.flag("case_sensitive");
  const Value* by = call.next("by");
  const bool by_value = by != nullptr && by->is_string() && by->text() == "value";
  const bool reverse = call.flag("reverse");
  check<RequestError>(call.self.is_dict(), "dictsort needs a dict, got ", call.self.type_name());
  std::vector<Value> items, keys;
  for (const auto& [key, value] : call.self.dict().items) {
    keys.push_back(order_key(call.in, by_value ? value : key, nullptr, exact));
    items.push_back(Value::of(std::vector<Value>{key, value}, Sequence::tuple));
  }
  return Value::of(sorted(items, keys, reverse, call.in.budget));
}

inline Value unique_filter(Arguments& call) {
  const bool exact = call.flag("case_sensitive");
  const Value* path = call.next("attribute");
  check_path(path);
  std::vector<Value> out, keys;
  for (const Value& item : call.in.elements(call.self)) {
    Value key = order_key(call.in, item, path, exact);
    const bool known = std::any_of(keys.begin(), keys.end(), [&](const Value& other) {
      return equal(key, other, call.in.budget);
    });
    if (known) continue;
    keys.push_back(std::move(key));
    out.push_back(item);
  }
  return Value::of(std::move(out), Sequence::generator);
}

/// min, or with `kMost` max.
template <bool kMost>
Value extreme_filter(Arguments& call) {
  const bool exact = call.flag("case_sensitive");
  const Value* path = call.next("attribute");
  check_path(path);
  Value best, best_key;
  for (const Value& item : call.in.elements(call.self)) {
    Value key = order_key(call.in, item, path, exact);
    if (!best_key.is_undefined()) {
      const int order = compare(key, best_key, call.in.budget);
      if (kMost ? order <= 0 : order >= 0) continue;
    }
    best = item;
    best_key = std::move(key);
  }
  return best;
}

inline Value sum_filter(Arguments& call) {
  const Value* path = call.next("attribute");
  check_path(path);
  const Value* start = call.next("start");
  Value out = start ? *start : Value::of(std::int64_t{0});
  for (const Value& item : call.in.elements(call.self)) {
    const bool whole = path == nullptr || path->is_none();
    out = binary(Op::add, out, whole ? item : member(call.in, item, *path), call.in.budget);
  }
  return out;
}

inline Value join_filter(Arguments& call) {
  const Value* separator = call.next("d");
  const Value* path = call.next("attribute");
  check_path(path);
  std::vector<Value> items = call.in.elements(call.self);
  if (path != nullptr && !path->is_none())
    for (Value& item : items) item = member(call.in, item, *path);
  return join_values(items, separator ? str(*separator, call.in.budget) : "", call.in.budget,
                     false);
}

inline Value list_filter(Arguments& call) { return Value::of(call.in.elements(call.self)); }

/// first, or with `kLast` last.
template <bool kLast>
Value end_filter(Arguments& call) {
  const std::vector<Value> items = call.in.elements(call.self);
  if (items.empty()) return Value();
  return kLast ? items.back() : items.front();
}

inline Value reverse_filter(Arguments& call) {
  std::vector<Value> items = call.in.elements(call.self);
  std::reverse(items.begin(), items.end());
  if (!call.self.is_string()) return Value::of(std::move(items), Sequence::generator);
  return join_values(items, "", call.in.budget, true);
}

inline Value items_filter(Arguments& call) {
  if (call.self.is_undefined()) return Value::of(std::vector<Value>(), Sequence::generator);
  check<RequestError>(call.self.is_dict(), "items needs a dict, got ", call.self.type_name());
  return Value::of(view_method<Sequence::items>(call).list().items, Sequence::generator);
}

inline Value batch_filter(Arguments& call) {
  const std::int64_t size = std::max<std::int64_t>(1, call.integer("linecount", 1));
  const Value* fill = call.next("fill_with");
  std::vector<Value> out, row;
  const auto finish = [&] { out.push_back(Value::of(std::exchange(row, {}))); };
  for (const Value& item : call.in.elements(call.self)) {
    row.push_back(item);
    if (static_cast<std::int64_t>(row.size()) == size) finish();
  }
  if (row.empty()) return Value::of(std::move(out), Sequence::generator);
  check<RequestError>(fill == nullptr || size < 100000, "'linecount' is too large");
  while (fill != nullptr && static_cast<std::int64_t>(row.size()) < size) row.push_back(*fill);
  finish();
  return Value::of(std::move(out), Sequence::generator);
}

/// The elements of what map and select get; none of what is false, as None.
inline std::vector<Value> elements_if_any(Arguments& call) {
  return call.self.truth() ? call.in.elements(call.self) : std::vector<Value>();
}

inline Value map_filter(Arguments& call) {
  std::vector<Value> items = elements_if_any(call);
  if (call.positional.empty()) {
    const Value* path = call.next("attribute");
    check<RequestError>(path != nullptr, "map needs a filter's name or 'attribute'");
    check_path(path);
    const Value* otherwise = call.next("default");
    for (Value& item : items) item = member(call.in, item, *path, otherwise);
    return Value::of(std::move(items), Sequence::generator);
  }
  const std::string name = call.text("name");
  for (Value& item : items) {
    Arguments inner{.in = call.in, .self = std::move(item), .named = call.named};
    inner.positional.assign(call.positional.begin() + 1, call.positional.end());
    item = call.in.apply(Natives::filter, name, inner);
  }
  call.num_taken = call.positional.size();
  call.num_named = call.named.size();
  return Value::of(std::move(items), Sequence::generator);
}

/// select and reject; with `kAttribute` what an attribute is tested for.
template <bool kWanted, bool kAttribute>
Value select_filter(Arguments& call) {
  const Value* path = kAttribute ? &call.required("attribute") : nullptr;
  check_path(path);
  const std::size_t first = kAttribute ? 1 : 0;
  std::vector<Value> out;
  const bool tested = call.positional.size() > first;
  const std::string name = tested ? call.text("test") : "";
  for (const Value& item : elements_if_any(call)) {
    Arguments inner{
        .in = call.in, .self = path ? member(call.in, item, *path) : item, .named = call.named};
    bool is = false;
    if (tested) {
      inner.positional.assign(call.positional.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                              call.positional.end());
      is = call.in.apply(Natives::test, name, inner).truth();
    } else {
      is = inner.self.truth();
    }
    if (is == kWanted) out.push_back(item);
  }
  call.num_taken = call.positional.size();
  call.num_named = call.named.size();
  return Value::of(std::move(out), Sequence::generator);
}

inline Value format_filter(Arguments& call) {
  Value values = Value::of(call.positional, Sequence::tuple);
  call.num_taken = call.positional.size();
  return Value::of(PercentFormat(values, call.in.budget).format(call.self.text()));
}

}  // namespace nanovllm::jinja
