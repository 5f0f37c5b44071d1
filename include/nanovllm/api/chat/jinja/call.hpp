#pragma once
/// What filters, tests, methods and functions get, and how members of values are found.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/jinja/ast.hpp"
#include "nanovllm/api/chat/jinja/text.hpp"
#include "nanovllm/api/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

/// What a rendering has: its budget, and its namespaces, which may hold each other.
struct Environment : Budget {
  std::deque<Dict> spaces{};
};

/// The arguments. A function asks for its parameters one by one, in their order.
struct Call {
  Environment& in;
  Value self{};  ///< what a method, a filter or a test applies to
  List positional{};
  std::vector<std::pair<std::string, Value>> named{};  ///< what was taken has no name any more
  std::size_t num_taken = 0;                           ///< of positional

  /// The next parameter's value, or null where it is not given.
  const Value* next(std::string_view name) {
    return num_taken < positional.size() ? &positional[num_taken++] : by_name(name);
  }
  const Value* by_name(std::string_view name) {
    for (auto& [key, value] : named) {
      if (key != name) continue;
      key.clear();
      return &value;
    }
    return nullptr;
  }
  /// The same, where None stands for what is not given.
  const Value* given(std::string_view name) {
    const Value* value = next(name);
    return value != nullptr && !value->is_none() ? value : nullptr;
  }
  const Value& required(std::string_view name) {
    const Value* value = next(name);
    require(value != nullptr, "expected an argument '", name, "'");
    return *value;
  }
  bool flag(std::string_view name) {
    const Value* value = next(name);
    return value != nullptr && value->truth();
  }
  std::int64_t integer(std::string_view name, std::int64_t otherwise) {
    const Value* value = next(name);
    if (value == nullptr) return otherwise;
    require(value->is_integer(), "'", name, "' must be an int, got ", value->type_name());
    return value->integer();
  }
  const std::string& text(std::string_view name) {
    const Value& value = required(name);
    require(value.is_string(), "'", name, "' must be a str, got ", value.type_name());
    return value.text();
  }
  /// Of which member a filter is: a path, or null for the element itself.
  const Value* path() {
    const Value* value = given("attribute");
    require(value == nullptr || value->is_string() || value->is_integer(),
            "'attribute' must be a str or an int");
    return value;
  }
  /// `self` as text.
  const std::string& subject() {
    if (!self.is_string()) self = Value::of(str(self, in));
    return self.text();
  }
  /// A text that is Markup if `self` is.
  [[nodiscard]] Value alike(std::string text) const {
    return Value::of(std::move(text), self.is_safe());
  }

  void take_all() {
    num_taken = positional.size();
    named.clear();
  }
  /// Throws RequestError for what no parameter took.
  void finish() const {
    bool taken = num_taken >= positional.size();
    for (const auto& [name, value] : named) taken = taken && name.empty();
    require(taken, "got more arguments than there are parameters");
  }
};

[[nodiscard]] inline Value run_native(Native native, Call& call) {
  call.in.charge(1 + call.self.weight());
  for (const Value& value : call.positional) call.in.charge(value.weight());
  Value out = native(call);
  call.finish();
  call.in.charge(out.weight());
  return out;
}

/// The variable `loop`.
struct Loop {
  const Node* node = nullptr;
  Scope* outside = nullptr;
  List items{};
  std::size_t index = 0;
  int depth = 1;
  std::string changed{};  ///< what `loop.changed` saw
};

inline Value loop_cycle(Call& call) {
  require(!call.positional.empty(), "loop.cycle needs a value");
  call.take_all();
  return call.positional[call.self.loop().index % call.positional.size()];
}

/// Values are told apart by what they print.
inline Value loop_changed(Call& call) {
  std::string now;
  for (const Value& value : call.positional) append_str(now, value, call.in);
  call.take_all();
  std::string& before = call.self.loop().changed;
  const bool changed = before != (now += '.');
  before = std::move(now);
  return Value::of(changed);
}

inline Value loop_attribute(const Value& object, const Value& member) {
  const Loop& loop = object.loop();
  const std::size_t size = loop.items.size(), i = loop.index;
  const std::string& name = member.text();
  if (name == "index") return Value::of(i + 1);
  if (name == "index0") return Value::of(i);
  if (name == "first") return Value::of(i == 0);
  if (name == "last") return Value::of(i + 1 == size);
  if (name == "length") return Value::of(size);
  if (name == "revindex") return Value::of(size - i);
  if (name == "revindex0") return Value::of(size - i - 1);
  if (name == "depth") return Value::of(loop.depth);
  if (name == "depth0") return Value::of(loop.depth - 1);
  if (name == "previtem" && i > 0) return loop.items[i - 1];
  if (name == "nextitem" && i + 1 < size) return loop.items[i + 1];
  if (name == "cycle") return Value::of(Function{.native = loop_cycle, .self = object});
  if (name == "changed") return Value::of(Function{.native = loop_changed, .self = object});
  return Value::undefined(member);
}

