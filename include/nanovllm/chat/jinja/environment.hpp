#pragma once
/// What filters, tests, methods and functions see of a rendering.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/ast.hpp"
#include "nanovllm/chat/jinja/text.hpp"
#include "nanovllm/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

class Environment;

/// What a function gets. It asks for its parameters one by one, in their order.
struct Arguments {
  Environment& in;
  Value self{};  ///< what a method or filter applies to
  std::vector<Value> positional{};
  std::vector<std::pair<std::string_view, Value>> named{};
  std::size_t num_taken = 0, num_named = 0;

  /// The next parameter's value, or null where it is not given.
  const Value* next(std::string_view name) {
    if (num_taken < positional.size()) return &positional[num_taken++];
    ++num_taken;
    for (const auto& [key, value] : named)
      if (key == name) return ++num_named, &value;
    return nullptr;
  }
  const Value& required(std::string_view name) {
    const Value* value = next(name);
    check<RequestError>(value != nullptr, "expected an argument '", name, "'");
    return *value;
  }
  bool flag(std::string_view name, bool otherwise = false) {
    const Value* value = next(name);
    return value ? value->truth() : otherwise;
  }
  std::int64_t integer(std::string_view name, std::int64_t otherwise) {
    const Value* value = next(name);
    if (value == nullptr) return otherwise;
    check<RequestError>(value->is_integer(), "'", name, "' must be an int, got ",
                        value->type_name());
    return value->integer();
  }
  const std::string& text(std::string_view name) {
    const Value& value = required(name);
    check<RequestError>(value.is_string(), "'", name, "' must be a str, got ", value.type_name());
    return value.text();
  }
  /// Throws RequestError for what no parameter took.
  void finish() const {
    check<RequestError>(num_taken >= positional.size() && num_named >= named.size(),
                        "got more arguments than there are parameters");
  }
};

/// Variables of a macro, or of a turn of a loop.
struct Scope {
  Scope* parent = nullptr;  ///< null for the template's own variables
  std::vector<std::pair<int, Value>> variables{};
  bool kept = false;  ///< something refers to it

  void clear() { variables.clear(); }
};

/// The variable `loop`.
struct Loop {
  const Node* node = nullptr;
  Scope* outside = nullptr;
  std::vector<Value> items{};
  std::size_t index = 0;
  int depth = 1;
  std::string changed{};  ///< what `loop.changed` saw
  bool kept = false;

  void clear() { *this = Loop(); }
};

/// A macro where it is defined.
struct Macro {
  const Node* node;
  Scope* scope;
};

/// Objects that live as long as a rendering; those that nothing refers to are used again.
template <class T>
class Pool {
 public:
  T& take() {
    if (free_.empty()) return all_.emplace_back();
    T& out = *free_.back();
    free_.pop_back();
    return out;
  }
  void give_back(T& object) {
    if (object.kept) return;
    object.clear();
    free_.push_back(&object);
  }

 private:
  std::deque<T> all_;
  std::vector<T*> free_;
};

/// What `raise_exception` throws.
struct Refusal : RequestError {
  using RequestError::RequestError;
};

/// A method that changes its object.
Value unsafe_method(Arguments& call);

class Environment {
 public:
  Budget budget;

  Space& make_space() { return spaces_.emplace_back(); }

  [[nodiscard]] Value call_native(Native native, Arguments& arguments) {
    budget.charge(1 + arguments.self.weight());
    for (const Value& value : arguments.positional) budget.charge(value.weight());
    Value out = native(arguments);
    arguments.finish();
    budget.charge(out.weight());
    return out;
  }

  /// `value.name`, with the methods of that name, or an undefined value.
  [[nodiscard]] Value attribute(const Value& value, const std::string& name, Native string_method,
                                Native list_method, Native dict_method) {
    const Native method = value.is_string() ? string_method
                          : value.is_list() ? list_method
                          : value.is_dict() ? dict_method
                                            : nullptr;
    if (method == unsafe_method) return Value(&name);
    if (method != nullptr) return Value::of(Function{.native = method, .self = value});
    if (value.kind() == Kind::loop) return loop_attribute(value.loop(), name);
    const Value* found = nullptr;
    if (value.is_dict()) found = value.dict().find(name, budget);
    if (value.kind() == Kind::space) found = value.space().find(name);
    check_defined(value);
    return found ? *found : Value(&name);
  }

  /// `value[key]`, or an undefined value.
  [[nodiscard]] Value item(const Value& value, const Value& key) {
    check_defined(value);
    if (value.is_dict()) {
      if (const Value* found = value.dict().find(key, budget)) return *found;
    } else if (key.is_integer()) {
      const std::int64_t index = key.integer();
      if (value.is_indexable()) {
        const auto& items = value.list().items;
        const auto size = static_cast<std::int64_t>(items.size());
        if (index >= -size && index < size)
          return items[static_cast<std::size_t>(index < 0 ? index + size : index)];
      } else if (value.is_string()) {
        return character(value, index);
      }
    }
    if (!key.is_string()) return Value();
    const std::string& name = *texts_.emplace_back(std::make_unique<std::string>(key.text()));
    return attribute(value, name, find_native(Natives::string_method, name),
                     find_native(Natives::list_method, name),
                     find_native(Natives::dict_method, name));
  }

