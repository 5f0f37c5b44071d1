#pragma once
/// Runs the tree of a template.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/jinja/ast.hpp"
#include "nanovllm/api/chat/jinja/call.hpp"
#include "nanovllm/api/chat/jinja/expression_parser.hpp"
#include "nanovllm/api/chat/jinja/natives.hpp"
#include "nanovllm/api/chat/jinja/operators.hpp"
#include "nanovllm/api/chat/jinja/reader.hpp"
#include "nanovllm/api/chat/jinja/text.hpp"
#include "nanovllm/api/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

/// Variables of a macro, or of a turn of a loop.
struct Scope {
  Scope* parent = nullptr;  ///< null for the template's own variables
  std::vector<std::pair<std::size_t, Value>> variables{};
  bool kept = false;  ///< a macro refers to it
};

class Interpreter : private Environment {
 public:
  Interpreter(const Tree& tree, const Dict& variables) : tree_(tree), top_(tree.variables) {
    for (const auto& [name, value] : variables) {
      for (std::size_t i = 0; i < top_.size(); ++i)
        if (tree.names[i].text() == name.text()) top_[i] = value;
    }
  }

  /// Throws RequestError with the place where the template failed or refused.
  [[nodiscard]] std::string render() {
    try {
      run(tree_.body);
    } catch (const Refusal& refusal) {
      throw RequestError(concat("the chat template refuses the conversation: ", refusal.what()));
    } catch (const RequestError& error) {
      throw RequestError(at_place(tree_.source, at_, error.what()));
    }
    return std::move(out_);
  }

 private:
  enum class Flow : std::uint8_t { next, leave_loop, next_turn };

  [[nodiscard]] Level deeper() {
    require(depth_ < 500, "this nests too deeply, or calls itself without end");
    return Level(depth_);
  }

  // Variables.

