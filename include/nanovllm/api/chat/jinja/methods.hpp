#pragma once
/// Methods of strings, lists and dicts that are more than a line of natives.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/jinja/call.hpp"
#include "nanovllm/api/chat/jinja/operators.hpp"
#include "nanovllm/api/chat/jinja/text.hpp"
#include "nanovllm/api/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

template <bool kLeft, bool kRight>
Value strip_method(Call& call) {
  const Value* chars = call.given("chars");
  require(chars == nullptr || chars->is_string(), "strip takes a str or None, got ",
          chars ? chars->type_name() : "");
  const auto goes = chars ? std::optional<std::string_view>(chars->text()) : std::nullopt;
  return call.alike(std::string(strip(call.subject(), kLeft, kRight, goes)));
}

/// The parts of the subject, and no more than the budget has steps.
inline std::vector<std::string_view> parts_of(Call& call, std::string_view separator,
                                              std::int64_t most = -1, bool from_right = false) {
  const std::int64_t bound = call.in.steps + 1;
  auto out = split(call.subject(), separator, most < 0 ? bound : std::min(most, bound), from_right);
  call.in.charge(out.size());
  return out;
}

/// split and rsplit.
template <bool kFromRight>
Value split_method(Call& call) {
  const Value* separator = call.given("sep");
  require(separator == nullptr || separator->is_string(), "split takes a str or None, got ",
          separator ? separator->type_name() : "");
  require(separator == nullptr || separator->truth(), "split takes no empty separator");
  const std::string_view mark = separator ? separator->text() : std::string_view();
  List out;
  for (const auto part : parts_of(call, mark, call.integer("maxsplit", -1), kFromRight))
    out.push_back(Value::of(part));
  return Value::of(std::move(out));
}

inline Value splitlines_method(Call& call) {
  const bool keep = call.flag("keepends");
  List out;
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

/// `str.replace`; an empty text is between all characters, and at both ends.
inline std::string replaced(Call& call, std::string_view from, std::string_view to,
                            std::int64_t count) {
  std::vector<std::string_view> parts(1);
  if (!from.empty()) {
    parts = parts_of(call, from, count);
  } else {
    call.in.charge(call.subject().size());
    for (const std::string_view c : Characters(call.subject())) parts.push_back(c);
    parts.emplace_back();
  }
  std::string out(parts[0]);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (count < 0 || i <= static_cast<std::size_t>(count)) append_text(out, to, call.in);
    append_text(out, parts[i], call.in);
  }
  return out;
}

inline Value replace_method(Call& call) {
  const std::string &from = call.text("old"), &to = call.text("new");
  return call.alike(replaced(call, from, to, call.integer("count", -1)));
}

/// The part of the text that the arguments `start` and `end` name, and where it begins.
inline std::pair<std::string_view, std::size_t> part_of(Call& call) {
  if (call.num_taken >= call.positional.size()) return {call.self.text(), 0};
  const std::int64_t start = call.integer("start", 0);
  return part(call.self.text(), start, call.integer("end", INT64_MAX));
}

template <bool kFromRight, bool kMustBe>
Value find_method(Call& call) {
  const std::string& what = call.text("sub");
  const auto [text, begin] = part_of(call);
  const std::size_t at = kFromRight ? text.rfind(what) : text.find(what);
  require(!kMustBe || at != text.npos, "index: the substring is not found");
  return Value::of(at == text.npos
                       ? std::int64_t{-1}
                       : static_cast<std::int64_t>(begin + num_characters(text.substr(0, at))));
}

template <bool kAtEnd>
Value affix_method(Call& call) {
  const Value& what = call.required("prefix");
  const List all = what.is_tuple() ? what.list() : List{what};
  const std::string_view text = part_of(call).first;
  bool found = false;
  for (const Value& one : all) {
    require(one.is_string(), kAtEnd ? "endswith" : "startswith",
            " takes a str or a tuple of them, got ", one.type_name());
    found = found || (kAtEnd ? text.ends_with(one.text()) : text.starts_with(one.text()));
  }
  return Value::of(found);
}

template <bool kAtEnd>
Value remove_affix_method(Call& call) {
  std::string_view text = call.self.text();
  const std::string& affix = call.text(kAtEnd ? "suffix" : "prefix");
  if (kAtEnd && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!kAtEnd && text.starts_with(affix)) text.remove_prefix(affix.size());
  return call.alike(std::string(text));
}

inline Value count_method(Call& call) {
  const std::string& what = call.text("sub");
  const std::string_view text = part_of(call).first;
  if (what.empty()) return Value::of(num_characters(text) + 1);
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + what.size()))
    ++count;
  return Value::of(count);
}

inline Value join_values(const List& values, std::string_view separator, Budget& budget) {
  std::string out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) append_text(out, separator, budget);
    append_str(out, values[i], budget);
  }
  return Value::of(std::move(out));
}

inline Value join_method(Call& call) {
  const List values = elements(call.required("iterable"), call.in);
  for (std::size_t i = 0; i < values.size(); ++i)
    require(values[i].is_string(), "join: element ", i, " must be a str, got ",
            values[i].type_name());
  return join_values(values, call.self.text(), call.in);
}

template <Case kCase>
Value case_method(Call& call) {
  return call.alike(in_case(call.subject(), kCase));
}
inline Value capitalize_method(Call& call) { return Value::of(capitalize(call.subject())); }

