#pragma once
/// The values of a Jinja template: those of Python that a chat template can see.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::jinja {

class Value;
struct Function;
struct Loop;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;  ///< in the order of insertion

/// In an order in which those that a test of Jinja2 takes together stand together.
enum class Kind : std::uint8_t {
  none,
  boolean,
  integer,
  big_integer,  ///< beyond 64 bits: its digits, to be printed and compared only
  real,
  undefined,
  string,
  list,
  tuple,
  group,  ///< a tuple of groupby: `grouper` and `list`
  range,
  dict,
  generator,  ///< empty after it has been iterated
  keys,
  values,
  items,
  loop,  ///< the variable of that name
  function,
  space,  ///< namespace(): the only thing that a template can change
};

/// Throws RequestError with the parts as its message unless `condition` holds.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  check<RequestError>(condition, parts...);
}

/// What a rendering may still do. Work is counted in steps: one a node, and one for 32 bytes or
/// 4 elements that an operation looks at or makes.
struct Budget {
  static constexpr std::size_t kMaxText = 64 << 20;
  std::int64_t steps = 8 << 20;

  void charge(std::size_t size) {
    steps -= static_cast<std::int64_t>(size);
    require(steps >= 0, "the chat template takes too long for this conversation");
  }
  /// For `size` bytes that a text of `before` bytes gets.
  void charge_bytes(std::size_t size, std::size_t before = 0) {
    require(before + size <= kMaxText, "a text of the chat template exceeds ", kMaxText, " bytes");
    charge(size / 32);
  }
};

/// Nested more deeply, values are refused: to print and to destroy them takes stack.
inline constexpr int kMaxValueDepth = kMaxJsonDepth + 64;

/// Cheap to copy: copies share what they hold, which does not change. Not for several threads.
class Value {
 public:
  Value() = default;
  /// Undefined; messages say that `name` was not found.
  static Value undefined(const Value& name) { return Value(Kind::undefined, name.shared_); }
  static Value none() { return Value(Kind::none, 0); }
  template <std::integral T>
  static Value of(T value) {
    return Value(std::same_as<T, bool> ? Kind::boolean : Kind::integer,
                 static_cast<std::int64_t>(value));
  }
  static Value big_integer(std::string digits) {
    return Value(Kind::big_integer, std::make_shared<std::string>(std::move(digits)));
  }
  static Value of(double value) { return Value(value); }
  /// @param safe  of type Markup
  static Value of(std::string text, bool safe = false) {
    return Value(Kind::string, std::make_shared<std::string>(std::move(text)), 0, safe);
  }
  static Value of(std::string_view text) { return of(std::string(text)); }
  static Value of(List items, Kind kind = Kind::list);
  static Value of(Dict items);
  static Value of(Function function);
  static Value of(std::shared_ptr<Loop> loop) { return Value(Kind::loop, std::move(loop)); }
  /// A namespace, or with Kind::dict what templates cannot change; `members` outlive the value.
  static Value view(Dict& members, Kind kind = Kind::space) {
    return Value(kind, std::shared_ptr<void>(std::shared_ptr<void>(), &members));
  }
  static Value from_json(const Json& json);

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is_undefined() const { return kind_ == Kind::undefined; }
  [[nodiscard]] bool is_none() const { return kind_ == Kind::none; }
  [[nodiscard]] bool is_string() const { return kind_ == Kind::string; }
  [[nodiscard]] bool is_dict() const { return kind_ == Kind::dict; }
  /// A bool is an integer in Python.
  [[nodiscard]] bool is_integer() const { return kind_ == Kind::integer || kind_ == Kind::boolean; }
  [[nodiscard]] bool is_number() const { return is_integer() || kind_ == Kind::real; }
  /// Whether it has elements in a row.
  [[nodiscard]] bool is_list() const {
    return Kind::list <= kind_ && kind_ <= Kind::items && !is_dict();
  }
  [[nodiscard]] bool is_indexable() const { return Kind::list <= kind_ && kind_ <= Kind::range; }
  [[nodiscard]] bool is_tuple() const { return kind_ == Kind::tuple || kind_ == Kind::group; }
  [[nodiscard]] bool is_safe() const { return safe_; }

