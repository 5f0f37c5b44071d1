#pragma once
/// Runs the tree of a template.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/ast.hpp"
#include "nanovllm/chat/jinja/environment.hpp"
#include "nanovllm/chat/jinja/lexer.hpp"
#include "nanovllm/chat/jinja/operators.hpp"
#include "nanovllm/chat/jinja/text.hpp"
#include "nanovllm/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

class Interpreter : public Environment {
 public:
  Interpreter(const Tree& tree, const std::vector<std::pair<std::string, Value>>& variables)
      : tree_(tree), top_(tree.names.size()) {
    for (std::size_t i = 0; i < top_.size(); ++i) {
      top_[i] = Value(&tree.names[i]);
      if (const Native native = find_native(Natives::global, tree.names[i]))
        top_[i] = Value::of(Function{.native = native});
      for (const auto& [name, value] : variables)
        if (name == tree.names[i]) top_[i] = value;
      if (tree.names[i] == "loop") loop_symbol_ = static_cast<int>(i);
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

  [[nodiscard]] Value call(const Value& function, Arguments& arguments) {
    check_defined(function);
    if (function.kind() == Kind::loop) return repeat(function.loop(), arguments);
    check<RequestError>(function.kind() == Kind::function, "a value of type '",
                        function.type_name(), "' cannot be called");
    const Function& called = function.function();
    if (called.macro != nullptr) return call_macro(*called.macro, arguments);
    arguments.self = called.self;
    return call_native(called.native, arguments);
  }

 private:
  enum class Flow : std::uint8_t { next, leave_loop, next_turn };

  /// Counts how deeply nodes are nested while they run.
  struct Level {
    explicit Level(int& depth_in) : depth(depth_in) {
      check<RequestError>(depth < 500, "this nests too deeply, or calls itself without end");
      ++depth;
    }
    ~Level() { --depth; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    int& depth;
  };

  // Variables.

  [[nodiscard]] const Value& variable(int symbol) const {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent)
      for (const auto& [name, value] : scope->variables)
        if (name == symbol) return value;
    return top_[static_cast<std::size_t>(symbol)];
  }

  void set(int symbol, Value value) {
    if (scope_ == nullptr) {
      top_[static_cast<std::size_t>(symbol)] = std::move(value);
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
      check<RequestError>(space.kind() == Kind::space,
                          "a set with a dot needs a namespace(), got a value of type '",
                          space.type_name(), "'");
      return set_member(space.space(), target.text, std::move(value));
    }
    const std::vector<Value> parts = elements(value);
    check<RequestError>(parts.size() == target.inputs.size(), "expected ", target.inputs.size(),
                        " values to assign, got ", parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) assign(*target.inputs[i], parts[i]);
  }

  /// Runs `action` in a scope of its own.
  template <class Action>
  void within(Scope* parent, const Action& action) {
    Scope& scope = scopes_.take();
    scope.parent = parent;
    Scope* const outer = std::exchange(scope_, &scope);
    action();
    scope_ = outer;
    scopes_.give_back(scope);
  }

  /// What the node's body prints, in a scope of its own, through filters; null for none.
  [[nodiscard]] Value captured(const Node& node, const Node* filters) {
    std::string outer = std::exchange(out_, {});
    within(scope_, [&] { (void)run(node.body); });
    return filtered(filters, Value::of(std::exchange(out_, std::move(outer))));
  }

  // Statements.

  Flow run(const std::vector<Node*>& nodes) {
    const Level level(depth_);
    for (const Node* node : nodes) {
      const Flow flow = run(*node);
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  Flow run(const Node& node) {
    budget.charge(1);
    at_ = node.offset;
    switch (node.type) {
      case Type::text: append_text(out_, node.text, budget); break;
      case Type::output: append_str(out_, evaluate(*node.inputs[0]), budget); break;
      case Type::branch: return run(evaluate(*node.inputs[0]).truth() ? node.body : node.otherwise);
      case Type::loop: run_loop(node, evaluate(*node.inputs[1]), scope_, 1); break;
      case Type::set: assign(*node.inputs[0], evaluate(*node.inputs[1])); break;
      case Type::set_block: assign(*node.inputs[0], captured(node, node.inputs[1])); break;
      case Type::macro: set(node.symbol, make_macro(node)); break;
      case Type::call_block: append_str(out_, evaluate_call(*node.inputs[0], &node), budget); break;
      case Type::filter_block: append_str(out_, captured(node, node.inputs[0]), budget); break;
      case Type::scope: return run_scope(node);
      case Type::leave_loop: return Flow::leave_loop;
      default: return Flow::next_turn;
    }
    return Flow::next;
  }

  Flow run_scope(const Node& node) {
    std::vector<Value> values;
    for (std::size_t i = 1; i < node.inputs.size(); i += 2)
      values.push_back(evaluate(*node.inputs[i]));
    Flow flow = Flow::next;
    within(scope_, [&] {
      for (std::size_t i = 0; i < values.size(); ++i) assign(*node.inputs[2 * i], values[i]);
      flow = run(node.body);
    });
    return flow;
  }

  void run_loop(const Node& node, const Value& over, Scope* outside, int depth) {
    Loop& loop = loops_.take();
    loop.node = &node;
    loop.outside = outside;
    loop.depth = depth;
    loop.items = elements(over);
    if (node.inputs[2] != nullptr) {
      std::vector<Value> kept;
      for (Value& value : loop.items) {
        within(outside, [&] {
          assign(*node.inputs[0], value);
          if (evaluate(*node.inputs[2]).truth()) kept.push_back(std::move(value));
        });
      }
      loop.items = std::move(kept);
    }
    const std::size_t num_items = loop.items.size();
    Flow flow = Flow::next;
    for (loop.index = 0; flow != Flow::leave_loop && num_items > loop.index; ++loop.index) {
      within(outside, [&] {
        assign(*node.inputs[0], loop.items[loop.index]);
        if (loop_symbol_ >= 0) set(loop_symbol_, Value::of(&loop));
        flow = run(node.body);
      });
    }
    if (num_items == 0) within(outside, [&] { (void)run(node.otherwise); });
    loops_.give_back(loop);
  }

  [[nodiscard]] Value repeat(Loop& loop, Arguments& arguments) {
    check<RequestError>(loop.node->recursive, "only a loop marked as recursive can be called");
    const Value& over = arguments.required("iterable");
    std::string outer = std::exchange(out_, {});
    run_loop(*loop.node, over, loop.outside, loop.depth + 1);
    return Value::of(std::exchange(out_, std::move(outer)));
  }

  // Macros.

  [[nodiscard]] Value make_macro(const Node& node) {
    for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->kept = true;
    return Value::of(Function{.macro = &macros_.emplace_back(Macro{&node, scope_})});
  }

  [[nodiscard]] Value call_macro(const Macro& macro, Arguments& arguments) {
    const Node& node = *macro.node;
    std::string outer = std::exchange(out_, {});
    within(macro.scope, [&] {
      for (std::size_t i = 0; i < node.parameters.size(); ++i) {
        const Value* value = arguments.next(node.named[i].first);
        const Node* otherwise = node.named[i].second;
        set(node.parameters[i], value       ? *value
                                : otherwise ? evaluate(*otherwise)
                                            : Value(&node.named[i].first));
      }
      bind_rest(node, arguments);
      arguments.finish();
      (void)run(node.body);
    });
    return Value::of(std::exchange(out_, std::move(outer)));
  }

  /// `caller`, `varargs` and `kwargs`.
  void bind_rest(const Node& node, Arguments& arguments) {
    if (node.takes_caller) {
      const Value* caller = nullptr;
      for (const auto& [name, value] : arguments.named)
        if (name == "caller") caller = &value;
      if (caller != nullptr) ++arguments.num_named;
      set_named("caller", caller ? *caller : Value());
    }
    if (node.takes_varargs) {
      const auto& all = arguments.positional;
      const std::size_t used = std::min(node.parameters.size(), all.size());
      set_named(
          "varargs",
          Value::of(std::vector<Value>(all.begin() + static_cast<std::ptrdiff_t>(used), all.end()),
                    Sequence::tuple));
      arguments.num_taken = std::max(arguments.num_taken, all.size());
    }
    if (!node.takes_kwargs) return;
    std::vector<std::pair<Value, Value>> rest;
    for (const auto& [name, value] : arguments.named) {
      const bool known = std::any_of(node.named.begin(), node.named.end(),
                                     [key = name](const Named& one) { return one.first == key; });
      if (!known && name != "caller") rest.emplace_back(Value::of(name), value);
    }
    arguments.num_named += rest.size();
    set_named("kwargs", Value::of(std::move(rest)));
  }
  void set_named(std::string_view name, Value value) {
    const auto found = std::find(tree_.names.begin(), tree_.names.end(), name);
    set(static_cast<int>(found - tree_.names.begin()), std::move(value));
  }

  // Expressions.

  [[nodiscard]] Value evaluate(const Node& node) {
    budget.charge(1);
    const Level level(depth_);
    switch (node.type) {
      case Type::constant: return node.value;
      case Type::name: return evaluate_name(node);
      case Type::attribute: return evaluate_attribute(node);
      case Type::call: return evaluate_call(node, nullptr);
      case Type::filter:
      case Type::test: return applied(node, evaluate(*node.inputs[0]));
      case Type::logical_not: return Value::of(!evaluate(*node.inputs[0]).truth());
      case Type::logical_and:
      case Type::logical_or: {
        Value left = evaluate(*node.inputs[0]);
        return left.truth() == (node.type == Type::logical_or) ? left : evaluate(*node.inputs[1]);
      }
      case Type::conditional:
        if (evaluate(*node.inputs[1]).truth()) return evaluate(*node.inputs[0]);
        return node.inputs[2] ? evaluate(*node.inputs[2]) : Value();
      case Type::comparison: return evaluate_comparison(node);
      default: return evaluate_rest(node);
    }
  }

  [[nodiscard]] Value evaluate_rest(const Node& node) {
    std::vector<Value> inputs;
    inputs.reserve(node.inputs.size());
    for (const Node* input : node.inputs)
      inputs.push_back(input ? evaluate(*input) : Value::none());
    at_ = node.offset;
    switch (node.type) {
      case Type::item: return item(inputs[0], inputs[1]);
      case Type::slice: return slice(inputs, budget);
      case Type::negate: return binary(Op::subtract, Value::of(std::int64_t{0}), inputs[0], budget);
      case Type::plus: return binary(Op::add, Value::of(std::int64_t{0}), inputs[0], budget);
      case Type::binary: return binary(node.ops[0], inputs[0], inputs[1], budget);
      case Type::concat: {
        std::string out;
        for (const Value& value : inputs) append_str(out, value, budget);
        return Value::of(std::move(out));
      }
      case Type::list: return Value::of(std::move(inputs));
      case Type::tuple: return Value::of(std::move(inputs), Sequence::tuple);
      default: break;
    }
    std::vector<std::pair<Value, Value>> items;
    for (std::size_t i = 0; i < inputs.size(); i += 2) add_item(items, inputs[i], inputs[i + 1]);
    return Value::of(std::move(items));
  }

  [[nodiscard]] Value evaluate_name(const Node& node) {
    const Value& value = variable(node.symbol);
    if (value.kind() == Kind::loop) value.loop().kept = true;
    return value;
  }

  [[nodiscard]] Value evaluate_attribute(const Node& node) {
    const Node& object = *node.inputs[0];
    if (object.type == Type::name) {  // without a copy, and a loop is not kept
      const Value& value = variable(object.symbol);
      at_ = node.offset;
      return attribute(value, node.text, node.string_method, node.list_method, node.dict_method);
    }
    const Value value = evaluate(object);
    at_ = node.offset;
    return attribute(value, node.text, node.string_method, node.list_method, node.dict_method);
  }

  void evaluate_arguments(const Node& node, std::size_t first, Arguments& out) {
    for (std::size_t i = first; i < node.inputs.size(); ++i)
      out.positional.push_back(evaluate(*node.inputs[i]));
    for (const auto& [name, input] : node.named) {
      Value value = evaluate(*input);
      if (name == "*") {
        for (Value& element : elements(value)) out.positional.push_back(std::move(element));
      } else if (name == "**") {
        check<RequestError>(value.is_dict(), "'**' needs a dict, got ", value.type_name());
        for (const auto& [key, element] : value.dict().items) {
          const auto& kept = texts_.emplace_back(std::make_unique<std::string>(str(key, budget)));
          out.named.emplace_back(*kept, element);
        }
      } else {
        out.named.emplace_back(name, std::move(value));
      }
    }
    at_ = node.offset;
  }

  /// @param block  the call block whose body is the argument `caller`, or null.
  [[nodiscard]] Value evaluate_call(const Node& node, const Node* block) {
    const Node& callee = *node.inputs[0];
    Arguments arguments{.in = *this};
    if (callee.type == Type::attribute) {
      Value object = callee.inputs[0]->type == Type::name ? variable(callee.inputs[0]->symbol)
                                                          : evaluate(*callee.inputs[0]);
      const Native method = object.is_string() ? callee.string_method
                            : object.is_list() ? callee.list_method
                            : object.is_dict() ? callee.dict_method
                                               : nullptr;
      if (method != nullptr) {  // without a function that is bound to it
        arguments.self = std::move(object);
        evaluate_arguments(node, 1, arguments);
        return call_native(method, arguments);
      }
    }
    const Value function = evaluate(callee);
    evaluate_arguments(node, 1, arguments);
    if (block != nullptr) arguments.named.emplace_back("caller", make_macro(*block));
    return call(function, arguments);
  }

  /// `value` through the filters of a block; null for none.
  [[nodiscard]] Value filtered(const Node* node, Value value) {
    if (node == nullptr) return value;
    return applied(*node, filtered(node->inputs[0], std::move(value)));
  }

  /// What the filter or test of `node` makes of `value`.
  [[nodiscard]] Value applied(const Node& node, Value value) {
    Arguments arguments{.in = *this, .self = std::move(value)};
    evaluate_arguments(node, 1, arguments);
    check<RequestError>(node.native != nullptr, "there is no ",
                        node.type == Type::test ? "test" : "filter", " called '", node.text, "'");
    return call_native(node.native, arguments);
  }

  [[nodiscard]] Value evaluate_comparison(const Node& node) {
    Value left = evaluate(*node.inputs[0]);
    for (std::size_t i = 0; i < node.ops.size(); ++i) {
      Value right = evaluate(*node.inputs[i + 1]);
      at_ = node.offset;
      if (!holds(node.ops[i], left, right, budget)) return Value::of(false);
      left = std::move(right);
    }
    return Value::of(true);
  }

  const Tree& tree_;
  std::vector<Value> top_;  // the template's own variables, by symbol
  Scope* scope_ = nullptr;
  std::string out_;
  std::size_t at_ = 0;  // what is being done, for messages
  int depth_ = 0;
  int loop_symbol_ = -1;
  Pool<Scope> scopes_;
  Pool<Loop> loops_;
  std::deque<Macro> macros_;
};

}  // namespace nanovllm::jinja
