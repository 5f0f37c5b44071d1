#pragma once
/// Weights of one tensor-parallel rank of a Qwen3 mixture of experts, and how they are filled.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/checkpoint_like.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/model/qwen3/weights.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/ops/weight_format.hpp"
#include "nanovllm/with/moe/expert_load.hpp"
#include "nanovllm/with/moe/ops.hpp"
#include "nanovllm/with/moe/qwen3_moe/config.hpp"

namespace nanovllm {

/// What is made of a checkpoint that has the matrices of all experts of a layer in one tensor, as
/// modules of transformers 5 have them: `mlp.experts.gate_up_proj`, [experts, 2 · width, hidden],
/// and `mlp.experts.down_proj`, [experts, hidden, width]. Here each expert has tensors of its own,
/// `experts.3.gate_proj.weight`, which refer to their parts of the others. Blocks of scales of
/// 8-bit floats are divided likewise. A CheckpointLike.
class SeparateExperts {
 public:
  explicit SeparateExperts(Checkpoint base) : base_(std::move(base)) {}

  [[nodiscard]] std::string name() const { return base_.name(); }
  [[nodiscard]] std::optional<std::string> text(std::string_view file) const {
    return base_.text(file);
  }
  /// Throws LoadError for a fused tensor of another shape.
  [[nodiscard]] std::vector<CheckpointTensor> read_tensors() const;

 private:
  Checkpoint base_;
};

/// `checkpoint`, with tensors of their own for the experts if they are fused.
[[nodiscard]] Checkpoint with_separate_experts(const Checkpoint& checkpoint);

/// What one rank has of a layer's experts.
struct ExpertShare {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t width = 0;  ///< of each
  int part = 0;            ///< of the columns of each: which one

  /// The same columns of all experts or, if `config.expert_parallel`, of experts that follow each
  /// other; two ranks differ by one expert at the most. Throws ConfigError where
  /// "moe_intermediate_size" or the ranks cannot be divided, or there are fewer experts than parts.
  ExpertShare(const Qwen3MoeConfig& config, int rank, int num_ranks) {
    // A `Mesh`: ranks of a group follow each other and have the same experts.
    const int columns = config.expert_parallel ? config.expert_tensor_parallel : num_ranks;
    check<ConfigError>(columns >= 1 && num_ranks % columns == 0,
                       "expert_tensor_parallel must divide tensor_parallel = ", num_ranks, ", got ",
                       columns);
    const int group = rank / columns, num_groups = num_ranks / columns;
    const std::int64_t all = config.num_experts;
    check<ConfigError>(all >= num_groups, "expert_parallel: each of the ", num_groups,
                       columns == 1 ? " ranks" : " groups of ranks",
                       " must have an expert, but num_experts = ", all);
    detail::RankShares shares(
        columns, config.expert_parallel ? "expert_tensor_parallel" : "tensor_parallel");
    width = shares.divide("moe_intermediate_size", config.moe_intermediate_size);
    shares.raise();
    part = rank % columns;
    first = first_expert_of(group, num_groups, all);
    count = first_expert_of(group + 1, num_groups, all) - first;
  }
};

/// What a rank has but for experts. Where all layers have these, "intermediate_size" is the size of
/// nothing, and ranks need not divide it. Throws what `ExpertShare` throws.
[[nodiscard]] inline RankSizes divide(const Qwen3MoeConfig& config, int rank, int num_ranks) {
  DecoderSizes all = sizes_of(config);
  if (num_sparse_layers(config) == config.num_hidden_layers) all.intermediate_size = 0;
  const RankSizes out = kQwen3Table.divide(all, rank, num_ranks);
  static_cast<void>(ExpertShare(config, rank, num_ranks));
  return out;
}

/// A layer: with a router and experts, or, where `experts` is empty, with the MLP of a dense Qwen3.
/// The router is not quantised: it has the elements of vectors, and all ranks have it whole. Ranks
/// divide every expert as they divide an MLP, or have whole ones (`ExpertShare`), and no others.
template <WeightFormat W, class Backend>
struct Qwen3MoeLayer : Qwen3LayerWeights<W, Backend> {
  static constexpr bool kIsDense = false;
  using Config = Qwen3MoeConfig;
  using Matrix = MatrixOf<Backend, W>;
  using Router = typename Backend::template Matrix<WeightElement<W>>;

  Qwen3MoeLayer(const Config& config, const RankSizes& sizes, std::int64_t layer)
      : Qwen3LayerWeights<W, Backend>(sizes.own),
        share(config, sizes.rank, sizes.num_ranks),
        expert_sizes(sizes) {
    const std::int64_t hidden = config.hidden_size, width = sizes.own.intermediate_size;
    expert_sizes.rank = share.part;
    expert_sizes.all.num_entries = config.num_experts;
    expert_sizes.all.intermediate_size = config.moe_intermediate_size;
    if (config.is_sparse(layer)) {
      router = Router(config.num_experts, hidden);
      experts = make_experts<Matrix>(share.count, hidden, share.width);
    } else {
      gate_up = Matrix(2 * width, hidden);
      down = Matrix(hidden, width);
    }
  }

  static Checkpoint with_own_tensors(const Checkpoint& checkpoint) {
    return with_separate_experts(checkpoint);
  }

