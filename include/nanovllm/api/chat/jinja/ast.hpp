#pragma once
/// The tree of a parsed template.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/jinja/value.hpp"

namespace nanovllm::jinja {

/// Operators of `Type::binary`, then those of `Type::comparison`.
enum class Op : std::uint8_t {
  none,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in,
};

enum class Type : std::uint8_t {
  // Expressions: `inputs` are the operands.
  constant,     ///< value
  name,         ///< symbol, and value, its text; as a parameter of a macro inputs[0], its default
  attribute,    ///< inputs[0].value
  item,         ///< inputs[0][inputs[1]]
  slice,        ///< inputs[0][inputs[1]:inputs[2]:inputs[3]]
  call,         ///< inputs[0](inputs[1…], named…)
  filter,       ///< inputs[0] | value(inputs[1…], named…)
  test,         ///< inputs[0] is value(inputs[1…])
  logical_not,  ///< not inputs[0]
  logical_and,
  logical_or,
  binary,       ///< inputs[0] ops[0] inputs[1]
  comparison,   ///< inputs[0] ops[0] inputs[1] ops[1] inputs[2] …
  conditional,  ///< inputs[0] if inputs[1] else inputs[2]
  concat,       ///< ~
  list,
  tuple,
  dict,   ///< keys and values by turns
  block,  ///< what body prints, for filter and for set without '='
  macro,  ///< a function of the parameters `inputs`, for macro and, as an argument, for call
  // Statements.
  output,      ///< inputs[0]; a text as well
  branch,      ///< if: body where inputs[0], else otherwise
  loop,        ///< for inputs[0] in inputs[1] if inputs[2], which may be null
  set,         ///< inputs[0] = inputs[1]
  scope,       ///< body with variables of its own: with, generation
  leave_loop,  ///< break
  next_turn,   ///< continue
};

/// Names that mean something, and the symbols that they have in each tree.
enum Symbol : std::size_t { kCaller, kVarargs, kKwargs, kLoop };

/// The functions that a string, a list and a dict have by one name; null for none.
struct Methods {
  Native string = nullptr, list = nullptr, dict = nullptr;

  [[nodiscard]] Native of(const Value& value) const {
    return value.is_string() ? string : value.is_list() ? list : value.is_dict() ? dict : nullptr;
  }
};

struct Node {
  Type type;
  std::size_t offset;      ///< in the source, for messages
  std::size_t symbol = 0;  ///< of a name: its index in Tree::variables
  Value value{};
  std::vector<Node*> inputs{};
  std::vector<Op> ops{};
  std::vector<std::pair<std::string, Node*>> named{};  ///< `*` and `**` for what is unpacked
  std::vector<Node*> body{}, otherwise{};
  bool recursive = false;   ///< of a loop
  unsigned specials = 0;    ///< of a macro: bit kCaller, kVarargs and kKwargs of what it reads
  Native native = nullptr;  ///< the filter or the test, where one has the name
  Methods methods{};        ///< of an attribute
};

struct Tree {
  std::string source;  ///< with '\n' for every line end
  std::deque<Node> nodes{};
  std::vector<Node*> body{};
  List names{}, variables{};  ///< by symbol; variables as they are before the first statement
  bool uses_loop = false;
};

/// What is written in C++.
enum class Natives : std::uint8_t {
  filter,
  test,
  string_method,
  list_method,
  dict_method,
  global,
};

/// The function that has the name, or null.
[[nodiscard]] Native find_native(Natives set, std::string_view name);

[[nodiscard]] inline Methods find_methods(std::string_view name) {
  return {find_native(Natives::string_method, name), find_native(Natives::list_method, name),
          find_native(Natives::dict_method, name)};
}

}  // namespace nanovllm::jinja
