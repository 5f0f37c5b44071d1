#pragma once
/// Methods of strings, lists and dicts.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/environment.hpp"
#include "nanovllm/chat/jinja/operators.hpp"
#include "nanovllm/chat/jinja/text.hpp"
#include "nanovllm/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

template <bool kLeft, bool kRight>
Value strip_method(Arguments& call) {
  const Value* chars = call.next("chars");
  check<RequestError>(chars == nullptr || chars->is_none() || chars->is_string(),
                      "strip takes a str or None, got ", chars ? chars->type_name() : "");
  const bool given = chars != nullptr && chars->is_string();
  const auto text = strip(call.self.text(), kLeft, kRight,
                          given ? std::optional<std::string_view>(chars->text()) : std::nullopt);
  return Value::of(std::string(text), call.self.is_safe());
}

/// Parts of `text` between separators, or between white space if that is None.
inline std::vector<Value> split_text(std::string_view text, const Value* separator,
                                     std::int64_t most, bool from_right) {
  std::vector<Value> out;
  const bool blank = separator == nullptr || separator->is_none();
  check<RequestError>(blank || separator->is_string(), "split takes a str or None, got ",
                      separator ? separator->type_name() : "");
  const std::string_view mark = blank ? std::string_view() : separator->text();
  check<RequestError>(blank || !mark.empty(), "split takes no empty separator");
  if (blank) text = strip(text, !from_right, from_right);
  while (!text.empty() || !blank) {
    std::size_t at = text.npos, size = mark.size();
    if (most >= 0 && static_cast<std::int64_t>(out.size()) >= most) {
      at = text.npos;
    } else if (!blank) {
      at = from_right ? text.rfind(mark) : text.find(mark);
    } else {
      const auto space_at = [&](std::size_t i) {
        return is_space(utf8::decode(text, i).code_point);
      };
      std::size_t i = from_right ? text.size() : 0;
      while (from_right ? i > 0 : i < text.size()) {
        const std::size_t here = from_right ? utf8::previous(text, i) : i;
        if (space_at(here)) {
          at = here;
          size = utf8::decode(text, here).size;
          break;
        }
        i = from_right ? here : i + utf8::decode(text, i).size;
      }
    }
    const bool last = at == text.npos;
    out.push_back(Value::of(last         ? text
                            : from_right ? text.substr(at + size)
                                         : text.substr(0, at)));
    if (last) break;
    text = from_right ? text.substr(0, at) : text.substr(at + size);
    if (blank) text = strip(text, !from_right, from_right);
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

template <bool kFromRight>
Value split_method(Arguments& call) {
  const Value* separator = call.next("sep");
  return Value::of(
      split_text(call.self.text(), separator, call.integer("maxsplit", -1), kFromRight));
}

inline Value splitlines_method(Arguments& call) {
  const bool keep = call.flag("keepends");
  std::vector<Value> out;
  const std::string& text = call.self.text();
  for (std::size_t begin = 0, i = 0; i < text.size();) {
    const utf8::Char c = utf8::decode(text, i);
    const char32_t code = c.code_point;
    const bool end = (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
                     code == 0x2028 || code == 0x2029;
    const std::size_t line = i;
    i += c.size;
    if (code == '\r' && i < text.size() && text[i] == '\n') ++i;
    if (!end && i < text.size()) continue;
    out.push_back(Value::of(text.substr(begin, (end && !keep ? line : i) - begin)));
    begin = i;
  }
  return Value::of(std::move(out));
}

inline std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                            std::int64_t count, Budget& budget) {
  std::string out;
  for (std::size_t i = 0; i <= text.size() && count != 0; --count) {
    const std::size_t at = text.find(from, i);
    if (at == text.npos) break;
    append_text(out, text.substr(i, at - i), budget);
    append_text(out, to, budget);
    budget.charge(1);
    text.remove_prefix(std::min(text.size(), at + from.size()));
    if (!from.empty()) continue;
    if (text.empty()) return out;
    const std::size_t size = utf8::decode(text, 0).size;
    out += text.substr(0, size);
    text.remove_prefix(size);
  }
  append_text(out, text, budget);
  return out;
}

inline Value replace_method(Arguments& call) {
  const std::string &from = call.text("old"), &to = call.text("new");
  const std::int64_t count = call.integer("count", -1);
  return Value::of(replaced(call.self.text(), from, to, count, call.in.budget),
                   call.self.is_safe());
}

/// The part of the text that `start` and `end` name, and where it begins.
inline std::pair<std::string_view, std::size_t> part_of(Arguments& call) {
  const std::string_view text = call.self.text();
  const auto starts = character_starts(text);
  const auto size = static_cast<std::int64_t>(starts.size()) - 1;
  const auto bound = [&](std::string_view name, std::int64_t otherwise) {
    const std::int64_t at = call.integer(name, otherwise);
    return static_cast<std::size_t>(std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size));
  };
  const std::size_t begin = bound("start", 0), end = bound("end", size);
  if (begin >= end) return {text.substr(starts[begin], 0), begin};
  return {text.substr(starts[begin], starts[end] - starts[begin]), begin};
}

template <bool kFromRight, bool kMustBe>
Value find_method(Arguments& call) {
  const std::string& what = call.text("sub");
  const auto [text, begin] = part_of(call);
  const std::size_t at = kFromRight ? text.rfind(what) : text.find(what);
  check<RequestError>(!kMustBe || at != text.npos, "index: the substring is not found");
  if (at == text.npos) return Value::of(std::int64_t{-1});
  return Value::of(begin + num_characters(text.substr(0, at)));
}

template <bool kAtEnd>
Value affix_method(Arguments& call) {
  const Value& what = call.required("prefix");
  const bool several = what.is_list() && what.sequence() == Sequence::tuple;
  const std::vector<Value> all = several ? what.list().items : std::vector<Value>{what};
  const std::string_view text = part_of(call).first;
  bool found = false;
  for (const Value& one : all) {
    check<RequestError>(one.is_string(), kAtEnd ? "endswith" : "startswith",
                        " takes a str or a tuple of them, got ", one.type_name());
    found = found || (kAtEnd ? text.ends_with(one.text()) : text.starts_with(one.text()));
  }
  return Value::of(found);
}

template <bool kAtEnd>
Value remove_affix_method(Arguments& call) {
  std::string_view text = call.self.text();
  const std::string& affix = call.text(kAtEnd ? "suffix" : "prefix");
  if (kAtEnd ? text.ends_with(affix) : text.starts_with(affix))
    text = kAtEnd ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
  return Value::of(std::string(text), call.self.is_safe());
}

inline Value count_method(Arguments& call) {
  const std::string& what = call.text("sub");
  const std::string_view text = part_of(call).first;
  if (what.empty()) return Value::of(num_characters(text) + 1);
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + what.size()))
    ++count;
  return Value::of(count);
}

