#pragma once
/// Ops that a backend need not have, because others together do the same.

#include "nanovllm/ops/backend.hpp"

namespace nanovllm {

/// Runs `args` by the backend's own op where it has one, or else by `compose(args, run)`: the ops
/// that its contract says it is made of.
template <class B, class Args>
void run_or_compose(B& backend, const Args& args) {
  if constexpr (RunsOp<B, Args>) {
    backend.run(args);
  } else {
    validate(args);
    compose(args, [&](const auto& part) { backend.run(part); });
  }
}

}  // namespace nanovllm
