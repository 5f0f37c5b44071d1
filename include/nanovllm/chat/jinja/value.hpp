#pragma once
/// The values of a Jinja template: those of Python that a chat template can see.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::jinja {

class Value;
struct Arguments;
struct Loop;
struct Macro;
using Native = Value (*)(Arguments&);

enum class Kind : std::uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  big_integer,  ///< beyond 64 bits: its digits, to be printed and compared only
  string,
  list,   ///< what has elements: see Sequence
  dict,   ///< in the order of insertion
  space,  ///< namespace(): the only thing that a template can change
  loop,   ///< the variable of that name
  function,
};

/// What a Kind::list is in Python. A generator is empty after it has been iterated.
enum class Sequence : std::uint8_t { list, tuple, generator, keys, values, items, range };

/// What a rendering may still do. Work is counted in steps: one a node, and one for 32 bytes or
/// 4 elements that an operation looks at or makes.
struct Budget {
  std::int64_t steps = 8 << 20;

  void charge(std::size_t size) {
    steps -= static_cast<std::int64_t>(size);
    check<RequestError>(steps >= 0, "the chat template takes too long for this conversation");
  }
  /// For `size` bytes that a text of `before` bytes gets.
  void charge_bytes(std::size_t size, std::size_t before = 0) {
    check<RequestError>(before + size <= kMaxText, "a text of the chat template exceeds ", kMaxText,
                        " bytes");
    charge(size / 32);
  }
  static constexpr std::size_t kMaxText = 64 << 20;
};

/// Nested more deeply, values are refused: to print and to destroy them takes stack.
inline constexpr int kMaxValueDepth = kMaxJsonDepth + 64;

struct List;
struct Dict;
struct Space;
struct Function;

/// Cheap to copy: copies share what they hold, which does not change. Not for several threads.
class Value {
 public:
  Value() : data_{.name = nullptr} {}
  explicit Value(const std::string* undefined_name) : data_{.name = undefined_name} {}
  Value(bool value) = delete;
  static Value of(bool value) { return Value(Kind::boolean, {.integer = value}); }
  static Value of(std::int64_t value) { return Value(Kind::integer, {.integer = value}); }
  static Value of(std::size_t value) { return of(static_cast<std::int64_t>(value)); }
  static Value of(double value) { return Value(Kind::real, {.real = value}); }
  static Value of(Loop* loop) { return Value(Kind::loop, {.loop = loop}); }
  static Value of(Space* space) { return Value(Kind::space, {.space = space}); }
  static Value none() { return Value(Kind::none, {.integer = 0}); }
  static Value of(std::string text, bool safe = false);
  static Value of(std::string_view text) { return of(std::string(text)); }
  static Value of(std::vector<Value> items, Sequence type = Sequence::list);
  static Value of(std::vector<std::pair<Value, Value>> items);
  static Value of(Function function);
  static Value from_json(const Json& json);

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is_undefined() const { return kind_ == Kind::undefined; }
  [[nodiscard]] bool is_none() const { return kind_ == Kind::none; }
  [[nodiscard]] bool is_string() const { return kind_ == Kind::string; }
  [[nodiscard]] bool is_list() const { return kind_ == Kind::list; }
  [[nodiscard]] bool is_dict() const { return kind_ == Kind::dict; }
  /// A bool is an integer in Python.
  [[nodiscard]] bool is_integer() const { return kind_ == Kind::integer || kind_ == Kind::boolean; }
  [[nodiscard]] bool is_number() const { return is_integer() || kind_ == Kind::real; }
  [[nodiscard]] bool is_safe() const { return safe_; }  ///< of type Markup
  [[nodiscard]] Sequence sequence() const { return sequence_; }
  /// Whether it can be indexed: a list, a tuple or a range.
  [[nodiscard]] bool is_indexable() const {
    return is_list() && (sequence_ <= Sequence::tuple || sequence_ == Sequence::range);
  }