  void list_mlp(auto& out, ModulePlace at) {
    if (experts.empty()) return this->list_gated(out, at, qwen3_modules::mlp, gate_up, down);
    at.sizes = expert_sizes;
    const std::span<const FamilyModule, 4> modules = qwen3_moe_modules::in_sparse_layer;
    out.add_matrix(at, modules[0], router);
    for (at.item = 0; at.item < at.sizes.all.num_entries; ++at.item) {
      const std::int64_t own = at.item - share.first;
      const bool is_here = own >= 0 && own < share.count;
      // Of another rank's there are no rows and no columns here; its tensors must be there.
      auto* const expert = is_here ? &experts[static_cast<std::size_t>(own)] : nullptr;
      at.sizes.own.intermediate_size = is_here ? share.width : 0;
      this->list_gated(out, at, modules.last<3>(), is_here ? expert->gate_up : gate_up,
                       is_here ? expert->down : down);
    }
  }

  ExpertShare share;
  RankSizes expert_sizes;         // of all experts and, where they are divided, this rank's part
  Matrix gate_up = Matrix(0, 0);  // [2 · intermediate, hidden]; empty if sparse
  Matrix down = Matrix(0, 0);     // [hidden, intermediate]; empty if sparse
  Router router = Router(0, 0);   // [experts, hidden]; empty if dense
  std::vector<Expert<Matrix>> experts{};  // each [2 · width, hidden] and [hidden, width]; own ones
};

/// The weights of a Qwen3 mixture of experts.
template <WeightFormat W, class Backend, KvFormat Kv>
using Qwen3MoeWeights = Qwen3WeightsOf<Qwen3MoeLayer<W, Backend>, W, Backend, Kv>;

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

namespace detail {

/// What the name of a fused tensor says.
struct FusedName {
  std::string_view experts;           ///< "model.layers.3.mlp.experts."
  std::vector<const char*> matrices;  ///< each has an equal part of the rows
  std::string_view suffix;            ///< ".weight", ".weight_scale_inv"
};

/// Nothing for other tensors.
[[nodiscard]] NANOVLLM_INLINE std::optional<FusedName> fused_name(std::string_view name) {
  constexpr std::string_view kModule = ".mlp.experts.";
  const std::size_t found = name.find(kModule);
  if (found == name.npos) return std::nullopt;
  FusedName out{.experts = name.substr(0, found + kModule.size()), .matrices = {}, .suffix = {}};
  std::string_view rest = name.substr(out.experts.size());
  for (const std::string_view matrix : {"gate_up_proj", "down_proj"}) {
    if (!rest.starts_with(matrix)) continue;
    if (matrix == "gate_up_proj") {
      out.matrices = {"gate_proj", "up_proj"};
    } else {
      out.matrices = {"down_proj"};
    }
    rest.remove_prefix(matrix.size());
    if (rest.starts_with(".weight")) rest.remove_prefix(7);
    constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kSuffixes{
        {{"", ".weight"}, {"_scale_inv", ".weight_scale_inv"}, {"_scale", ".weight_scale"}}};
    for (const auto& [fused, separate] : kSuffixes) {
      if (rest == fused) out.suffix = separate;
    }
    return out.suffix.empty() ? std::nullopt : std::optional(out);
  }
  return std::nullopt;
}

/// Adds the parts of `fused`, [experts, rows, columns].
NANOVLLM_INLINE void add_experts(const Checkpoint& checkpoint, const CheckpointTensor& fused,
                                 const FusedName& name, std::vector<CheckpointTensor>& out) {
  constexpr std::uint64_t kMostExperts = 1 << 12;  // each becomes a tensor with a name
  const std::uint64_t parts = name.matrices.size();
  const bool fits = fused.shape.size() == 3 && !fused.data.empty() &&
                    fused.shape[0] <= kMostExperts && fused.shape[1] % parts == 0;
  check<LoadError>(fits, "'", checkpoint.name(), "': the tensor '", fused.name,
                   "' must be [experts, rows, columns], of at most ", kMostExperts,
                   parts == 2 ? " experts and with an even number of rows, got " : " experts, got ",
                   shape_string(fused.shape));
  const std::size_t size = fused.data.size() / fused.shape[0] / parts;
  std::size_t begin = 0;
  for (std::uint64_t e = 0; e < fused.shape[0]; ++e) {
    for (const char* const matrix : name.matrices) {
      CheckpointTensor part = fused;
      part.name = concat(name.experts, e, ".", matrix, name.suffix);
      part.shape = {fused.shape[1] / parts, fused.shape[2]};
      part.data = fused.data.subspan(begin, size);
      out.push_back(std::move(part));
      begin += size;
    }
  }
}

}  // namespace detail

NANOVLLM_INLINE std::vector<CheckpointTensor> SeparateExperts::read_tensors() const {
  std::vector<CheckpointTensor> out;
  for (const CheckpointTensor& tensor : base_.tensors()) {
    if (const auto name = detail::fused_name(tensor.name)) {
      detail::add_experts(base_, tensor, *name, out);
    } else {
      out.push_back(tensor);
    }
  }
  return out;
}

NANOVLLM_INLINE Checkpoint with_separate_experts(const Checkpoint& checkpoint) {
  const auto is_fused = [](const CheckpointTensor& tensor) {
    return detail::fused_name(tensor.name).has_value();
  };
  if (std::ranges::none_of(checkpoint.tensors(), is_fused)) return checkpoint;
  return Checkpoint(SeparateExperts(checkpoint), checkpoint);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
