#pragma once
/// Tests, functions, and the tables of all that templates can name.

#include <ctime>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/environment.hpp"
#include "nanovllm/chat/jinja/filters.hpp"
#include "nanovllm/chat/jinja/methods.hpp"
#include "nanovllm/chat/jinja/number_filters.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

// Functions with names: a lambda would be of another type in each file that includes the table.
inline bool is_boolean(const Value& v) { return v.kind() == Kind::boolean; }
inline bool is_callable(const Value& v) { return v.kind() >= Kind::loop; }
inline bool is_defined(const Value& v) { return !v.is_undefined(); }
inline bool is_escaped(const Value& v) { return v.is_safe(); }
inline bool is_false(const Value& v) { return v.kind() == Kind::boolean && !v.truth(); }
inline bool is_float(const Value& v) { return v.kind() == Kind::real; }
inline bool is_integer(const Value& v) {
  return v.kind() == Kind::integer || v.kind() == Kind::big_integer;
}
inline bool is_iterable(const Value& v) {
  return v.is_undefined() || (v.kind() >= Kind::string && v.kind() <= Kind::dict) ||
         v.kind() == Kind::loop;
}
inline bool is_mapping(const Value& v) { return v.is_dict(); }
inline bool is_none(const Value& v) { return v.is_none(); }
inline bool is_number(const Value& v) { return v.is_number() || v.kind() == Kind::big_integer; }
inline bool is_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_dict() || v.is_indexable();
}
inline bool is_string(const Value& v) { return v.is_string(); }
inline bool is_true(const Value& v) { return v.kind() == Kind::boolean && v.truth(); }
inline bool is_undefined(const Value& v) { return v.is_undefined(); }

template <bool (*kTest)(const Value&)>
Value simple_test(Arguments& call) {
  return Value::of(kTest(call.self));
}

template <Op kOp>
Value compare_test(Arguments& call) {
  return Value::of(holds(kOp, call.self, call.required("other"), call.in.budget));
}

inline Value divisible_test(Arguments& call) {
  const Value rest = binary(Op::modulo, call.self, call.required("num"), call.in.budget);
  return Value::of(!rest.truth());
}

template <int kRest>
Value parity_test(Arguments& call) {
  const Value rest = binary(Op::modulo, call.self, Value::of(std::int64_t{2}), call.in.budget);
  return Value::of(rest.real() == kRest);
}

template <Case kCase>
Value case_test(Arguments& call) {
  const std::string text = str(call.self, call.in.budget);
  bool cased = false;
  for (std::size_t i = 0; i < text.size(); i += utf8::decode(text, i).size) {
    const auto category =
        utf8proc_category(static_cast<std::int32_t>(utf8::decode(text, i).code_point));
    cased = cased || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT);
  }
  return Value::of(cased && text == in_case(text, kCase));
}

inline Value same_test(Arguments& call) {
  return Value::of(call.self.same(call.required("other")));
}

/// Whether there is a filter, or a test, of the name.
template <Natives kSet>
Value exists_test(Arguments& call) {
  return Value::of(call.self.is_string() && find_native(kSet, call.self.text()) != nullptr);
}

// Functions.

inline Value raise_exception(Arguments& call) {
  throw Refusal(str(call.required("message"), call.in.budget));
}

/// The local time, as `strftime` writes it.
inline Value strftime_now(Arguments& call) {
  const std::string format = call.text("format") + '.';  // not empty, so that 0 means too long
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char buffer[512];
  const std::size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  check<RequestError>(size > 0, "strftime_now: the format is too long");
  return Value::of(std::string(buffer, size - 1));
}

