#pragma once
/// What making one constraint may cost, in memory and in work, and the order to stop it.

#include <cstddef>
#include <memory>
#include <stop_token>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// Making a constraint was stopped, because its request was cancelled.
struct CompileCancelled : Cancelled {
  using Cancelled::Cancelled;
};

/// Limits of the network that a grammar becomes.
struct GrammarLimits {
  std::size_t max_nodes = 500'000;                         ///< of all rules
  std::size_t max_terminal_bytes = std::size_t{64} << 20;  ///< of all automata
  std::size_t max_wide_bytes = std::size_t{5} << 20;       ///< of those that are wide
  std::size_t max_rule_depth = 100;                        ///< of rules within a terminal
};

/// Steps of work that are left. Work is counted and not timed, so that a constraint that is taken
/// once is always taken. A copy shares what is left. For one thread at a time; the stop may be
/// requested by any.
class CompileBudget {
 public:
  /// About 0.2 s of one core: what costs most for its steps, sets of states, takes 10 ns a step.
  static constexpr std::size_t kMaxSteps = 16'000'000;

  explicit CompileBudget(std::size_t max_steps = kMaxSteps, std::stop_token stop = {})
      : state_(std::make_shared<State>(State{max_steps, max_steps, 0, std::move(stop)})) {}

  /// Throws RequestError when fewer are left, and CompileCancelled soon after a stop was requested.
  void spend(std::size_t steps) const {
    State& state = *state_;
    if (steps > state.left) {
      state.left = 0;
      throw RequestError(concat("it takes too much work: more than ", state.max, " steps"));
    }
    state.left -= steps;
    state.unchecked += steps;
    if (state.unchecked < kStepsBetweenChecks) return;
    state.unchecked = 0;
    if (state.stop.stop_requested())
      throw CompileCancelled("making the constraint was stopped: its request has ended");
  }

  [[nodiscard]] std::size_t left() const { return state_->left; }

 private:
  static constexpr std::size_t kStepsBetweenChecks = 1 << 14;

  struct State {
    std::size_t max, left, unchecked;
    std::stop_token stop;
  };
  std::shared_ptr<State> state_;
};

}  // namespace nanovllm
