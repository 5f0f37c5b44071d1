#pragma once
/// Reads a template into a tree, with Jinja2's grammar.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/ast.hpp"
#include "nanovllm/chat/jinja/expression_parser.hpp"
#include "nanovllm/chat/jinja/lexer.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

class Parser : private ExpressionParser {
 public:
  /// Throws ConfigError that names the place.
  [[nodiscard]] static Tree parse(std::string_view source) {
    Tree tree{.source = normalise_newlines(source)};
    Parser parser(tree);
    tree.body = parser.body({});
    return tree;
  }

 private:
  using Words = std::initializer_list<std::string_view>;
  using ExpressionParser::ExpressionParser;

  [[nodiscard]] bool at_word(Words words) const {
    for (const std::string_view word : words)
      if (ahead().is_name(word)) return true;
    return false;
  }

  /// Up to a block that begins with one of `ends`, of which its word comes next; or to the end.
  std::vector<Node*> body(Words ends) {
    const Level level(*this);
    std::vector<Node*> out;
    while (true) {
      const std::size_t offset = now().offset;
      if (now().type == TokenType::text) {
        Node* node = out.emplace_back(make(Type::text, offset));
        node->text = take();
      } else if (now().type == TokenType::output_begin) {
        ++at_;
        out.push_back(make(Type::output, offset, {tuple()}));
        expect(TokenType::output_end, "'}}'");
      } else if (now().type == TokenType::block_begin) {
        if (at_word(ends)) {
          ++at_;
          return out;
        }
        ++at_;
        if (Node* node = statement(offset)) out.push_back(node);
        end_block();
      } else {
        if (ends.size() > 0) refuse(concat("{% ", *(ends.end() - 1), " %}"));
        return out;
      }
    }
  }
  /// The body of a block whose head is read, and the word that ends it.
  std::vector<Node*> body_until(std::string_view word) {
    end_block();
    std::vector<Node*> out = body({word});
    ++at_;
    return out;
  }

  Node* statement(std::size_t offset) {
    if (skip_name("if")) return branch(offset);
    if (skip_name("for")) return loop(offset);
    if (skip_name("set")) return set(offset);
    if (skip_name("macro")) return macro(offset);
    if (skip_name("call")) return call_block(offset);
    if (skip_name("filter")) {
      Node* node = make(Type::filter_block, offset, {filters(nullptr, true)});
      node->body = body_until("endfilter");
      return node;
    }
    if (skip_name("with")) return with(offset);
    if (skip_name("generation")) {
      Node* node = make(Type::scope, offset);
      node->body = body_until("endgeneration");
      return node;
    }
    if (now().is_name("break") || now().is_name("continue")) {
      if (loops_ == 0) refuse("a loop around this");
      return make(take() == "break" ? Type::leave_loop : Type::next_turn, offset);
    }
    refuse("if, for, set, macro, call, filter, with, generation, break or continue");
  }

  Node* branch(std::size_t offset) {
    Node* node = make(Type::branch, offset, {tuple(false)});
    end_block();
    node->body = body({"elif", "else", "endif"});
    const std::size_t next = now().offset;
    if (skip_name("elif")) {
      const Level level(*this);
      node->otherwise = {branch(next)};
    } else if (skip_name("else")) {
      node->otherwise = body_until("endif");
    } else {
      ++at_;
    }
    return node;
  }

  Node* loop(std::size_t offset) {
    Node* node = make(Type::loop, offset, {target()});
    if (!skip_name("in")) refuse("'in'");
    node->inputs.push_back(tuple(false));
    node->inputs.push_back(skip_name("if") ? expression() : nullptr);
    node->recursive = skip_name("recursive");
    end_block();
    ++loops_;
    node->body = body({"else", "endfor"});
    --loops_;
    if (skip_name("else"))
      node->otherwise = body_until("endfor");
    else
      ++at_;
    return node;
  }

  /// What a set or a loop assigns to: a name, a member of a namespace, or several.
  Node* target() {
    const Level level(*this);
    const std::size_t offset = now().offset;
    std::vector<Node*> targets;
    bool several = false;
    while (true) {
      const std::size_t begin = now().offset;
      if (skip_op("(")) {
        targets.push_back(target());
        expect_op(")");
      } else {
        Node* node = targets.emplace_back(make_name(expect_name(), begin));
        if (skip_op(".")) {
          targets.back() = make(Type::attribute, begin, {node});
          targets.back()->text = expect_name();
        }
      }
      if (!skip_op(",")) break;
      several = true;
      if (now().is_name("in") || now().is_op("=") || now().is_op(")")) break;
    }
    return several ? make(Type::tuple, offset, std::move(targets)) : targets[0];
  }

  Node* set(std::size_t offset) {
    Node* left = target();
    if (skip_op("=")) return make(Type::set, offset, {left, tuple()});
    Node* node = make(Type::set_block, offset, {left, filters(nullptr, false)});
    node->body = body_until("endset");
    return node;
  }

  Node* with(std::size_t offset) {
    Node* node = make(Type::scope, offset);
    while (now().type == TokenType::name) {
      node->inputs.push_back(make_name(expect_name(), offset));
      expect_op("=");
      node->inputs.push_back(expression());
      if (!skip_op(",")) break;
    }
    node->body = body_until("endwith");
    return node;
  }

  void parameters(Node* node) {
    expect_op("(");
    while (!skip_op(")")) {
      const std::string name = expect_name();
      node->parameters.push_back(symbol(name));
      node->named.emplace_back(name, skip_op("=") ? expression() : nullptr);
      if (!now().is_op(")")) expect_op(",");
    }
  }

  /// The body of a macro, and which special variables it takes.
  void macro_body(Node* node, std::string_view end) {
    const unsigned outer = std::exchange(special_, 0);
    const int loops = std::exchange(loops_, 0);
    node->body = body_until(end);
    node->takes_caller = special_ & 1;
    node->takes_varargs = special_ & 2;
    node->takes_kwargs = special_ & 4;
    special_ |= outer;
    loops_ = loops;
  }

  Node* macro(std::size_t offset) {
    Node* node = make(Type::macro, offset);
    node->text = expect_name();
    node->symbol = symbol(node->text);
    parameters(node);
    macro_body(node, "endmacro");
    return node;
  }

  Node* call_block(std::size_t offset) {
    Node* node = make(Type::call_block, offset);
    if (now().is_op("(")) parameters(node);
    node->inputs = {expression()};
    if (node->inputs[0]->type != Type::call) refuse("a call ahead of this");
    node->text = "caller";
    macro_body(node, "endcall");
    return node;
  }

  int loops_ = 0;  // around what is read, within the macro
};

}  // namespace nanovllm::jinja