inline Value join_values(const std::vector<Value>& values, std::string_view separator,
                         Budget& budget, bool only_strings) {
  std::string out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    check<RequestError>(!only_strings || values[i].is_string(), "join: element ", i,
                        " must be a str, got ", values[i].type_name());
    if (i > 0) append_text(out, separator, budget);
    append_str(out, values[i], budget);
  }
  return Value::of(std::move(out));
}

inline Value join_method(Arguments& call) {
  return join_values(call.in.elements(call.required("iterable")), call.self.text(), call.in.budget,
                     true);
}

template <Case kCase>
Value case_method(Arguments& call) {
  std::string out;
  if constexpr (kCase != Case::title) {
    append_case(out, call.self.text(), kCase);
  } else {  // str.title: a word begins behind what is no letter
    const std::string& text = call.self.text();
    bool in_word = false;
    for (std::size_t i = 0; i < text.size();) {
      const utf8::Char c = utf8::decode(text, i);
      append_case(out, std::string_view(text).substr(i, c.size), in_word ? Case::lower : kCase);
      const auto category = utf8proc_category(static_cast<std::int32_t>(c.code_point));
      in_word = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
      i += c.size;
    }
  }
  return Value::of(std::move(out), call.self.is_safe());
}

inline Value capitalize_method(Arguments& call) { return Value::of(capitalize(call.self.text())); }

/// isdigit, isalpha, isalnum, isspace, isupper, islower: whether all characters are of a kind.
enum class Class : std::uint8_t { digit, alpha, alnum, space, upper, lower };
template <Class kClass>
Value is_method(Arguments& call) {
  const std::string& text = call.self.text();
  bool any = false;
  for (std::size_t i = 0; i < text.size();) {
    const utf8::Char c = utf8::decode(text, i);
    i += c.size;
    const auto category = utf8proc_category(static_cast<std::int32_t>(c.code_point));
    const bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    const bool digit = category == UTF8PROC_CATEGORY_ND;
    const auto wanted = kClass == Class::upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL;
    const bool cased = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
    const bool is = kClass == Class::digit   ? digit
                    : kClass == Class::alpha ? letter
                    : kClass == Class::alnum ? letter || digit
                    : kClass == Class::space ? is_space(c.code_point)
                                             : category == wanted;
    if (!is && (kClass <= Class::space || cased)) return Value::of(false);
    any = any || is;
  }
  return Value::of(any);
}

