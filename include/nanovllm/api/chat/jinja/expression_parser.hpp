#pragma once
/// Reads the expressions of a template, with Jinja2's grammar.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/jinja/ast.hpp"
#include "nanovllm/api/chat/jinja/reader.hpp"
#include "nanovllm/api/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

/// Counts a level of nesting for as long as it lives.
class Level {
 public:
  explicit Level(int& depth) : depth_(depth) { ++depth_; }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& depth_;
};

class ExpressionParser : protected Reader {
 protected:
  explicit ExpressionParser(Tree& tree) : Reader(tree.source), tree_(tree) {
    for (const char* name : {"caller", "varargs", "kwargs", "loop"}) (void)symbol(name);
  }

  [[nodiscard]] Level deeper() {
    if (depth_ >= 200) refuse("fewer than 200 levels of nesting");
    return Level(depth_);
  }

  Node* make(Type type, std::size_t offset, std::vector<Node*> inputs = {}) {
    return &tree_.nodes.emplace_back(
        Node{.type = type, .offset = offset, .inputs = std::move(inputs)});
  }
  Node* make_valued(Type type, std::size_t offset, Value value, std::vector<Node*> inputs = {}) {
    Node* node = make(type, offset, std::move(inputs));
    node->value = std::move(value);
    return node;
  }

  Node* constant(std::size_t offset, Value value) {
    return make_valued(Type::constant, offset, std::move(value));
  }

  std::size_t symbol(std::string_view name) {
    std::size_t index = 0;
    for (const Value& known : tree_.names) {
      if (known.text() == name) return index;
      ++index;
    }
    const Value& value = tree_.names.emplace_back(Value::of(name));
    const Native global = find_native(Natives::global, name);
    tree_.variables.push_back(global ? Value::of(Function{.native = global})
                                     : Value::undefined(value));
    return index;
  }
  Node* make_name(std::string_view name, std::size_t offset) {
    const std::size_t index = symbol(name);
    tree_.uses_loop = tree_.uses_loop || index == kLoop;
    Node* node = make_valued(Type::name, offset, tree_.names[index]);
    node->symbol = index;
    return node;
  }

  Node* tuple(bool conditional = true) {
    const std::size_t offset = now().begin;
    Node* first = expression(conditional);
    if (!at(",")) return first;
    std::vector<Node*> items = {first};
    while (skip(",") && !at("%}") && !at("}}") && !at(")"))
      items.push_back(expression(conditional));
    return make(Type::tuple, offset, std::move(items));
  }

  Node* expression(bool conditional = true) {
    const Level level = deeper();
    Node* node = operation(kOr);
    while (conditional && at("if")) {
      const std::size_t offset = take().begin;
      Node* condition = operation(kOr);
      node = make(Type::conditional, offset,
                  {node, condition, skip("else") ? expression() : constant(offset, Value())});
    }
    return node;
  }

  /// The filter whose name comes next.
  Node* filter(Node* node, std::size_t offset) {
    node = make_valued(Type::filter, offset, dotted_name(), {node});
    node->native = find_native(Natives::filter, node->value.text());
    if (at("(")) arguments(node);
    return node;
  }

  Tree& tree_;
  unsigned specials_ = 0;  // of the macro that is read: see Node::specials

 private:
  enum Precedence : int { kOr, kAnd, kNot, kComparison, kSum, kConcat, kProduct, kPower };
  struct Operator {
    std::string_view text;
    Precedence precedence;
    Type type;
    Op op = Op::none;
  };

  /// The operator that is next, or null.
  [[nodiscard]] const Operator* next_operator() const {
    static constexpr Operator kOperators[] = {
        {"or", kOr, Type::logical_or},
        {"and", kAnd, Type::logical_and},
        {"==", kComparison, Type::comparison, Op::equal},
        {"!=", kComparison, Type::comparison, Op::not_equal},
        {"<", kComparison, Type::comparison, Op::less},
        {"<=", kComparison, Type::comparison, Op::less_equal},
        {">", kComparison, Type::comparison, Op::greater},
        {">=", kComparison, Type::comparison, Op::greater_equal},
        {"in", kComparison, Type::comparison, Op::in},
        {"not", kComparison, Type::comparison, Op::not_in},
        {"+", kSum, Type::binary, Op::add},
        {"-", kSum, Type::binary, Op::subtract},
        {"~", kConcat, Type::concat},
        {"*", kProduct, Type::binary, Op::multiply},
        {"/", kProduct, Type::binary, Op::divide},
        {"//", kProduct, Type::binary, Op::floor_divide},
        {"%", kProduct, Type::binary, Op::modulo},
        {"**", kPower, Type::binary, Op::power},
    };
    for (const Operator& entry : kOperators) {
      if (!at(entry.text)) continue;
      return entry.op != Op::not_in || ahead().text == "in" ? &entry : nullptr;
    }
    return nullptr;
  }

  /// Operands between operators that bind as strongly as `least` or more.
  Node* operation(int least) {
    const std::size_t offset = now().begin;
    Node* node = nullptr;
    if (least <= kNot && skip("not")) {
      const Level level = deeper();
      node = make(Type::logical_not, offset, {operation(kNot)});
    } else {
      node = unary(true);
    }
    const Node* chain = nullptr;  // a comparison, or texts with ~, that may go on
    while (const Operator* found = next_operator()) {
      if (found->precedence < least) break;
      const std::size_t place = take().begin;
      if (found->op == Op::not_in) take();
      Node* right = operation(found->precedence + 1);
      if (node == chain && node->type == found->type) {
        node->inputs.push_back(right);
      } else {
        const bool compares = found->type == Type::comparison;
        node = make(found->type, compares ? offset : place, {node, right});
        if (compares || found->type == Type::concat) chain = node;
      }
      node->ops.push_back(found->op);
    }
    return node;
  }