inline Value range_function(Arguments& call) {
  const std::int64_t first = call.integer("start", 0);
  const bool one = call.positional.size() < 2;
  const std::int64_t begin = one ? 0 : first, end = one ? first : call.integer("stop", 0);
  const std::int64_t step = call.integer("step", 1);
  check<RequestError>(step != 0 && !call.positional.empty(), "range needs a step other than 0");
  std::vector<Value> out;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    check<RequestError>(out.size() < 100000, "range gives at most 100000 numbers");
    out.push_back(Value::of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::of(std::move(out), Sequence::range);
}

inline std::vector<std::pair<Value, Value>> dict_items(Arguments& call) {
  std::vector<std::pair<Value, Value>> items;
  if (const Value* from = call.positional.empty() ? nullptr : call.next("")) {
    if (from->is_dict())
      items = from->dict().items;
    else
      for (const Value& pair : call.in.elements(*from)) {
        const std::vector<Value> parts = call.in.elements(pair);
        check<RequestError>(parts.size() == 2, "dict needs pairs, got ", parts.size(), " values");
        call.in.add_item(items, parts[0], parts[1]);
      }
  }
  for (const auto& [name, value] : call.named) call.in.add_item(items, Value::of(name), value);
  call.num_named = call.named.size();
  return items;
}

inline Value dict_function(Arguments& call) { return Value::of(dict_items(call)); }

inline Value namespace_function(Arguments& call) {
  Space& space = call.in.make_space();
  for (const auto& [key, value] : dict_items(call))
    call.in.set_member(space, str(key, call.in.budget), value);
  return Value::of(&space);
}

struct Entry {
  std::string_view name;
  Native native;
};

inline constexpr Entry kFilters[] = {
    {"abs", abs_filter},
    {"batch", batch_filter},
    {"capitalize", on_text<capitalize_method>},
    {"count", length_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"dictsort", dictsort_filter},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"first", end_filter<false>},
    {"float", float_filter},
    {"format", on_text<format_filter>},
    {"indent", on_text<indent_filter>},
    {"int", int_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", end_filter<true>},
    {"length", length_filter},
    {"list", list_filter},
    {"lower", on_text<case_method<Case::lower>>},
    {"map", map_filter},
    {"max", extreme_filter<true>},
    {"min", extreme_filter<false>},
    {"reject", select_filter<false, false>},
    {"rejectattr", select_filter<false, true>},
    {"replace", on_text<replace_filter>},
    {"reverse", reverse_filter},
    {"round", round_filter},
    {"safe", safe_filter},
    {"select", select_filter<true, false>},
    {"selectattr", select_filter<true, true>},
    {"sort", sort_filter},
    {"string", string_filter},
    {"sum", sum_filter},
    {"title", on_text<title_filter>},
    {"tojson", tojson_filter},
    {"trim", on_text<trim_filter>},
    {"unique", unique_filter},
    {"upper", on_text<case_method<Case::upper>>},
    {"wordcount", on_text<wordcount_filter>},
};

inline constexpr Entry kTests[] = {
    {"!=", compare_test<Op::not_equal>},
    {"<", compare_test<Op::less>},
    {"<=", compare_test<Op::less_equal>},
    {"==", compare_test<Op::equal>},
    {">", compare_test<Op::greater>},
    {">=", compare_test<Op::greater_equal>},
    {"boolean", simple_test<is_boolean>},
    {"callable", simple_test<is_callable>},
    {"defined", simple_test<is_defined>},
    {"divisibleby", divisible_test},
    {"eq", compare_test<Op::equal>},
    {"equalto", compare_test<Op::equal>},
    {"escaped", simple_test<is_escaped>},
    {"even", parity_test<0>},
    {"false", simple_test<is_false>},
    {"filter", exists_test<Natives::filter>},
    {"float", simple_test<is_float>},
    {"ge", compare_test<Op::greater_equal>},
    {"greaterthan", compare_test<Op::greater>},
    {"gt", compare_test<Op::greater>},
    {"in", compare_test<Op::in>},
    {"integer", simple_test<is_integer>},
    {"iterable", simple_test<is_iterable>},
    {"le", compare_test<Op::less_equal>},
    {"lessthan", compare_test<Op::less>},
    {"lower", case_test<Case::lower>},
    {"lt", compare_test<Op::less>},
    {"mapping", simple_test<is_mapping>},
    {"ne", compare_test<Op::not_equal>},
    {"none", simple_test<is_none>},
    {"number", simple_test<is_number>},
    {"odd", parity_test<1>},
    {"sameas", same_test},
    {"sequence", simple_test<is_sequence>},
    {"string", simple_test<is_string>},
    {"test", exists_test<Natives::test>},
    {"true", simple_test<is_true>},
    {"undefined", simple_test<is_undefined>},
    {"upper", case_test<Case::upper>},
};

inline constexpr Entry kStringMethods[] = {
    {"capitalize", capitalize_method},
    {"count", count_method},
    {"endswith", affix_method<true>},
    {"find", find_method<false, false>},
    {"format", format_method},
    {"index", find_method<false, true>},
    {"isalnum", is_method<Class::alnum>},
    {"isalpha", is_method<Class::alpha>},
    {"isdigit", is_method<Class::digit>},
    {"islower", is_method<Class::lower>},
    {"isspace", is_method<Class::space>},
    {"isupper", is_method<Class::upper>},
    {"join", join_method},
    {"lower", case_method<Case::lower>},
    {"lstrip", strip_method<true, false>},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"replace", replace_method},
    {"rfind", find_method<true, false>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"splitlines", splitlines_method},
    {"startswith", affix_method<false>},
    {"strip", strip_method<true, true>},
    {"title", case_method<Case::title>},
    {"upper", case_method<Case::upper>},
};

inline constexpr Entry kListMethods[] = {
    {"append", unsafe_method},    {"clear", unsafe_method},  {"copy", copy_method},
    {"count", list_count_method}, {"extend", unsafe_method}, {"index", list_index_method},
    {"insert", unsafe_method},    {"pop", unsafe_method},    {"remove", unsafe_method},
    {"reverse", unsafe_method},   {"sort", unsafe_method},
};

inline constexpr Entry kDictMethods[] = {
    {"clear", unsafe_method},
    {"copy", copy_method},
    {"get", get_method},
    {"items", view_method<Sequence::items>},
    {"keys", view_method<Sequence::keys>},
    {"pop", unsafe_method},
    {"popitem", unsafe_method},
    {"setdefault", unsafe_method},
    {"update", unsafe_method},
    {"values", view_method<Sequence::values>},
};

inline constexpr Entry kGlobals[] = {
    {"dict", dict_function},
    {"namespace", namespace_function},
    {"raise_exception", raise_exception},
    {"range", range_function},
    {"strftime_now", strftime_now},
};

inline Native find_native(Natives set, std::string_view name) {
  const auto find = [&](const auto& entries) -> Native {
    for (const Entry& entry : entries)
      if (entry.name == name) return entry.native;
    return nullptr;
  };
  switch (set) {
    case Natives::filter: return find(kFilters);
    case Natives::test: return find(kTests);
    case Natives::string_method: return find(kStringMethods);
    case Natives::list_method: return find(kListMethods);
    case Natives::dict_method: return find(kDictMethods);
    case Natives::global: return find(kGlobals);
  }
  return nullptr;
}

}  // namespace nanovllm::jinja
