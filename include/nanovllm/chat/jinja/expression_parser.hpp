#pragma once
/// Reads the expressions of a template, with Jinja2's grammar.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/ast.hpp"
#include "nanovllm/chat/jinja/lexer.hpp"
#include "nanovllm/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

class ExpressionParser {
 protected:
  using TokenType = Token::Type;

  explicit ExpressionParser(Tree& tree) : tree_(tree), tokens_(Lexer(tree.source).tokens()) {}

  /// Counts how deeply what is read is nested.
  struct Level {
    explicit Level(ExpressionParser& parser_in) : parser(parser_in) {
      if (++parser.depth_ > 200) parser.refuse("fewer than 200 levels of nesting");
    }
    ~Level() { --parser.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ExpressionParser& parser;
  };

  [[nodiscard]] const Token& now() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const {
    return tokens_[at_ + (now().type == TokenType::end ? 0 : 1)];
  }
  std::string take() { return std::move(tokens_[at_++].text); }
  bool skip_op(std::string_view op) { return now().is_op(op) && ++at_; }
  bool skip_name(std::string_view name) { return now().is_name(name) && ++at_; }

  [[noreturn]] void refuse(std::string_view expected) const {
    const auto got = [&]() -> std::string {
      switch (now().type) {
        case TokenType::end: return "the end of the template";
        case TokenType::text: return "text";
        case TokenType::block_begin: return "'{%'";
        case TokenType::block_end: return "'%}'";
        case TokenType::output_begin: return "'{{'";
        case TokenType::output_end: return "'}}'";
        case TokenType::string: return "a string";
        default: return concat("'", now().text, "'");
      }
    }();
    throw ConfigError(
        at_place(tree_.source, now().offset, concat("expected ", expected, ", got ", got)));
  }
  void expect(TokenType type, std::string_view expected) {
    if (now().type != type) refuse(expected);
    ++at_;
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) refuse(concat("'", op, "'"));
  }
  void end_block() { expect(TokenType::block_end, "'%}'"); }
  std::string expect_name() {
    if (now().type != TokenType::name) refuse("a name");
    return take();
  }

  Node* make(Type type, std::size_t offset) {
    return &tree_.nodes.emplace_back(Node{.type = type, .offset = offset});
  }
  Node* make(Type type, std::size_t offset, std::vector<Node*> inputs) {
    Node* node = make(type, offset);
    node->inputs = std::move(inputs);
    return node;
  }
  Node* make_constant(Value value, std::size_t offset) {
    Node* node = make(Type::constant, offset);
    node->value = std::move(value);
    return node;
  }
  int symbol(std::string_view name) {
    for (std::size_t i = 0; i < tree_.names.size(); ++i)
      if (tree_.names[i] == name) return static_cast<int>(i);
    tree_.names.emplace_back(name);
    return static_cast<int>(tree_.names.size()) - 1;
  }
  Node* make_name(std::string name, std::size_t offset) {
    Node* node = make(Type::name, offset);
    node->symbol = symbol(name);
    node->text = std::move(name);
    return node;
  }

  Node* tuple(bool conditional = true) {
    const std::size_t offset = now().offset;
    Node* first = expression(conditional);
    if (!now().is_op(",")) return first;
    std::vector<Node*> items = {first};
    while (skip_op(",")) {
      const TokenType next = now().type;
      if (next == TokenType::block_end || next == TokenType::output_end || now().is_op(")")) break;
      items.push_back(expression(conditional));
    }
    return make(Type::tuple, offset, std::move(items));
  }

  Node* expression(bool conditional = true) {
    const Level level(*this);
    Node* node = logical_or();
    while (conditional && now().is_name("if")) {
      const std::size_t offset = now().offset;
      ++at_;
      Node* condition = logical_or();
      node = make(Type::conditional, offset,
                  {node, condition, skip_name("else") ? expression() : nullptr});
    }
    return node;
  }

  Node* logical_or() {
    Node* node = logical_and();
    while (now().is_name("or")) {
      const std::size_t offset = tokens_[at_++].offset;
      node = make(Type::logical_or, offset, {node, logical_and()});
    }
    return node;
  }

  Node* logical_and() {
    Node* node = logical_not();
    while (now().is_name("and")) {
      const std::size_t offset = tokens_[at_++].offset;
      node = make(Type::logical_and, offset, {node, logical_not()});
    }
    return node;
  }

