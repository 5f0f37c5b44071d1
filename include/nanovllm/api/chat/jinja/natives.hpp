#pragma once
/// All that templates can name: filters, tests, methods and functions.

#include <ctime>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/chat/jinja/call.hpp"
#include "nanovllm/api/chat/jinja/filters.hpp"
#include "nanovllm/api/chat/jinja/methods.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

// Functions.

/// What `raise_exception` throws.
struct Refusal : RequestError {
  using RequestError::RequestError;
};

inline Value raise_exception(Call& call) { throw Refusal(str(call.required("message"), call.in)); }

/// The local time, as `strftime` writes it.
inline Value strftime_now(Call& call) {
  const std::string format = call.text("format") + '.';  // not empty, so that 0 means too long
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char buffer[512];
  const std::size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  require(size > 0, "strftime_now: the format is too long");
  return Value::of(std::string(buffer, size - 1));
}

inline Value range_function(Call& call) {
  const std::int64_t first = call.integer("start", 0);
  const bool one = call.positional.size() < 2;
  const std::int64_t begin = one ? 0 : first, end = one ? first : call.integer("stop", 0);
  const std::int64_t step = call.integer("step", 1);
  require(step != 0 && !call.positional.empty(), "range needs a step other than 0");
  List out;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    require(out.size() < 100000, "range gives at most 100000 numbers");
    out.push_back(Value::of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::of(std::move(out), Kind::range);
}

inline Dict dict_items(Call& call) {
  Dict items;
  const Value* from = call.positional.empty() ? nullptr : call.next("");
  if (from != nullptr && from->is_dict()) {
    items = from->dict();
  } else if (from != nullptr) {
    for (const Value& pair : elements(*from, call.in)) {
      const List parts = elements(pair, call.in);
      require(parts.size() == 2, "dict needs pairs, got ", parts.size(), " values");
      set_item(items, parts[0], parts[1], call.in);
    }
  }
  for (const auto& [name, value] : call.named) set_item(items, Value::of(name), value, call.in);
  call.named.clear();
  return items;
}

inline Value dict_function(Call& call) { return Value::of(dict_items(call)); }

/// Sets a member of a namespace.
inline void set_member(Dict& space, const Value& name, Value value, Budget& budget) {
  require(!name.text().starts_with('_'), "a namespace takes no name with a leading '_'");
  set_item(space, name, std::move(value), budget);
}

inline Value namespace_function(Call& call) {
  Dict& space = call.in.spaces.emplace_back();
  for (const auto& [key, value] : dict_items(call))
    set_member(space, Value::of(str(key, call.in)), value, call.in);
  return Value::view(space);
}

/// `next` and `reset` of a cycler, a dict that also has its values, its position, both without a
/// name, and `current`.
template <bool kReset>
Value cycler_turn(Call& call) {
  Dict& cycler = call.self.dict();
  const List& values = cycler[0].second.list();
  const auto at = static_cast<std::size_t>(cycler[1].second.integer());
  const std::size_t next = kReset ? 0 : (at + 1) % values.size();
  cycler[1].second = Value::of(next);
  cycler[2].second = values[next];
  return kReset ? Value::none() : values[at];
}

inline Value cycler_function(Call& call) {
  require(!call.positional.empty(), "cycler needs a value");
  Dict& cycler = call.in.spaces.emplace_back();
  const Value self = Value::view(cycler, Kind::dict);
  const auto add = [&](std::string_view name, Value value) {
    cycler.emplace_back(name.empty() ? Value() : Value::of(name), std::move(value));
  };
  add("", Value::of(call.positional));
  add("", Value::of(0));
  add("current", call.positional[0]);
  add("next", Value::of(Function{.native = cycler_turn<false>, .self = self}));
  add("reset", Value::of(Function{.native = cycler_turn<true>, .self = self}));
  call.take_all();
  return self;
}

/// Nothing at the first call, then the separator.
inline Value joiner_turn(Call& call) {
  return std::exchange(call.self.dict()[0].second, call.self.dict()[1].second);
}

inline Value joiner_function(Call& call) {
  const Value* separator = call.next("sep");
  Dict& space = call.in.spaces.emplace_back();
  space.emplace_back(Value(), Value::of(std::string()));
  space.emplace_back(Value(), separator ? *separator : Value::of(std::string(", ")));
  return Value::of(Function{.native = joiner_turn, .self = Value::view(space)});
}

// Tests.

template <Kind kFirst, Kind kLast = kFirst>
Value kind_test(Call& call) {
  return Value::of(kFirst <= call.self.kind() && call.self.kind() <= kLast);
}
inline Value defined_test(Call& call) { return Value::of(!call.self.is_undefined()); }

template <bool kWanted>
Value boolean_test(Call& call) {
  return Value::of(call.self.kind() == Kind::boolean && call.self.truth() == kWanted);
}

template <Op kOp>
Value compare_test(Call& call) {
  return Value::of(holds(kOp, call.self, call.required("other"), call.in));
}

inline Value divisible_test(Call& call) {
  return Value::of(!binary(Op::modulo, call.self, call.required("num"), call.in).truth());
}

template <bool kOdd>
Value parity_test(Call& call) {
  return Value::of(binary(Op::modulo, call.self, Value::of(2), call.in).real() == (kOdd ? 1 : 0));
}

inline Value escaped_test(Call& call) { return Value::of(call.self.is_safe()); }
inline Value same_test(Call& call) { return Value::of(call.self.same(call.required("other"))); }

/// Whether there is a filter, or a test, of the name.
template <Natives kSet>
Value exists_test(Call& call) {
  return Value::of(call.self.is_string() && find_native(kSet, call.self.text()) != nullptr);
}

// The tables.

struct Entry {
  std::string_view names;  ///< with blanks between them
  Native native;
};

// clang-format off
inline constexpr Entry kFilters[] = {
    {"abs", abs_filter}, {"batch", batch_filter}, {"capitalize", capitalize_method},
    {"d default", default_filter}, {"dictsort", dictsort_filter}, {"e escape", escape_filter},
    {"first", end_filter<false>}, {"float", float_filter}, {"format", format_filter},
    {"groupby", groupby_filter}, {"indent", indent_filter}, {"int", int_filter},
    {"items", items_filter}, {"join", join_filter}, {"last", end_filter<true>},
    {"length count", length_filter}, {"list", list_filter}, {"lower", case_method<Case::lower>},
    {"map", map_filter}, {"max", extreme_filter<true>}, {"min", extreme_filter<false>},
    {"reject", select_filter<false, false>}, {"rejectattr", select_filter<false, true>},
    {"replace", replace_filter}, {"reverse", reverse_filter}, {"round", round_filter},
    {"safe", safe_filter}, {"select", select_filter<true, false>},
    {"selectattr", select_filter<true, true>}, {"sort", sort_filter}, {"string", string_filter},
    {"sum", sum_filter}, {"title", title_method<false>}, {"tojson", tojson_filter},
    {"trim", strip_method<true, true>}, {"unique", unique_filter},
    {"upper", case_method<Case::upper>}, {"wordcount", wordcount_filter}};

inline constexpr Entry kTests[] = {
    {"== eq equalto", compare_test<Op::equal>}, {"!= ne", compare_test<Op::not_equal>},
    {"< lt lessthan", compare_test<Op::less>}, {"<= le", compare_test<Op::less_equal>},
    {"> gt greaterthan", compare_test<Op::greater>}, {">= ge", compare_test<Op::greater_equal>},
    {"boolean", kind_test<Kind::boolean>}, {"callable", kind_test<Kind::loop, Kind::function>},
    {"defined", defined_test}, {"divisibleby", divisible_test}, {"escaped", escaped_test},
    {"even", parity_test<false>}, {"false", boolean_test<false>},
    {"filter", exists_test<Natives::filter>}, {"float", kind_test<Kind::real>},
    {"in", compare_test<Op::in>}, {"integer", kind_test<Kind::integer, Kind::big_integer>},
    {"iterable", kind_test<Kind::undefined, Kind::loop>},
    {"lower", is_case_method<UTF8PROC_CATEGORY_LL>}, {"mapping", kind_test<Kind::dict>},
    {"none", kind_test<Kind::none>}, {"number", kind_test<Kind::boolean, Kind::real>},
    {"odd", parity_test<true>}, {"sameas", same_test},
    {"sequence", kind_test<Kind::undefined, Kind::dict>}, {"string", kind_test<Kind::string>},
    {"test", exists_test<Natives::test>}, {"true", boolean_test<true>},
    {"undefined", kind_test<Kind::undefined>}, {"upper", is_case_method<UTF8PROC_CATEGORY_LU>}};

inline constexpr Entry kStringMethods[] = {
    {"capitalize", capitalize_method}, {"count", count_method}, {"endswith", affix_method<true>},
    {"find", find_method<false, false>}, {"format", format_method},
    {"index", find_method<false, true>}, {"isalnum", all_method<is_letter_or_number>},
    {"isalpha", all_method<is_letter>}, {"isdigit", all_method<is_decimal>},
    {"islower", is_case_method<UTF8PROC_CATEGORY_LL>}, {"isspace", isspace_method},
    {"isupper", is_case_method<UTF8PROC_CATEGORY_LU>}, {"join", join_method},
    {"lower", case_method<Case::lower>}, {"lstrip", strip_method<true, false>},
    {"removeprefix", remove_affix_method<false>}, {"removesuffix", remove_affix_method<true>},
    {"replace", replace_method}, {"rfind", find_method<true, false>},
    {"rsplit", split_method<true>}, {"rstrip", strip_method<false, true>},
    {"split", split_method<false>}, {"splitlines", splitlines_method},
    {"startswith", affix_method<false>}, {"strip", strip_method<true, true>},
    {"title", title_method<true>}, {"upper", case_method<Case::upper>}};

inline constexpr Entry kListMethods[] = {
    {"append clear extend insert pop remove reverse sort", unsafe_method},
    {"copy", copy_method}, {"count", list_count_method}, {"index", list_index_method}};

inline constexpr Entry kDictMethods[] = {
    {"clear pop popitem setdefault update", unsafe_method}, {"copy", copy_method},
    {"get", get_method}, {"items", view_method<Kind::items>}, {"keys", view_method<Kind::keys>},
    {"values", view_method<Kind::values>}};

inline constexpr Entry kFunctions[] = {
    {"cycler", cycler_function}, {"dict", dict_function}, {"joiner", joiner_function},
    {"namespace", namespace_function}, {"raise_exception", raise_exception},
    {"range", range_function}, {"strftime_now", strftime_now}};
// clang-format on

inline Native find_native(Natives set, std::string_view name) {
  constexpr std::span<const Entry> kTables[] = {kFilters,     kTests,       kStringMethods,
                                                kListMethods, kDictMethods, kFunctions};
  for (const Entry& entry : kTables[static_cast<std::size_t>(set)]) {
    for (std::string_view rest = entry.names; !rest.empty();) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      if (rest.substr(0, end) == name) return entry.native;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return nullptr;
}

}  // namespace nanovllm::jinja