  [[nodiscard]] const Value& variable(std::size_t symbol) const {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent)
      for (const auto& [name, value] : scope->variables)
        if (name == symbol) return value;
    return top_[symbol];
  }

  void set(std::size_t symbol, Value value) {
    if (scope_ == nullptr) {
      top_[symbol] = std::move(value);
      return;
    }
    for (auto& [name, place] : scope_->variables) {
      if (name != symbol) continue;
      place = std::move(value);
      return;
    }
    scope_->variables.emplace_back(symbol, std::move(value));
  }

  void assign(const Node& target, Value value) {
    if (target.type == Type::name) return set(target.symbol, std::move(value));
    at_ = target.offset;
    if (target.type == Type::attribute) {
      const Value& space = variable(target.inputs[0]->symbol);
      require(space.kind() == Kind::space,
              "a set with a dot needs a namespace(), got a value of type '", space.type_name(),
              "'");
      return set_member(space.dict(), target.value, std::move(value), *this);
    }
    const List parts = elements(value, *this);
    require(parts.size() == target.inputs.size(), "expected ", target.inputs.size(),
            " values to assign, got ", parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) assign(*target.inputs[i], parts[i]);
  }

  /// Runs `action` in a scope of its own, which is used again unless a macro refers to it.
  template <class Action>
  void within(Scope* parent, const Action& action) {
    if (free_.empty()) free_.push_back(&scopes_.emplace_back());
    Scope* const scope = free_.back();
    free_.pop_back();
    scope->parent = parent;
    Scope* const outer = std::exchange(scope_, scope);
    action();
    scope_ = outer;
    if (scope->kept) return;
    scope->variables.clear();
    free_.push_back(scope);
  }

  /// What `action` prints.
  template <class Action>
  [[nodiscard]] Value captured(const Action& action) {
    std::string outer = std::exchange(out_, {});
    action();
    return Value::of(std::exchange(out_, std::move(outer)));
  }
  // Statements.

  Flow run(const std::vector<Node*>& nodes) {
    const Level level = deeper();
    for (const Node* node : nodes) {
      const Flow flow = run(*node);
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  Flow run(const Node& node) {
    charge(1);
    at_ = node.offset;
    Value room;
    switch (node.type) {
      case Type::output: append_str(out_, look(*node.inputs[0], room), *this); break;
      case Type::branch:
        return run(look(*node.inputs[0], room).truth() ? node.body : node.otherwise);
      case Type::loop: run_loop(node, look(*node.inputs[1], room), scope_, 1); break;
      case Type::set: assign(*node.inputs[0], evaluate(*node.inputs[1])); break;
      case Type::scope: return run_within(scope_, node.body);
      case Type::leave_loop: return Flow::leave_loop;
      default: return Flow::next_turn;
    }
    return Flow::next;
  }

  Flow run_within(Scope* parent, const std::vector<Node*>& nodes) {
    Flow flow = Flow::next;
    within(parent, [&] { flow = run(nodes); });
    return flow;
  }

  void run_loop(const Node& node, const Value& over, Scope* outside, int depth) {
    const auto loop =
        std::make_shared<Loop>(Loop{.node = &node, .outside = outside, .depth = depth});
    List items = elements(over, *this);
    if (node.inputs[2] != nullptr) {
      std::erase_if(items, [&](const Value& item) {
        bool is = false;
        within(outside, [&] {
          assign(*node.inputs[0], item);
          is = evaluate(*node.inputs[2]).truth();
        });
        return !is;
      });
    }
    loop->items = std::move(items);
    const std::size_t size = loop->items.size();
    Flow flow = Flow::next;
    for (std::size_t i = 0; i < size && flow != Flow::leave_loop; ++i) {
      within(outside, [&] {
        loop->index = i;
        assign(*node.inputs[0], loop->items[i]);
        if (tree_.uses_loop) set(kLoop, Value::of(loop));
        flow = run(node.body);
      });
    }
    if (size == 0) (void)run_within(outside, node.otherwise);
  }

  // Expressions.

  /// The value of a node: a variable's or constant's own, else it is put into `room`.
  [[nodiscard]] const Value& look(const Node& node, Value& room) {
    if (node.type == Type::name || node.type == Type::constant) {
      charge(1);
      return node.type == Type::name ? variable(node.symbol) : node.value;
    }
    return room = evaluate(node);
  }

  [[nodiscard]] Value evaluate(const Node& node) {
    charge(1);
    const Level level = deeper();
    Value room, right;
    switch (node.type) {
      case Type::constant: return node.value;
      case Type::name: return variable(node.symbol);
      case Type::attribute: {
        const Value& object = look(*node.inputs[0], room);
        at_ = node.offset;
        return attribute(object, node.value, node.methods, *this);
      }
      case Type::call: return evaluate_call(node);
      case Type::macro: return make_macro(node);
      case Type::block: return captured([&] { (void)run_within(scope_, node.body); });
      case Type::filter:
      case Type::test: return apply(node);
      case Type::logical_not: return Value::of(!look(*node.inputs[0], room).truth());
      case Type::logical_and:
      case Type::logical_or: {
        Value left = evaluate(*node.inputs[0]);
        return left.truth() == (node.type == Type::logical_or) ? left : evaluate(*node.inputs[1]);
      }
      case Type::conditional:
        return evaluate(*node.inputs[look(*node.inputs[1], room).truth() ? 0 : 2]);
      case Type::comparison: return evaluate_comparison(node);
      case Type::item:
      case Type::binary: {
        const Value& a = look(*node.inputs[0], room);
        const Value& b = look(*node.inputs[1], right);
        at_ = node.offset;
        return node.type == Type::item ? item(a, b, *this) : binary(node.ops[0], a, b, *this);
      }
      default: return evaluate_inputs(node);
    }
  }

  /// Nodes of which all inputs are evaluated.
  [[nodiscard]] Value evaluate_inputs(const Node& node) {
    List inputs;
    inputs.reserve(node.inputs.size());
    for (const Node* input : node.inputs) inputs.push_back(evaluate(*input));
    at_ = node.offset;
    switch (node.type) {
      case Type::slice: return slice(inputs, *this);
      case Type::concat: return join_values(inputs, "", *this);
      case Type::list: return Value::of(std::move(inputs));
      case Type::tuple: return Value::of(std::move(inputs), Kind::tuple);
      default: break;
    }
    Dict items;
    for (std::size_t i = 0; i < inputs.size(); i += 2)
      set_item(items, inputs[i], inputs[i + 1], *this);
    return Value::of(std::move(items));
  }

  [[nodiscard]] Value evaluate_comparison(const Node& node) {
    Value left, right;
    const Value* a = &look(*node.inputs[0], left);
    for (std::size_t i = 1; i < node.inputs.size(); ++i) {
      const Value* b = &look(*node.inputs[i], right);
      at_ = node.offset;
      if (!holds(node.ops[i - 1], *a, *b, *this)) return Value::of(false);
      std::swap(left, right);
      a = b == &right ? &left : b;
    }
    return Value::of(true);
  }

  // Calls.

  /// Evaluates the arguments after the first input.
  void evaluate_arguments(const Node& node, Call& out) {
    for (std::size_t i = 1; i < node.inputs.size(); ++i)
      out.positional.push_back(evaluate(*node.inputs[i]));
    for (const auto& [name, input] : node.named) {
      Value value = evaluate(*input);
      if (name == "*") {
        for (Value& element : elements(value, *this)) out.positional.push_back(std::move(element));
      } else if (name == "**") {
        require(value.is_dict(), "'**' needs a dict, got ", value.type_name());
        for (const auto& [key, element] : value.dict())
          out.named.emplace_back(str(key, *this), element);
      } else {
        out.named.emplace_back(name, std::move(value));
      }
    }
    at_ = node.offset;
  }

  [[nodiscard]] Value evaluate_call(const Node& node) {
    const Node& callee = *node.inputs[0];
    Call call{.in = *this};
    Value room, function;
    if (callee.type == Type::attribute) {
      const Value& object = look(*callee.inputs[0], room);
      if (const Native method = callee.methods.of(object)) {  // without a function bound to it
        call.self = object;
        evaluate_arguments(node, call);
        return run_native(method, call);
      }
      at_ = callee.offset;
      function = attribute(object, callee.value, callee.methods, *this);
    } else {
      function = evaluate(callee);
    }
    evaluate_arguments(node, call);
    check_defined(function);
    if (function.kind() == Kind::loop) return repeat(function.loop(), call);
    require(function.kind() == Kind::function, "a value of type '", function.type_name(),
            "' cannot be called");
    if (function.function().macro != nullptr) return call_macro(function.function(), call);
    call.self = function.function().self;
    return run_native(function.function().native, call);
  }

  /// A turn of a recursive loop over other values.
  [[nodiscard]] Value repeat(const Loop& loop, Call& call) {
    require(loop.node->recursive, "only a loop marked as recursive can be called");
    const Value& over = call.required("iterable");
    return captured([&] { run_loop(*loop.node, over, loop.outside, loop.depth + 1); });
  }

  [[nodiscard]] Value make_macro(const Node& node) {
    for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->kept = true;
    return Value::of(Function{.macro = &node, .scope = scope_});
  }

  [[nodiscard]] Value call_macro(const Function& macro, Call& call) {
    const Node& node = *macro.macro;
    const auto reads = [&](Symbol special) { return (node.specials >> special & 1) != 0; };
    return captured([&] {
      within(macro.scope, [&] {
        for (const Node* parameter : node.inputs) {
          const Value* value = call.next(parameter->value.text());
          const Node* otherwise = parameter->inputs[0];
          set(parameter->symbol, value       ? *value
                                 : otherwise ? evaluate(*otherwise)
                                             : Value::undefined(parameter->value));
        }
        if (reads(kCaller)) {
          const Value* caller = call.by_name("caller");
          set(kCaller, caller ? *caller : Value());
        }
        if (reads(kVarargs)) {
          const auto rest = call.positional.begin() + static_cast<std::ptrdiff_t>(call.num_taken);
          set(kVarargs, Value::of(List(rest, call.positional.end()), Kind::tuple));
          call.num_taken = call.positional.size();
        }
        if (reads(kKwargs)) {
          Dict rest;
          for (auto& [name, value] : call.named)
            if (!name.empty()) rest.emplace_back(Value::of(std::exchange(name, {})), value);
          set(kKwargs, Value::of(std::move(rest)));
        }
        call.finish();
        (void)run(node.body);
      });
    });
  }

  /// What a filter or a test makes of its first input.
  [[nodiscard]] Value apply(const Node& node) {
    Call call{.in = *this, .self = evaluate(*node.inputs[0])};
    evaluate_arguments(node, call);
    require(node.native != nullptr, "there is no ", node.type == Type::test ? "test" : "filter",
            " called '", node.value.text(), "'");
    return run_native(node.native, call);
  }

  const Tree& tree_;
  List top_;  // the template's own variables, by symbol
  Scope* scope_ = nullptr;
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_;
  std::string out_;
  std::size_t at_ = 0;  // what is being done, for messages
  int depth_ = 0;
};

}  // namespace nanovllm::jinja
