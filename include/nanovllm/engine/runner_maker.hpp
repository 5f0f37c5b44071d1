#pragma once
/// What computes steps, compiled in this file.

#include <memory>

#include "nanovllm/engine/compiled.hpp"
#include "nanovllm/engine/runner/runner.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/engine/setup.hpp"
#include "nanovllm/model/shape.hpp"

namespace nanovllm {

/// What computes the steps of an engine of `Model`. `Policy` is a `RunnerPolicyOf`: where the
/// library has an engine that differs in scheduling, preemption, cache, processors or block size
/// alone, neither the runner nor the backend is compiled again.
template <class Model, class Policy>
struct RunnerMaker {
  /// Allocates everything but the KV pool, and fills the weights.
  [[nodiscard]] static std::unique_ptr<StepRunner> make(const ConfigOf<Model>& model,
                                                        const RunnerSetup& setup) {
    return std::make_unique<Runner<Model, Policy>>(model, setup.config, setup.weights);
  }

  [[nodiscard]] static BackendTraits traits() {
    using Backend = typename Policy::Backend;
    return {.is_asynchronous = Backend::kAsynchronous,
            .kv_share = Backend::kKvShare,
            .default_batched_tokens = Backend::kDefaultBatchedTokens};
  }
};

}  // namespace nanovllm