/// `str.title`, where a word begins after what is no letter; or else the filter, where it does
/// after white space and - ( { [ <.
template <bool kMethod>
Value title_method(Call& call) {
  std::string out;
  bool begins = true;
  for (const std::string_view bytes : Characters(call.subject())) {
    append_case(out, bytes, !begins ? Case::lower : kMethod ? Case::title : Case::upper);
    const utf8::Char c = utf8::decode(bytes, 0);
    const bool opens = c.size == 1 && std::string_view("-({[<").find(bytes) != bytes.npos;
    begins = kMethod ? !is_cased(category(c)) : opens || is_space(c.code_point);
  }
  return Value::of(std::move(out), kMethod && call.self.is_safe());
}

/// isalnum, isalpha, isdigit: whether all characters are of a kind, and there is one.
template <bool (*kIs)(int)>
Value all_method(Call& call) {
  const auto all = categories(call.self.text());
  return Value::of(!all.empty() && std::all_of(all.begin(), all.end(), kIs));
}
inline Value isspace_method(Call& call) {
  const std::string& text = call.self.text();
  return Value::of(!text.empty() && strip(text, true, false).empty());
}
/// isupper and islower: whether there are letters of this case, and none of another.
template <int kCategory>
Value is_case_method(Call& call) {
  const auto all = categories(call.subject());
  return Value::of(
      std::find(all.begin(), all.end(), kCategory) != all.end() &&
      std::none_of(all.begin(), all.end(), [](int c) { return is_cased(c) && c != kCategory; }));
}

/// The runs of letters, digits and '_'.
inline Value wordcount_filter(Call& call) {
  std::size_t count = 0;
  bool in_word = false;
  for (const std::string_view c : Characters(call.subject())) {
    const bool is_in = c == "_" || is_letter_or_number(category(utf8::decode(c, 0)));
    if (is_in && !in_word) ++count;
    in_word = is_in;
  }
  return Value::of(count);
}

/// Appends what `name.member[key]!r:<8.3f` stands for between the braces of a format. `next` counts
/// the arguments without a name.
inline void append_replacement(std::string& out, std::string_view field, Call& call,
                               std::size_t& next) {
  const std::size_t colon = std::min(field.find(':'), field.size());
  std::string_view how = field.substr(std::min(colon + 1, field.size()));
  std::string_view name = field.substr(0, colon);
  const bool repr = name.ends_with("!r");
  if (repr || name.ends_with("!s")) name.remove_suffix(2);
  const std::size_t path = std::min(name.find_first_of(".["), name.size());
  const std::string root(name.substr(0, path));
  const Value* value = nullptr;
  if (root.find_first_not_of("0123456789") == root.npos && root.size() < 9) {
    const std::size_t i = root.empty() ? next++ : static_cast<std::size_t>(std::stoi(root));
    if (i < call.positional.size()) value = &call.positional[i];
  }
  for (const auto& [key, one] : call.named)
    if (key == root) value = &one;
  require(value != nullptr, "format: there is no argument for '{", field, "}'");
  Value found = *value;
  for (name.remove_prefix(path); !name.empty();) {
    const bool bracket = name[0] == '[';
    const std::size_t stop =
        std::min(bracket ? name.find(']') : name.find_first_of(".[", 1), name.size());
    found = item(found, Value::of(name.substr(1, stop - 1)), call.in);
    name.remove_prefix(std::min(name.size(), stop + (bracket ? 1 : 0)));
  }
  if (how.empty() && !repr) return append_str(out, found, call.in);
  const Field form(how, "<>");
  const bool left = form.side == '<' || (form.side != '>' && !found.is_number());
  const bool lettered = how.size() == 1 && std::string_view("fdsx").find(how[0]) != how.npos;
  require(how.empty() || lettered, "format: '", field, "' is not supported");
  form.append(out, found, repr ? 'r' : lettered ? how[0] : 's', left, call.in);
}

/// `str.format`.
inline Value format_method(Call& call) {
  std::string out;
  std::string_view text = call.self.text();
  std::size_t next = 0;
  while (true) {
    const std::size_t mark = std::min(text.find_first_of("{}"), text.size());
    append_text(out, text.substr(0, mark), call.in);
    text.remove_prefix(mark);
    if (text.empty()) break;
    const bool doubled = text.starts_with("{{") || text.starts_with("}}");
    const std::size_t end = doubled ? 1 : text.find('}');
    require(doubled || (text[0] == '{' && end != text.npos), "format: expected '{…}', got '",
            text.substr(0, 20), "'");
    if (doubled)
      out += text[0];
    else
      append_replacement(out, text.substr(1, end - 1), call, next);
    text.remove_prefix(end + 1);
  }
  call.take_all();
  return call.alike(std::move(out));
}

inline Value list_index_method(Call& call) {
  const Value& what = call.required("value");
  const List& items = call.self.list();
  for (std::size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], what, call.in)) return Value::of(i);
  throw RequestError("index: the value is not in the list");
}

inline Value list_count_method(Call& call) {
  const Value& what = call.required("value");
  std::int64_t count = 0;
  for (const Value& item : call.self.list()) count += equal(item, what, call.in) ? 1 : 0;
  return Value::of(count);
}

inline Value get_method(Call& call) {
  const Value* found = find(call.self.dict(), call.required("key"), call.in);
  const Value* otherwise = call.next("default");
  return found ? *found : otherwise ? *otherwise : Value::none();
}

inline Value copy_method(Call& call) { return call.self; }

/// keys, values or items.
template <Kind kWhat>
Value view_method(Call& call) {
  List out;
  for (const auto& [key, value] : call.self.dict())
    out.push_back(kWhat == Kind::keys     ? key
                  : kWhat == Kind::values ? value
                                          : Value::of(List{key, value}, Kind::tuple));
  return Value::of(std::move(out), kWhat);
}

}  // namespace nanovllm::jinja
