#pragma once
/// The setting of an engine whose ranks have whole experts.

#include <string>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// One of `EngineConfig::extras`: the ranks divide the experts of a mixture of experts, and not
/// each expert's columns. A rank has whole ones, at least one. All else is divided without regard
/// to it. A ConfigError for other models; with one rank it changes nothing.
struct ExpertParallel {
  bool on = true;
  /// So many ranks that follow each other have the same experts and divide the columns of each.
  /// Divides `EngineConfig::tensor_parallel`, and "moe_intermediate_size".
  int tensor_parallel = 1;

  /// See Extras.
  [[nodiscard]] std::string unread() const {
    if (on) return "expert_parallel is set, but this model has no experts";
    if (tensor_parallel == 1) return {};
    return concat("expert_tensor_parallel = ", tensor_parallel, " needs expert_parallel");
  }
};

}  // namespace nanovllm