  /// The elements: those of a list, the characters of a string, the keys of a dict.
  [[nodiscard]] std::vector<Value> elements(const Value& value) {
    std::vector<Value> out;
    if (value.is_list()) {
      budget.charge(value.weight());
      if (value.sequence() == Sequence::generator) return std::move(value.list().items);
      return value.list().items;
    }
    if (value.is_string()) {
      budget.charge(value.text().size());
      const auto starts = character_starts(value.text());
      for (std::size_t i = 0; i + 1 < starts.size(); ++i)
        out.push_back(Value::of(value.text().substr(starts[i], starts[i + 1] - starts[i])));
    } else if (value.is_dict()) {
      budget.charge(value.weight());
      for (const auto& [key, element] : value.dict().items) out.push_back(key);
    } else {
      check<RequestError>(value.is_undefined(), "a value of type '", value.type_name(),
                          "' has no elements");
    }
    return out;
  }

  /// The value of a filter or test that is named at run time.
  [[nodiscard]] Value apply(Natives set, const std::string& name, Arguments& arguments) {
    const Native native = find_native(set, name);
    check<RequestError>(native != nullptr, "there is no ", set == Natives::test ? "test" : "filter",
                        " called '", name, "'");
    return call_native(native, arguments);
  }

  /// Sets the value of a key, as a dict does.
  void add_item(std::vector<std::pair<Value, Value>>& items, const Value& key, const Value& value) {
    check<RequestError>(!key.is_dict() && !(key.is_list() && key.sequence() == Sequence::list),
                        "a key cannot be of type '", key.type_name(), "'");
    for (auto& [name, place] : items) {
      if (!equal(name, key, budget)) continue;
      place = value;
      return;
    }
    items.emplace_back(key, value);
  }

  void set_member(Space& space, const std::string& name, Value value) {
    check<RequestError>(!name.starts_with('_'), "a namespace takes no name with a leading '_'");
    if (Value* found = space.find(name))
      *found = std::move(value);
    else
      space.items.emplace_back(name, std::move(value));
  }

  static void check_defined(const Value& value) {
    if (!value.is_undefined()) return;
    const std::string* name = value.undefined_name();
    throw RequestError(name ? concat("'", *name, "' is undefined")
                            : std::string("an element that there is not was used"));
  }

 private:
  [[nodiscard]] Value character(const Value& value, std::int64_t index) {
    budget.charge(value.weight());
    const auto starts = character_starts(value.text());
    const auto size = static_cast<std::int64_t>(starts.size()) - 1;
    if (index < -size || index >= size) return Value();
    const auto at = static_cast<std::size_t>(index < 0 ? index + size : index);
    return Value::of(value.text().substr(starts[at], starts[at + 1] - starts[at]));
  }

  [[nodiscard]] Value loop_attribute(Loop& loop, const std::string& name) {
    const std::size_t size = loop.items.size(), i = loop.index;
    if (name == "index") return Value::of(i + 1);
    if (name == "index0") return Value::of(i);
    if (name == "first") return Value::of(i == 0);
    if (name == "last") return Value::of(i + 1 == size);
    if (name == "length") return Value::of(size);
    if (name == "revindex") return Value::of(size - i);
    if (name == "revindex0") return Value::of(size - i - 1);
    if (name == "depth") return Value::of(std::int64_t{loop.depth});
    if (name == "depth0") return Value::of(std::int64_t{loop.depth - 1});
    if (name == "previtem") return i > 0 ? loop.items[i - 1] : Value(&name);
    if (name == "nextitem") return i + 1 < size ? loop.items[i + 1] : Value(&name);
    const bool cycle = name == "cycle";
    if (!cycle && name != "changed") return Value(&name);
    loop.kept = true;
    return Value::of(
        Function{.native = cycle ? &loop_cycle : &loop_changed, .self = Value::of(&loop)});
  }

  static Value loop_cycle(Arguments& arguments) {
    const auto& values = arguments.positional;
    check<RequestError>(!values.empty(), "loop.cycle needs a value");
    arguments.num_taken = values.size();
    return values[arguments.self.loop().index % values.size()];
  }

  /// Values are told apart by what they print.
  static Value loop_changed(Arguments& arguments) {
    std::string now;
    for (const Value& value : arguments.positional) append_str(now, value, arguments.in.budget);
    arguments.num_taken = arguments.positional.size();
    std::string& before = arguments.self.loop().changed;
    const bool changed = before != (now += '.');
    before = std::move(now);
    return Value::of(changed);
  }

  std::deque<Space> spaces_;

 protected:
  std::vector<std::unique_ptr<std::string>> texts_;  // that values refer to
};

}  // namespace nanovllm::jinja
