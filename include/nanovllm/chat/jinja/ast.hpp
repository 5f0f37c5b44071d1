#pragma once
/// The tree of a parsed template.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/value.hpp"

namespace nanovllm::jinja {

enum class Op : std::uint8_t {
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
  name,         ///< symbol
  attribute,    ///< inputs[0].text
  item,         ///< inputs[0][inputs[1]]
  slice,        ///< inputs[0][inputs[1]:inputs[2]:inputs[3]], those that are not given null
  call,         ///< inputs[0](inputs[1…], named…)
  filter,       ///< inputs[0] | text(inputs[1…], named…); inputs[0] is null in a filter block
  test,         ///< inputs[0] is text(inputs[1…])
  negate,       ///< -inputs[0]
  plus,         ///< +inputs[0]
  logical_not,  ///< not inputs[0]
  logical_and,
  logical_or,
  binary,       ///< inputs[0] ops[0] inputs[1]
  comparison,   ///< inputs[0] ops[0] inputs[1] ops[1] inputs[2] …
  conditional,  ///< inputs[0] if inputs[1] else inputs[2], which may be null
  concat,       ///< ~
  list,
  tuple,
  dict,  ///< keys and values by turns
  // Statements.
  text,          ///< value
  output,        ///< inputs[0]
  branch,        ///< if: body where inputs[0], else otherwise
  loop,          ///< for inputs[0] in inputs[1] if inputs[2], which may be null
  set,           ///< inputs[0] = inputs[1]
  set_block,     ///< inputs[0] = body through the filters of inputs[1], which may be null
  macro,         ///< symbol, parameters
  call_block,    ///< inputs[0], a call, with a macro of parameters and body as `caller`
  filter_block,  ///< body through inputs[0]
  scope,         ///< with, whose pairs of target and value are inputs; generation
  leave_loop,    ///< break
  next_turn,     ///< continue
};

/// A named parameter; with its default, or null.
struct Node;
using Named = std::pair<std::string, Node*>;

struct Node {
  Type type;
  std::size_t offset;  ///< in the source, for messages
  std::string text{};
  int symbol = 0;  ///< of a name: its index in Tree::names
  Value value{};
  std::vector<Node*> inputs{};
  std::vector<Op> ops{};
  std::vector<Named> named{};     ///< of a call; `*` and `**` as names for what is unpacked
  std::vector<int> parameters{};  ///< of a macro: symbols; `named` has the names and defaults
  std::vector<Node*> body{}, otherwise{};
  bool recursive = false;                                                  ///< of a loop
  bool takes_caller = false, takes_varargs = false, takes_kwargs = false;  ///< of a macro
  Native native = nullptr;  ///< the filter or the test, where one has the name
  Native string_method = nullptr, list_method = nullptr, dict_method = nullptr;
};

struct Tree {
  std::string source;  ///< with '\n' for every line end
  std::deque<Node> nodes{};
  std::vector<Node*> body{};
  std::vector<std::string> names{};
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

}  // namespace nanovllm::jinja