  [[nodiscard]] std::int64_t integer() const { return integer_; }
  [[nodiscard]] double real() const {
    return kind_ == Kind::real ? real_ : static_cast<double>(integer_);
  }
  [[nodiscard]] const std::string& text() const { return held<std::string>(); }
  [[nodiscard]] List& list() const { return held<List>(); }
  [[nodiscard]] Dict& dict() const { return held<Dict>(); }  ///< of a namespace as well
  [[nodiscard]] const Function& function() const { return held<Function>(); }
  [[nodiscard]] Loop& loop() const { return held<Loop>(); }
  /// What was not found, for messages; may be null.
  [[nodiscard]] const std::string* undefined_name() const {
    return static_cast<const std::string*>(shared_.get());
  }

  [[nodiscard]] bool truth() const;
  [[nodiscard]] int depth() const { return depth_; }
  [[nodiscard]] std::string_view type_name() const;  ///< as Python calls it
  /// Steps that an operation on all of it takes, whatever is inside.
  [[nodiscard]] std::size_t weight() const;
  /// The same value, whatever its type: Python's `is`.
  [[nodiscard]] bool same(const Value& other) const;

 private:
  explicit Value(double value) : kind_(Kind::real), real_(value) {}
  Value(Kind kind, std::int64_t value) : kind_(kind), integer_(value) {}
  Value(Kind kind, std::shared_ptr<void> shared, int depth = 0, bool safe = false)
      : kind_(kind),
        safe_(safe),
        depth_(static_cast<std::uint16_t>(depth)),
        shared_(std::move(shared)) {
    require(depth <= kMaxValueDepth, "a value is nested more than ", kMaxValueDepth,
            " levels deep");
  }
  template <class T>
  [[nodiscard]] T& held() const {
    return *static_cast<T*>(shared_.get());
  }

  Kind kind_ = Kind::undefined;
  bool safe_ = false;
  std::uint16_t depth_ = 0;
  union {
    std::int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<void> shared_;
};

struct Node;
struct Scope;
struct Call;
using Native = Value (*)(Call&);

/// A native function with the `self` that it is bound to, or a macro where it was defined.
struct Function {
  Native native = nullptr;
  Value self{};
  const Node* macro = nullptr;
  Scope* scope = nullptr;
};

inline Value Value::of(List items, Kind kind) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return Value(kind, std::make_shared<List>(std::move(items)), depth + 1);
}

inline Value Value::of(Dict items) {
  int depth = 0;
  for (const auto& [key, value] : items) depth = std::max({depth, key.depth(), value.depth()});
  return Value(Kind::dict, std::make_shared<Dict>(std::move(items)), depth + 1);
}

inline Value Value::of(Function function) {
  const int depth = function.self.depth() + 1;
  return Value(Kind::function, std::make_shared<Function>(std::move(function)), depth);
}

inline Value Value::from_json(const Json& json) {
  switch (json.kind()) {
    case Json::Kind::null: return none();
    case Json::Kind::boolean: return of(json.boolean());
    case Json::Kind::real: return of(json.get<double>());
    case Json::Kind::integer: return of(json.get<std::int64_t>());
    case Json::Kind::unsigned_integer: {
      const auto value = json.get<std::uint64_t>();
      return value <= INT64_MAX ? of(value) : big_integer(std::to_string(value));
    }
    case Json::Kind::big_integer: return big_integer(json.digits());
    case Json::Kind::string: return of(json.string());
    case Json::Kind::array: {
      List items;
      items.reserve(json.size());
      for (const Json& element : json) items.push_back(from_json(element));
      return of(std::move(items));
    }
    case Json::Kind::object: break;
  }
  Dict items;
  items.reserve(json.size());
  for (const auto& [key, value] : json.items()) items.emplace_back(of(key), from_json(value));
  return of(std::move(items));
}