/// `str.format` with {}, {0}, {name}, {name.member}, {name[key]}, !r and !s, and a width and
/// precision behind a colon.
inline Value format_method(Arguments& call) {
  std::string out;
  std::string_view text = call.self.text();
  std::size_t next = 0;
  while (!text.empty()) {
    const std::size_t mark = std::min(text.find_first_of("{}"), text.size());
    append_text(out, text.substr(0, mark), call.in.budget);
    text.remove_prefix(mark);
    if (text.empty()) break;
    if (text.starts_with("{{") || text.starts_with("}}")) {
      out += text[0];
      text.remove_prefix(2);
      continue;
    }
    const std::size_t end = text.find('}');
    check<RequestError>(text[0] == '{' && end != text.npos, "format: expected '{…}', got '",
                        text.substr(0, 20), "'");
    std::string_view field = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    const std::size_t colon = std::min(field.find(':'), field.size());
    std::string_view how = colon < field.size() ? field.substr(colon + 1) : std::string_view();
    std::string_view name = field.substr(0, colon);
    const bool repr = name.ends_with("!r");
    if (repr || name.ends_with("!s")) name.remove_suffix(2);
    const std::size_t path = std::min(name.find_first_of(".["), name.size());
    const std::string root(name.substr(0, path));
    const Value* value = nullptr;
    const bool index = root.find_first_not_of("0123456789") == root.npos && root.size() < 9;
    if (index) {
      const std::size_t i = root.empty() ? next++ : static_cast<std::size_t>(std::stoi(root));
      if (i < call.positional.size()) value = &call.positional[i];
    } else {
      for (const auto& [key, one] : call.named)
        if (key == root) value = &one;
    }
    check<RequestError>(value != nullptr, "format: there is no argument for '{", field, "}'");
    Value found = *value;
    for (name.remove_prefix(path); !name.empty();) {
      const bool bracket = name[0] == '[';
      const std::size_t stop =
          std::min(bracket ? name.find(']') : name.find_first_of(".[", 1), name.size());
      found = call.in.item(found, Value::of(name.substr(1, stop - 1)));
      name.remove_prefix(std::min(name.size(), stop + (bracket ? 1 : 0)));
    }
    // A width and a precision are those of a '%' format but for the side that is filled.
    if (how.empty() && !repr) {
      append_str(out, found, call.in.budget);
      continue;
    }
    const bool left = how.starts_with('<') || (!how.starts_with('>') && !found.is_number());
    if (how.starts_with('<') || how.starts_with('>')) how.remove_prefix(1);
    const bool lettered = !how.empty() && (how.back() == 'f' || how.back() == 'd' ||
                                           how.back() == 's' || how.back() == 'x');
    const char letter = repr ? 'r' : lettered ? how.back() : 's';
    if (lettered) how.remove_suffix(1);
    check<RequestError>(how.find_first_not_of("0123456789.") == how.npos, "format: '", field,
                        "' is not supported");
    const Value one = Value::of(std::vector<Value>{found}, Sequence::tuple);
    append_text(
        out, PercentFormat(one, call.in.budget).format(concat("%", left ? "-" : "", how, letter)),
        call.in.budget);
  }
  call.num_taken = call.positional.size();
  call.num_named = call.named.size();
  return Value::of(std::move(out), call.self.is_safe());
}

inline Value list_index_method(Arguments& call) {
  const Value& what = call.required("value");
  const auto& items = call.self.list().items;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], what, call.in.budget)) return Value::of(i);
  throw RequestError("index: the value is not in the list");
}

inline Value list_count_method(Arguments& call) {
  const Value& what = call.required("value");
  const auto& items = call.self.list().items;
  return Value::of(
      static_cast<std::int64_t>(std::count_if(items.begin(), items.end(), [&](const Value& item) {
        return equal(item, what, call.in.budget);
      })));
}

inline Value copy_method(Arguments& call) { return call.self; }

inline Value unsafe_method(Arguments& call) {
  throw RequestError(concat("a chat template may not change a ", call.self.type_name(),
                            "; a namespace() can hold another"));
}

inline Value get_method(Arguments& call) {
  const Value& key = call.required("key");
  const Value* otherwise = call.next("default");
  const Value* found = call.self.dict().find(key, call.in.budget);
  return found ? *found : otherwise ? *otherwise : Value::none();
}

/// keys, values or items.
template <Sequence kWhat>
Value view_method(Arguments& call) {
  std::vector<Value> out;
  for (const auto& [key, value] : call.self.dict().items) {
    out.push_back(kWhat == Sequence::keys ? key
                  : kWhat == Sequence::values
                      ? value
                      : Value::of(std::vector<Value>{key, value}, Sequence::tuple));
  }
  return Value::of(std::move(out), kWhat);
}

}  // namespace nanovllm::jinja