  Node* unary(bool with_filters) {
    const Level level = deeper();
    const std::size_t offset = now().begin;
    const bool is_signed = at("-") || at("+");
    Node* node = nullptr;
    if (is_signed) {  // as 0 - x or 0 + x
      const Op op = take().text == "-" ? Op::subtract : Op::add;
      Node* zero = constant(offset, Value::of(0));
      node = make(Type::binary, offset, {zero, unary(false)});
      node->ops = {op};
    } else {
      node = primary();
    }
    return postfix(node, with_filters);
  }

  Node* primary() {
    const std::size_t offset = now().begin;
    switch (now().type) {
      case Token::Type::name: return name_or_constant();
      case Token::Type::number: return number();
      case Token::Type::string: {
        std::string text;
        while (now().type == Token::Type::string) text += take_string();
        return constant(offset, Value::of(std::move(text)));
      }
      default: break;
    }
    if (skip("(")) {
      if (skip(")")) return make(Type::tuple, offset);
      Node* node = tuple();
      expect(")");
      return node;
    }
    if (skip("[")) return make(Type::list, offset, items("]"));
    if (skip("{")) return make(Type::dict, offset, items("}"));
    refuse("an expression");
  }

  std::vector<Node*> items(std::string_view end) {
    std::vector<Node*> out;
    while (!skip(end)) {
      if (!out.empty()) {
        expect(",");
        if (skip(end)) break;
      }
      out.push_back(expression());
      if (end == "]") continue;
      expect(":");
      out.push_back(expression());
    }
    return out;
  }

  Node* name_or_constant() {
    const Token name = take();
    const std::string_view text = name.text;
    if (text == "true" || text == "True") return constant(name.begin, Value::of(true));
    if (text == "false" || text == "False") return constant(name.begin, Value::of(false));
    if (text == "none" || text == "None") return constant(name.begin, Value::none());
    Node* node = make_name(text, name.begin);
    if (node->symbol < kLoop) specials_ |= 1u << node->symbol;
    return node;
  }

  Node* number() {
    std::string text(now().text);
    std::erase(text, '_');
    const char mark = text.size() > 1 ? static_cast<char>(text[1] | 0x20) : '0';
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    const char *const begin = text.data(), *const end = begin + text.size();
    std::int64_t integer = 0;
    double real = 0.0;
    auto result = std::from_chars(begin + (base == 10 ? 0 : 2), end, integer, base);
    const bool is_real = result.ptr != end;
    if (is_real) result = std::from_chars(begin, end, real);
    if (result.ec != std::errc() || result.ptr != end) refuse("a number of at most 64 bits");
    return constant(take().begin, is_real ? Value::of(real) : Value::of(integer));
  }

  /// Members, calls, filters and tests after `node`. Filters and tests have no members.
  Node* postfix(Node* node, bool with_filters) {
    bool filtered = false;
    while (true) {
      const std::size_t offset = now().begin;
      if (!filtered && skip(".")) {
        node = member(node, offset);
      } else if (!filtered && skip("[")) {
        node = subscript(node, offset);
      } else if (at("(")) {
        node = make(Type::call, offset, {node});
        arguments(node);
      } else if (with_filters && (at("|") || at("is"))) {
        filtered = true;
        node = take().text == "|" ? filter(node, offset) : test(node, offset);
      } else {
        return node;
      }
    }
  }

  Node* member(Node* node, std::size_t offset) {
    if (now().text.find_first_not_of("0123456789") == std::string_view::npos)
      return make(Type::item, offset, {node, number()});
    node = make_valued(Type::attribute, offset, Value::of(take_name()), {node});
    node->methods = find_methods(node->value.text());
    return node;
  }

  void arguments(Node* node) {
    take();
    while (!skip(")")) {
      const bool named = now().type == Token::Type::name && ahead().text == "=";
      if (named || at("*") || at("**")) {
        std::string name(take().text);
        if (named) take();
        node->named.emplace_back(std::move(name), expression());
      } else {
        if (!node->named.empty()) refuse("a named argument");
        node->inputs.push_back(expression());
      }
      if (!at(")")) expect(",");
    }
  }

  Node* subscript(Node* node, std::size_t offset) {
    Node* parts[3] = {};
    int num_colons = 0;
    while (!at("]")) {
      if (skip(":")) {
        if (++num_colons > 2) refuse("']'");
      } else if (parts[num_colons] != nullptr) {
        refuse("']'");
      } else {
        parts[num_colons] = num_colons > 0 ? expression() : tuple();
      }
    }
    if (num_colons == 0 && parts[0] == nullptr) refuse("an expression");
    take();
    if (num_colons == 0) return make(Type::item, offset, {node, parts[0]});
    for (Node*& part : parts)
      if (part == nullptr) part = constant(offset, Value::none());
    return make(Type::slice, offset, {node, parts[0], parts[1], parts[2]});
  }

  Value dotted_name() {
    std::string name = take_name();
    while (skip(".")) (name += '.') += take_name();
    return Value::of(std::move(name));
  }

  Node* test(Node* node, std::size_t offset) {
    const bool negated = skip("not");
    node = make_valued(Type::test, offset, dotted_name(), {node});
    node->native = find_native(Natives::test, node->value.text());
    const bool operand = now().type < Token::Type::op || at("[") || at("{");
    if (at("(")) {
      arguments(node);
    } else if (operand && !at("else") && !at("or") && !at("and")) {
      if (at("is")) refuse("one test; further ones need 'and'");
      node->inputs.push_back(postfix(primary(), false));
    }
    return negated ? make(Type::logical_not, offset, {node}) : node;
  }

  int depth_ = 0;
};

}  // namespace nanovllm::jinja