inline void check_defined(const Value& value) {
  if (!value.is_undefined()) return;
  const std::string* name = value.undefined_name();
  throw RequestError(name ? concat("'", *name, "' is undefined")
                          : std::string("an element that there is not was used"));
}

/// A method that changes its object.
inline Value unsafe_method(Call& call) {
  throw RequestError(concat("a chat template may not change a ", call.self.type_name(),
                            "; a namespace() can hold another"));
}

/// `object.name`, where `methods` have the name, or an undefined value.
[[nodiscard]] inline Value attribute(const Value& object, const Value& name, const Methods& methods,
                                     Budget& budget) {
  check_defined(object);
  if (const Native method = methods.of(object); method == unsafe_method)
    return Value::undefined(name);
  else if (method != nullptr)
    return Value::of(Function{.native = method, .self = object});
  if (object.kind() == Kind::loop) return loop_attribute(object, name);
  if (object.kind() == Kind::group && name.text() == "grouper") return object.list()[0];
  if (object.kind() == Kind::group && name.text() == "list") return object.list()[1];
  const bool has_names = object.is_dict() || object.kind() == Kind::space;
  const Value* found = has_names ? find(object.dict(), name, budget) : nullptr;
  return found ? *found : Value::undefined(name);
}

/// `object[key]`, or an undefined value.
[[nodiscard]] inline Value item(const Value& object, const Value& key, Budget& budget) {
  check_defined(object);
  if (object.is_dict()) {
    if (const Value* found = find(object.dict(), key, budget)) return *found;
  } else if (key.is_integer() && (object.is_indexable() || object.is_string())) {
    budget.charge(object.is_string() ? object.weight() : 0);
    const std::size_t size =
        object.is_string() ? num_characters(object.text()) : object.list().size();
    const std::int64_t index =
        key.integer() + (key.integer() < 0 ? static_cast<std::int64_t>(size) : 0);
    const auto at = static_cast<std::size_t>(index);
    if (index < 0 || at >= size) return Value();
    if (object.is_indexable()) return object.list()[at];
    return Value::of(part(object.text(), index, index + 1).first);
  }
  return key.is_string() ? attribute(object, key, find_methods(key.text()), budget) : Value();
}

/// The elements: those of a list, the characters of a string, the keys of a dict.
[[nodiscard]] inline List elements(const Value& value, Budget& budget) {
  List out;
  budget.charge(value.is_string() ? value.text().size() : value.weight());
  if (value.kind() == Kind::generator) return std::move(value.list());
  if (value.is_list()) return value.list();
  if (value.is_string()) {
    for (const std::string_view c : Characters(value.text())) out.push_back(Value::of(c));
  } else if (value.is_dict()) {
    for (const auto& [key, element] : value.dict()) out.push_back(key);
  } else {
    require(value.is_undefined(), "a value of type '", value.type_name(), "' has no elements");
  }
  return out;
}

/// `parts[0][parts[1]:parts[2]:parts[3]]`; None stands for what is not given.
[[nodiscard]] inline Value slice(const List& parts, Budget& budget) {
  const Value& of = parts[0];
  require(of.is_string() || of.is_indexable(), "a value of type '", of.type_name(),
          "' cannot be sliced");
  for (std::size_t i = 1; i < 4; ++i)
    require(parts[i].is_none() || parts[i].is_integer(),
            "the bounds of a slice must be int or None, got ", parts[i].type_name());
  const auto given = [&](std::size_t i, std::int64_t otherwise) {
    return parts[i].is_none() ? otherwise : parts[i].integer();
  };
  const std::int64_t step = given(3, 1);
  require(step != 0, "the step of a slice cannot be 0");
  budget.charge(of.weight());
  if (of.is_string() && step == 1)
    return Value::of(std::string(part(of.text(), given(1, 0), given(2, INT64_MAX)).first),
                     of.is_safe());
  const List all = of.is_string() ? elements(of, budget) : of.list();
  const auto size = static_cast<std::int64_t>(all.size());
  const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](std::size_t i, std::int64_t otherwise) {
    const std::int64_t at = given(i, otherwise);
    return parts[i].is_none() ? at : std::clamp(at < 0 ? at + size : at, low, high);
  };
  const std::int64_t end = bound(2, step > 0 ? high : low);
  const std::int64_t stride = std::clamp(step, -size - 1, size + 1);
  List out;
  for (std::int64_t i = bound(1, step > 0 ? low : high); step > 0 ? i < end : i > end; i += stride)
    out.push_back(all[static_cast<std::size_t>(i)]);
  if (!of.is_string()) return Value::of(std::move(out), of.kind());
  std::string text;
  for (const Value& one : out) text += one.text();
  return Value::of(std::move(text), of.is_safe());
}

}  // namespace nanovllm::jinja