  [[nodiscard]] std::int64_t integer() const { return data_.integer; }
  [[nodiscard]] double real() const {
    return kind_ == Kind::real ? data_.real : static_cast<double>(data_.integer);
  }
  [[nodiscard]] const std::string& text() const {
    return *static_cast<const std::string*>(shared_.get());
  }
  [[nodiscard]] List& list() const { return *static_cast<List*>(shared_.get()); }
  [[nodiscard]] const Dict& dict() const { return *static_cast<const Dict*>(shared_.get()); }
  [[nodiscard]] const Function& function() const {
    return *static_cast<const Function*>(shared_.get());
  }
  [[nodiscard]] Space& space() const { return *data_.space; }
  [[nodiscard]] Loop& loop() const { return *data_.loop; }
  /// What was not found, for messages; may be null.
  [[nodiscard]] const std::string* undefined_name() const { return data_.name; }

  [[nodiscard]] bool truth() const;
  [[nodiscard]] int depth() const;
  [[nodiscard]] std::string_view type_name() const;  ///< as Python calls it
  /// Steps that an operation on all of it takes, whatever is inside.
  [[nodiscard]] std::size_t weight() const;
  /// The same value, whatever its type: Python's `is`.
  [[nodiscard]] bool same(const Value& other) const;

 private:
  union Data {
    std::int64_t integer;
    double real;
    Loop* loop;
    Space* space;
    const std::string* name;
  };
  Value(Kind kind, Data data) : kind_(kind), data_(data) {}
  Value(Kind kind, std::shared_ptr<void> shared)
      : kind_(kind), data_{.integer = 0}, shared_(std::move(shared)) {}

  Kind kind_ = Kind::undefined;
  Sequence sequence_ = Sequence::list;
  bool safe_ = false;
  Data data_;
  std::shared_ptr<void> shared_;
};

struct List {
  std::vector<Value> items;
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;

  [[nodiscard]] const Value* find(const Value& key, Budget& budget) const;
  [[nodiscard]] const Value* find(std::string_view key, Budget& budget) const;
};

struct Space {
  std::vector<std::pair<std::string, Value>> items;

  [[nodiscard]] Value* find(std::string_view name);
};

/// A native function, the `self` that a method is bound to, or a macro of the template.
struct Function {
  Native native = nullptr;
  Value self{};
  const Macro* macro = nullptr;
};

/// Python's ==. Throws RequestError where the budget ends, as all that takes one.
[[nodiscard]] bool equal(const Value& a, const Value& b, Budget& budget);

/// Less than, equal or greater: -1, 0, 1. Throws RequestError for types that Python does not order.
[[nodiscard]] int compare(const Value& a, const Value& b, Budget& budget);

}  // namespace nanovllm::jinja

#include <algorithm>

namespace nanovllm::jinja {

inline Value Value::of(std::string text, bool safe) {
  Value out(Kind::string, std::make_shared<std::string>(std::move(text)));
  out.safe_ = safe;
  return out;
}

inline void check_depth(int depth) {
  check<RequestError>(depth <= kMaxValueDepth, "a value is nested more than ", kMaxValueDepth,
                      " levels deep");
}

inline Value Value::of(std::vector<Value> items, Sequence type) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  check_depth(depth + 1);
  Value out(Kind::list, std::make_shared<List>(List{std::move(items), depth + 1}));
  out.sequence_ = type;
  return out;
}

inline Value Value::of(std::vector<std::pair<Value, Value>> items) {
  int depth = 0;
  for (const auto& [key, value] : items) depth = std::max({depth, key.depth(), value.depth()});
  check_depth(depth + 1);
  return Value(Kind::dict, std::make_shared<Dict>(Dict{std::move(items), depth + 1}));
}

inline Value Value::of(Function function) {
  return Value(Kind::function, std::make_shared<Function>(std::move(function)));
}

inline Value Value::from_json(const Json& json) {
  switch (json.kind()) {
    case Json::Kind::null: return none();
    case Json::Kind::boolean: return of(json.boolean());
    case Json::Kind::real: return of(json.get<double>());
    case Json::Kind::integer: return of(json.get<std::int64_t>());
    case Json::Kind::unsigned_integer: {
      const auto value = json.get<std::uint64_t>();
      if (value <= static_cast<std::uint64_t>(INT64_MAX))
        return of(static_cast<std::int64_t>(value));
      return Value(Kind::big_integer, std::make_shared<std::string>(std::to_string(value)));
    }
    case Json::Kind::big_integer:
      return Value(Kind::big_integer, std::make_shared<std::string>(json.digits()));
    case Json::Kind::string: return of(json.string());
    case Json::Kind::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& element : json) items.push_back(from_json(element));
      return of(std::move(items));
    }
    case Json::Kind::object: break;
  }
  std::vector<std::pair<Value, Value>> items;
  items.reserve(json.size());
  for (const auto& [key, value] : json.items()) items.emplace_back(of(key), from_json(value));
  return of(std::move(items));
}

