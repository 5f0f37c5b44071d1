#pragma once
/// Ranks that have whole experts: the setting of an engine, and the places of ranks that split both
/// matrices and experts.

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

/// Ranks of a mesh that talk to each other, in the order of their ranks in the group.
struct MeshGroup {
  int first = 0;   ///< its rank 0
  int stride = 1;  ///< from one to the next
  int size = 1;

  [[nodiscard]] constexpr int operator[](int i) const { return first + i * stride; }
};

/// A grid of `tensor` · `expert` ranks. The `tensor` ranks of a row have the same experts and split
/// the matrices; the `expert` ranks of a column have the same part of the matrices and split the
/// experts. Ranks of a row follow each other, so that they can be on one host.
struct Mesh {
  int tensor = 1;  ///< at least 1
  int expert = 1;  ///< at least 1

  [[nodiscard]] constexpr int size() const { return tensor * expert; }
  [[nodiscard]] constexpr int tensor_rank(int rank) const { return rank % tensor; }
  [[nodiscard]] constexpr int expert_rank(int rank) const { return rank / tensor; }

  /// The ranks that split matrices with `rank`: they differ in `tensor_rank`.
  [[nodiscard]] constexpr MeshGroup tensor_group(int rank) const {
    return {.first = rank - tensor_rank(rank), .stride = 1, .size = tensor};
  }
  /// The ranks that split experts with `rank`: they differ in `expert_rank`.
  [[nodiscard]] constexpr MeshGroup expert_group(int rank) const {
    return {.first = tensor_rank(rank), .stride = tensor, .size = expert};
  }

  friend constexpr bool operator==(const Mesh&, const Mesh&) = default;
};

/// Throws ConfigError unless both sizes are at least 1.
inline void validate(const Mesh& mesh) {
  check<ConfigError>(mesh.tensor >= 1 && mesh.expert >= 1,
                     "a mesh must have tensor >= 1 and expert >= 1, got ", mesh.tensor, " and ",
                     mesh.expert);
}

}  // namespace nanovllm