  Node* logical_not() {
    const std::size_t offset = now().offset;
    if (!skip_name("not")) return comparison();
    const Level level(*this);
    return make(Type::logical_not, offset, {logical_not()});
  }

  Node* comparison() {
    const std::size_t offset = now().offset;
    Node* first = binary(0);
    Node* node = nullptr;
    while (true) {
      constexpr std::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
      std::optional<Op> op;
      for (int i = 0; i < 6; ++i)
        if (now().is_op(kOps[i])) op = static_cast<Op>(static_cast<int>(Op::equal) + i);
      if (now().is_name("in")) op = Op::in;
      if (now().is_name("not") && ahead().is_name("in")) {
        ++at_;
        op = Op::not_in;
      }
      if (!op) return node ? node : first;
      ++at_;
      if (node == nullptr) node = make(Type::comparison, offset, {first});
      node->ops.push_back(*op);
      node->inputs.push_back(binary(0));
    }
  }

  /// + and -, then ~, then * / // %, then **.
  Node* binary(int level) {
    if (level == 4) return unary(true);
    struct Operator {
      std::string_view text;
      int level;
      Op op;
    };
    constexpr Operator kOps[] = {{"+", 0, Op::add},           {"-", 0, Op::subtract},
                                 {"*", 2, Op::multiply},      {"/", 2, Op::divide},
                                 {"//", 2, Op::floor_divide}, {"%", 2, Op::modulo},
                                 {"**", 3, Op::power}};
    Node* node = binary(level + 1);
    const std::size_t offset = now().offset;
    if (level == 1 && now().is_op("~")) {
      node = make(Type::concat, offset, {node});
      while (skip_op("~")) node->inputs.push_back(binary(2));
    }
    while (now().type == TokenType::op) {
      const Operator* found = nullptr;
      for (const Operator& entry : kOps)
        if (entry.level == level && now().is_op(entry.text)) found = &entry;
      if (found == nullptr) break;
      const std::size_t place = tokens_[at_++].offset;
      node = make(Type::binary, place, {node, binary(level + 1)});
      node->ops = {found->op};
    }
    return node;
  }

  Node* unary(bool with_filters) {
    const Level level(*this);
    const std::size_t offset = now().offset;
    Node* node = skip_op("-")   ? make(Type::negate, offset, {unary(false)})
                 : skip_op("+") ? make(Type::plus, offset, {unary(false)})
                                : primary();
    node = postfix(node);
    return with_filters ? filters(node, false) : node;
  }

  Node* primary() {
    const std::size_t offset = now().offset;
    switch (now().type) {
      case TokenType::name: return name_or_constant(offset);
      case TokenType::integer:
      case TokenType::real: return number(offset);
      case TokenType::string: {
        std::string text = take();
        while (now().type == TokenType::string) text += take();
        return make_constant(Value::of(std::move(text)), offset);
      }
      default: break;
    }
    if (skip_op("(")) {
      if (skip_op(")")) return make(Type::tuple, offset);
      Node* node = tuple();
      expect_op(")");
      return node;
    }
    if (skip_op("[")) return make(Type::list, offset, items("]"));
    if (skip_op("{")) return make(Type::dict, offset, items("}"));
    refuse("an expression");
  }

  std::vector<Node*> items(std::string_view end) {
    std::vector<Node*> out;
    while (!skip_op(end)) {
      if (!out.empty()) {
        expect_op(",");
        if (skip_op(end)) break;
      }
      out.push_back(expression());
      if (end == "]") continue;
      expect_op(":");
      out.push_back(expression());
    }
    return out;
  }

  Node* name_or_constant(std::size_t offset) {
    const std::string name = take();
    if (name == "true" || name == "True") return make_constant(Value::of(true), offset);
    if (name == "false" || name == "False") return make_constant(Value::of(false), offset);
    if (name == "none" || name == "None") return make_constant(Value::none(), offset);
    special_ |= name == "caller" ? 1u : name == "varargs" ? 2u : name == "kwargs" ? 4u : 0u;
    return make_name(name, offset);
  }