inline bool Value::truth() const {
  switch (kind_) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean:
    case Kind::integer: return integer_ != 0;
    case Kind::real: return real_ != 0.0;
    case Kind::string: return !text().empty();
    case Kind::dict: return !dict().empty();
    default: return !is_list() || kind_ == Kind::generator || !list().empty();
  }
}

inline std::string_view Value::type_name() const {
  constexpr std::string_view kNames[] = {
      "None",        "bool",       "int",   "int",      "float",    "undefined", "str",
      "list",        "tuple",      "tuple", "range",    "dict",     "generator", "dict_keys",
      "dict_values", "dict_items", "loop",  "function", "namespace"};
  return kNames[static_cast<std::size_t>(kind_)];
}

inline std::size_t Value::weight() const {
  if (is_string()) return text().size() / 32;
  if (is_list()) return list().size() / 4;
  return is_dict() ? dict().size() / 4 : 0;
}

inline bool Value::same(const Value& other) const {
  if (kind_ != other.kind_) return false;
  if (is_string()) return text() == other.text();
  if (kind_ == Kind::real) return real_ == other.real_;
  return integer_ == other.integer_ && shared_ == other.shared_;
}

/// Python's ==. Throws RequestError where the budget ends, as all that takes one.
[[nodiscard]] bool equal(const Value& a, const Value& b, Budget& budget);

/// The value of a key, or null.
[[nodiscard]] inline Value* find(Dict& dict, const Value& key, Budget& budget) {
  budget.charge(dict.size() / 16);
  for (auto& [name, value] : dict) {
    const bool both = key.is_string() && name.is_string();
    if (both ? name.text() == key.text() : equal(name, key, budget)) return &value;
  }
  return nullptr;
}

/// Sets the value of a key, in its place if it is there.
inline void set_item(Dict& dict, const Value& key, Value value, Budget& budget) {
  require(!key.is_dict() && key.kind() != Kind::list, "a key cannot be of type '", key.type_name(),
          "'");
  if (Value* found = find(dict, key, budget))
    *found = std::move(value);
  else
    dict.emplace_back(key, std::move(value));
}

inline bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.charge(1);
  if (a.is_number() && b.is_number())
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.real() == b.real();
  if (a.kind() != b.kind()) return false;
  if (a.is_undefined()) return true;
  budget.charge(std::min(a.weight(), b.weight()));
  if (a.kind() == Kind::big_integer) return a.text() == b.text();
  if (a.is_list()) {
    return std::equal(a.list().begin(), a.list().end(), b.list().begin(), b.list().end(),
                      [&](const Value& x, const Value& y) { return equal(x, y, budget); });
  }
  if (!a.is_dict()) return a.same(b);
  if (a.dict().size() != b.dict().size()) return false;
  return std::all_of(a.dict().begin(), a.dict().end(), [&](const auto& item) {
    const Value* other = find(b.dict(), item.first, budget);
    return other != nullptr && equal(item.second, *other, budget);
  });
}

/// Less than, equal or greater: -1, 0, 1. Throws RequestError for types that Python does not order.
[[nodiscard]] inline int compare(const Value& a, const Value& b, Budget& budget) {
  budget.charge(1 + std::min(a.weight(), b.weight()));
  const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (a.is_integer() && b.is_integer()) return order(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return order(a.real(), b.real());
  if (a.is_string() && b.is_string()) return order(a.text(), b.text());
  require(a.is_indexable() && a.kind() == b.kind(), "'", a.type_name(), "' and '", b.type_name(),
          "' have no order");
  const List &x = a.list(), &y = b.list();
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    if (!equal(x[i], y[i], budget)) return compare(x[i], y[i], budget);
  return order(x.size(), y.size());
}

}  // namespace nanovllm::jinja