inline bool Value::truth() const {
  switch (kind_) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean:
    case Kind::integer: return data_.integer != 0;
    case Kind::real: return data_.real != 0.0;
    case Kind::string: return !text().empty();
    case Kind::list: return sequence_ == Sequence::generator || !list().items.empty();
    case Kind::dict: return !dict().items.empty();
    default: return true;
  }
}

inline int Value::depth() const {
  if (kind_ == Kind::list) return list().depth;
  if (kind_ == Kind::dict) return dict().depth;
  return kind_ == Kind::function ? function().self.depth() + 1 : 0;
}

inline std::string_view Value::type_name() const {
  constexpr std::string_view kNames[] = {"undefined", "None",      "bool", "int",
                                         "float",     "int",       "str",  "list",
                                         "dict",      "namespace", "loop", "function"};
  constexpr std::string_view kSequences[] = {"list",        "tuple",      "generator", "dict_keys",
                                             "dict_values", "dict_items", "range"};
  return kind_ == Kind::list ? kSequences[static_cast<std::size_t>(sequence_)]
                             : kNames[static_cast<std::size_t>(kind_)];
}

inline std::size_t Value::weight() const {
  if (kind_ == Kind::string) return text().size() / 32;
  if (kind_ == Kind::list) return list().items.size() / 4;
  return kind_ == Kind::dict ? dict().items.size() / 4 : 0;
}

inline bool Value::same(const Value& other) const {
  if (kind_ != other.kind_) return false;
  if (shared_ && kind_ != Kind::string) return shared_ == other.shared_;
  if (kind_ == Kind::string) return text() == other.text();
  return kind_ == Kind::real ? data_.real == other.data_.real
                             : data_.integer == other.data_.integer;
}

inline const Value* Dict::find(std::string_view key, Budget& budget) const {
  budget.charge(items.size() / 16);
  for (const auto& [name, value] : items)
    if (name.is_string() && name.text() == key) return &value;
  return nullptr;
}

inline const Value* Dict::find(const Value& key, Budget& budget) const {
  if (key.is_string()) return find(std::string_view(key.text()), budget);
  for (const auto& [name, value] : items)
    if (equal(name, key, budget)) return &value;
  return nullptr;
}

inline Value* Space::find(std::string_view name) {
  for (auto& [key, value] : items)
    if (key == name) return &value;
  return nullptr;
}

inline bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = b.find(item.first, budget);
    return other != nullptr && equal(item.second, *other, budget);
  });
}

inline bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.charge(1);
  if (a.is_number() && b.is_number())
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.real() == b.real();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none: return true;
    case Kind::big_integer: return a.text() == b.text();
    case Kind::string: budget.charge(std::min(a.weight(), b.weight())); return a.text() == b.text();
    case Kind::list: {
      const auto &x = a.list().items, &y = b.list().items;
      if (a.sequence() != b.sequence() || x.size() != y.size()) return false;
      for (std::size_t i = 0; i < x.size(); ++i)
        if (!equal(x[i], y[i], budget)) return false;
      return true;
    }
    case Kind::dict: return equal_dicts(a.dict(), b.dict(), budget);
    default: return a.same(b);
  }
}

inline int compare(const Value& a, const Value& b, Budget& budget) {
  budget.charge(1 + std::min(a.weight(), b.weight()));
  const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (a.is_integer() && b.is_integer()) return order(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return order(a.real(), b.real());
  if (a.is_string() && b.is_string()) return order(a.text(), b.text());
  const bool lists = a.is_indexable() && b.is_indexable() && a.sequence() == b.sequence();
  check<RequestError>(lists, "'", a.type_name(), "' and '", b.type_name(), "' have no order");
  const auto &x = a.list().items, &y = b.list().items;
  for (std::size_t i = 0; i < x.size() && i < y.size(); ++i)
    if (!equal(x[i], y[i], budget)) return compare(x[i], y[i], budget);
  return order(x.size(), y.size());
}

}  // namespace nanovllm::jinja