  Node* number(std::size_t offset) {
    const Token& token = now();
    const char *begin = token.text.data(), *end = begin + token.text.size();
    std::int64_t integer = 0;
    double real = 0.0;
    std::from_chars_result result{};
    if (token.type == TokenType::integer) {
      const char mark = token.text.size() > 1 ? static_cast<char>(token.text[1] | 0x20) : '0';
      const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      result = std::from_chars(begin + (base == 10 ? 0 : 2), end, integer, base);
    } else {
      result = std::from_chars(begin, end, real);
    }
    if (result.ec != std::errc() || result.ptr != end) refuse("a number of at most 64 bits");
    ++at_;
    return make_constant(token.type == TokenType::integer ? Value::of(integer) : Value::of(real),
                         offset);
  }

  Node* postfix(Node* node) {
    while (true) {
      const std::size_t offset = now().offset;
      if (skip_op(".")) {
        if (now().type == TokenType::integer) {
          node = make(Type::item, offset, {node, number(now().offset)});
          continue;
        }
        node = make(Type::attribute, offset, {node});
        node->text = expect_name();
        node->string_method = find_native(Natives::string_method, node->text);
        node->list_method = find_native(Natives::list_method, node->text);
        node->dict_method = find_native(Natives::dict_method, node->text);
      } else if (skip_op("[")) {
        node = subscript(node, offset);
      } else if (now().is_op("(")) {
        node = make(Type::call, offset, {node});
        arguments(node);
      } else {
        return node;
      }
    }
  }

  Node* subscript(Node* node, std::size_t offset) {
    Node* parts[3] = {};
    int num_colons = 0;
    while (!now().is_op("]")) {
      if (skip_op(":")) {
        if (++num_colons > 2) refuse("']'");
      } else if (parts[num_colons] != nullptr) {
        refuse("']'");
      } else {
        parts[num_colons] = num_colons > 0 ? expression() : tuple();
      }
    }
    if (num_colons == 0 && parts[0] == nullptr) refuse("an expression");
    expect_op("]");
    if (num_colons == 0) return make(Type::item, offset, {node, parts[0]});
    return make(Type::slice, offset, {node, parts[0], parts[1], parts[2]});
  }

  void arguments(Node* node) {
    expect_op("(");
    while (!skip_op(")")) {
      if (skip_op("**")) {
        node->named.emplace_back("**", expression());
      } else if (skip_op("*")) {
        node->named.emplace_back("*", expression());
      } else if (now().type == TokenType::name && ahead().is_op("=")) {
        std::string name = take();
        ++at_;
        node->named.emplace_back(std::move(name), expression());
      } else {
        if (!node->named.empty()) refuse("a named argument");
        node->inputs.push_back(expression());
      }
      if (!now().is_op(")")) expect_op(",");
    }
  }

  /// Filters, tests and calls behind `node`; with `inline_first` the first has no bar.
  Node* filters(Node* node, bool inline_first) {
    while (true) {
      const std::size_t offset = now().offset;
      if (inline_first || now().is_op("|")) {
        if (!inline_first) ++at_;
        inline_first = false;
        node = make(Type::filter, offset, {node});
        node->text = dotted_name();
        node->native = find_native(Natives::filter, node->text);
        if (now().is_op("(")) arguments(node);
      } else if (node != nullptr && skip_name("is")) {
        node = test(node, offset);
      } else if (node != nullptr && now().is_op("(")) {
        node = make(Type::call, offset, {node});
        arguments(node);
      } else {
        return node;
      }
    }
  }

  std::string dotted_name() {
    std::string name = expect_name();
    while (skip_op(".")) (name += '.') += expect_name();
    return name;
  }

  Node* test(Node* node, std::size_t offset) {
    const bool negated = skip_name("not");
    node = make(Type::test, offset, {node});
    node->text = dotted_name();
    node->native = find_native(Natives::test, node->text);
    const Token& next = now();
    const bool word = next.type == TokenType::name && !next.is_name("else") &&
                      !next.is_name("or") && !next.is_name("and");
    if (next.is_op("(")) {
      arguments(node);
    } else if (word || next.type == TokenType::string || next.type == TokenType::integer ||
               next.type == TokenType::real || next.is_op("[") || next.is_op("{")) {
      if (next.is_name("is")) refuse("one test; further ones need 'and'");
      node->inputs.push_back(postfix(primary()));
    }
    return negated ? make(Type::logical_not, offset, {node}) : node;
  }

  Tree& tree_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  unsigned special_ = 0;  // variables of a macro that were read: caller 1, varargs 2, kwargs 4
};

}  // namespace nanovllm::jinja
