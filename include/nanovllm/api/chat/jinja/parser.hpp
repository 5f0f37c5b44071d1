#pragma once
/// Reads a template into a tree, with Jinja2's grammar.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/jinja/ast.hpp"
#include "nanovllm/api/chat/jinja/expression_parser.hpp"
#include "nanovllm/api/chat/jinja/reader.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

class Parser : private ExpressionParser {
 public:
  /// Throws ConfigError that names the place.
  [[nodiscard]] static Tree parse(std::string_view source) {
    Tree tree{.source = normalise_newlines(source)};
    tree.body = Parser(tree).body({});
    return tree;
  }

 private:
  using ExpressionParser::ExpressionParser;

  /// Up to a block that begins with one of `ends`, of which its word comes next; or to the end.
  std::vector<Node*> body(std::initializer_list<std::string_view> ends) {
    const Level level = deeper();
    std::vector<Node*> out;
    while (true) {
      std::string text;
      const std::size_t begin = position();
      const bool ended = !read_text(text);
      if (!text.empty())
        out.push_back(make(Type::output, begin, {constant(begin, Value::of(std::move(text)))}));
      if (ended) {
        if (ends.size() > 0) refuse(concat("{% ", *(ends.end() - 1), " %}"));
        return out;
      }
      const std::size_t offset = tag();
      if (in_output()) {
        out.push_back(make(Type::output, offset, {tuple()}));
      } else {
        for (const std::string_view word : ends)
          if (at(word)) return out;
        out.push_back(statement(offset));
      }
      close_tag();
    }
  }
  /// The body of a block whose head is read, and the word that ends it.
  std::vector<Node*> body_until(std::string_view word) {
    close_tag();
    std::vector<Node*> out = body({word});
    take();
    return out;
  }
  /// What may follow the body of a branch or loop: {% else %} with another; and the end.
  void read_otherwise(Node* node, std::string_view word) {
    if (skip("else"))
      node->otherwise = body_until(word);
    else
      take();
  }

  Node* statement(std::size_t offset) {
    if (skip("if")) return branch(offset);
    if (skip("for")) return loop(offset);
    if (skip("set")) return set(offset);
    if (skip("macro")) {
      Node* name = make_name(take_name(), offset);
      Node* node = make(Type::macro, offset);
      parameters(node);
      macro_body(node, "endmacro");
      return make(Type::set, offset, {name, node});
    }
    if (skip("call")) return call_block(offset);
    if (skip("filter")) {
      return make(Type::output, offset,
                  {block(filter(make(Type::block, offset), now().begin), "endfilter")});
    }
    if (skip("with")) return with(offset);
    if (skip("generation")) {
      Node* node = make(Type::scope, offset);
      node->body = body_until("endgeneration");
      return node;
    }
    if (at("break") || at("continue")) {
      if (loops_ == 0) refuse("a loop around this");
      return make(take().text == "break" ? Type::leave_loop : Type::next_turn, offset);
    }
    refuse("if, for, set, macro, call, filter, with, generation, break or continue");
  }

  /// What a block prints, through the filters that come next, of which `node` is the first one's
  /// input.
  Node* block(Node* node, std::string_view end) {
    while (at("|")) {
      const std::size_t offset = take().begin;
      node = filter(node, offset);
    }
    Node* block = node;
    while (block->type != Type::block) block = block->inputs[0];
    block->body = body_until(end);
    return node;
  }

  Node* branch(std::size_t offset) {
    Node* node = make(Type::branch, offset, {tuple(false)});
    close_tag();
    node->body = body({"elif", "else", "endif"});
    const std::size_t next = tag();
    if (skip("elif")) {
      const Level level = deeper();
      node->otherwise = {branch(next)};
    } else {
      read_otherwise(node, "endif");
    }
    return node;
  }

  Node* loop(std::size_t offset) {
    Node* node = make(Type::loop, offset, {target()});
    if (!skip("in")) refuse("'in'");
    node->inputs.push_back(tuple(false));
    node->inputs.push_back(skip("if") ? expression() : nullptr);
    node->recursive = skip("recursive");
    close_tag();
    ++loops_;
    node->body = body({"else", "endfor"});
    --loops_;
    read_otherwise(node, "endfor");
    return node;
  }

  /// What a set or a loop assigns to: a name, a member of a namespace, or several.
  Node* target() {
    const Level level = deeper();
    const std::size_t offset = now().begin;
    std::vector<Node*> targets;
    bool several = false;
    while (true) {
      const std::size_t begin = now().begin;
      if (skip("(")) {
        targets.push_back(target());
        expect(")");
      } else {
        Node* node = targets.emplace_back(make_name(take_name(), begin));
        if (skip("."))
          targets.back() = make_valued(Type::attribute, begin, Value::of(take_name()), {node});
      }
      if (!skip(",")) break;
      several = true;
      if (at("in") || at("=") || at(")")) break;
    }
    return several ? make(Type::tuple, offset, std::move(targets)) : targets[0];
  }

  Node* set(std::size_t offset) {
    Node* left = target();
    if (skip("=")) return make(Type::set, offset, {left, tuple()});
    return make(Type::set, offset, {left, block(make(Type::block, offset), "endset")});
  }

  Node* with(std::size_t offset) {
    Node* targets = make(Type::tuple, offset);
    Node* values = make(Type::tuple, offset);
    while (now().type == Token::Type::name) {
      targets->inputs.push_back(make_name(take_name(), offset));
      expect("=");
      values->inputs.push_back(expression());
      if (!skip(",")) break;
    }
    Node* node = make(Type::scope, offset);
    node->body = body_until("endwith");
    node->body.insert(node->body.begin(), make(Type::set, offset, {targets, values}));
    return node;
  }

  void parameters(Node* node) {
    expect("(");
    while (!skip(")")) {
      const std::size_t begin = now().begin;
      Node* name = node->inputs.emplace_back(make_name(take_name(), begin));
      name->inputs = {skip("=") ? expression() : nullptr};
      if (!at(")")) expect(",");
    }
  }

  void macro_body(Node* node, std::string_view end) {
    const unsigned outer = std::exchange(specials_, 0);
    const int loops = std::exchange(loops_, 0);
    node->body = body_until(end);
    node->specials = specials_;
    specials_ |= outer;
    loops_ = loops;
  }

  Node* call_block(std::size_t offset) {
    Node* caller = make(Type::macro, offset);
    if (at("(")) parameters(caller);
    Node* call = expression();
    if (call->type != Type::call) refuse("a call ahead of this");
    call->named.emplace_back("caller", caller);
    macro_body(caller, "endcall");
    return make(Type::output, offset, {call});
  }

  int loops_ = 0;  // around what is read, within the macro
};

}  // namespace nanovllm::jinja
