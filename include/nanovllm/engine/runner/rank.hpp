#pragma once
/// A rank: what it is made of, where its weights come from, and whether memory has room for them
/// and for its steps.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/step/executor.hpp"
#include "nanovllm/engine/step/rank_part.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/model_head.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/version.hpp"

namespace nanovllm {

/// Where the weights of a runner come from: a checkpoint, or noise.
struct WeightSource {
  const Checkpoint* checkpoint = nullptr;  ///< null for noise; outlives the start-up
  std::uint64_t seed = 0;                  ///< of the noise
  /// Hears of rank 0's bytes: how many have been read, of how many.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};

  /// Gives the weights of one rank their values. Throws LoadError for what the checkpoint lacks.
  template <class Weights, class Backend>
  void fill(Weights& weights, Backend& backend, int rank) const {
    if (checkpoint == nullptr) {
      weights.randomize(seed, backend);
    } else {
      weights.load(*checkpoint, backend, rank == 0 ? progress : decltype(progress){});
    }
  }
};

namespace detail {
void check_checkpoint_size(std::int64_t count, const Checkpoint& checkpoint);
void check_weight_memory(std::int64_t count, int element_bits, std::size_t available);
void check_step_memory(const char* setting, std::int64_t rows, const char* what,
                       std::int64_t row_bytes, std::int64_t num_sharing, std::size_t available);
}  // namespace detail

/// Throws LoadError when the checkpoint is too small for the weights. An integer of 32 bits may
/// hold eight packed ones, and a block as many as its format says; any other byte holds at most
/// one. A checkpoint that is larger, and lacks some, is left to `check_parameters`.
template <ModelConfigLike Config>
void check_checkpoint_size(const Config& model, const Checkpoint& checkpoint) {
  detail::check_checkpoint_size(least_num_parameters(model), checkpoint);
}

/// Throws ConfigError when the weights of `num_sharing` of `num_ranks` ranks, of `element_bits`
/// each, are more than the memory that these ranks share.
template <ModelConfigLike Config>
void check_weight_memory(const Config& model, int element_bits, int num_ranks, int num_sharing,
                         std::size_t available) {
  detail::check_weight_memory(least_num_parameters(model) / num_ranks * num_sharing, element_bits,
                              available);
}

/// Throws ConfigError when what every step within `limits` needs at the least, its logits and its
/// hidden states of `activation_bytes` an element, is more than the memory that `num_sharing` ranks
/// share.
template <ModelConfigLike Config>
void check_step_memory(const Config& model, const StepLimits& limits, std::int64_t activation_bytes,
                       int num_sharing, std::size_t available) {
  if (head_of(model) == ModelHead::tokens) {
    detail::check_step_memory("max_num_seqs", limits.max_num_seqs, "logits",
                              std::int64_t{sizeof(float)} * model.vocab_size, num_sharing,
                              available);
  }
  if constexpr (requires { std::int64_t{model.hidden_size}; }) {
    detail::check_step_memory("max_num_batched_tokens", limits.max_num_batched_tokens,
                              "hidden states", activation_bytes * model.hidden_size, num_sharing,
                              available);
  }
}

namespace detail {

/// A step that was begun: what ranks read of it, and keep if they hang, and why it failed.
struct BegunStep {
  std::shared_ptr<StepInputs> inputs;
  std::shared_ptr<SampleInputs> draws;
  std::exception_ptr error;
};

/// Two guards, made in their order and dropped in the reverse.
template <class First, class Second>
struct Entered {
  First first;
  Second second;
};
template <class First, class Second>
Entered(First, Second) -> Entered<First, Second>;

}  // namespace detail

/// One rank of this process, and its types, which the model and the policy decide.
template <class Model, class Policy>
struct Rank {
  using Config = typename Model::Config;
  using Elements = ElementsOf<Policy>;
  using KvElement = typename Elements::KvElement;
  using Stored = KvStored<KvElement>;
  using Backend = typename Policy::Backend;
  using Communicator = CommunicatorOf<Policy>;
  using Network = typename Model::template Network<Elements, Backend, Communicator>;
  using Pool = typename Policy::Tiers::Pools::template Pool<KvElement, Backend>;
  using Executor = ExecutorOf<Policy, Network, Backend, Pool>;

  Rank(const Config& model, const StepLimits& limits_in, std::int64_t max_blocks_in,
       std::unique_ptr<Backend> backend_in, Communicator& comm_in)
      : comm(comm_in),
        backend(std::move(backend_in)),
        network(model, limits_in, *backend, comm_in),
        limits(limits_in),
        max_blocks(max_blocks_in) {
    make_executor();
  }

  /// Makes what the policy adds.
  void make_part(const Config& model, const RunnerConfig& config, const BackendConfig& made_from) {
    if constexpr (kHasRankParts<Policy>)
      part = RankPartsOf<Policy>::make(*this, model, config, made_from);
  }

  void make_executor() { executor.emplace(network, *backend, limits, max_blocks); }

  /// While what it returns lives, the device is the current one and the communicator is held.
  [[nodiscard]] auto enter() {
    if constexpr (requires { comm.hold(); }) {
      return detail::Entered{backend->activate(), comm.hold()};
    } else {
      return backend->activate();
    }
  }

  /// Makes the pool, and what depends on where it is.
  void make_pool(const KvShape& shape, std::int32_t num_blocks, std::int32_t num_outside) {
    kv.emplace(shape, num_blocks, num_outside);
    if (part) part->set_num_blocks(num_blocks);
    executor->capture(*kv);
  }

  /// Bytes that a pool of `shape` may count on. See `Runner::available_memory`.
  [[nodiscard]] std::size_t measure_memory(const KvShape& shape) {
    Pool scratch(shape, 1);
    const std::size_t reserve = executor->profile_run(scratch);
    if (part) part->profile_run();
    const std::size_t free = backend->available_memory();
    const std::size_t left = free - std::min(free, reserve);
    if (!part) return left;
    const auto own = static_cast<std::size_t>(shape.block_bytes());
    return left / (own + static_cast<std::size_t>(part->block_bytes())) * own;
  }

  void launch(int slot, const StepInputs& inputs) {
    if constexpr (kHasRankParts<Policy>) {
      if (part) part->begin_step(inputs);
    }
    executor->launch(slot, inputs, *kv);
  }

  /// Calls `copy(backend, elements, byte offset in all ranks' copy, count)` for every layer of
  /// every block.
  template <class Copy>
  void for_each_tile(std::span<const BlockId> blocks, const Copy& copy) {
    const KvShape& shape = kv->shape();
    const auto bytes = static_cast<std::size_t>(shape.layer_bytes());
    std::size_t at = static_cast<std::size_t>(comm.rank() * shape.block_bytes()) * blocks.size();
    for (const BlockId block : blocks) {
      for (std::int64_t layer = 0; layer < shape.num_layers; ++layer, at += bytes)
        copy(*backend, kv->layer(layer).k(block, 0), at, bytes / sizeof(Stored));
    }
  }

  /// What must be the same in all processes of a group.
  [[nodiscard]] static std::vector<SharedSetting> shared_settings(const Config& model,
                                                                  const RunnerConfig& config) {
    constexpr std::int64_t kVersion = NANOVLLM_VERSION_MAJOR * 1'000'000 +
                                      NANOVLLM_VERSION_MINOR * 1'000 + NANOVLLM_VERSION_PATCH;
    std::vector<SharedSetting> out = {
        {"the version of nanovllm", kVersion},
        {"bits of a weight", kWeightBits<typename Elements::Weight>},
        {"bytes of an activation", sizeof(typename Elements::Activation)},
        {"bytes of a KV element", sizeof(Stored)},
        {"bytes of a KV scale", kKvScaleBytes<KvElement>},
        {"block_size", config.block_size},
        {"max_num_batched_tokens", config.limits.max_num_batched_tokens},
        {"max_model_len", config.limits.max_model_len},
        {"max_num_seqs", config.limits.max_num_seqs}};
    for (const auto& [name, value] : config.extras.shared()) out.push_back({name, value});
    for (const auto& [name, value] : model_settings(model)) out.push_back({name, value});
    return out;
  }

  Communicator& comm;
  std::unique_ptr<Backend> backend;
  Network network;
  StepLimits limits;
  std::int64_t max_blocks;
  std::optional<Pool> kv;
  std::unique_ptr<RankPart> part;    ///< what the policy adds, if anything
  std::optional<Executor> executor;  // last: graphs go before what they use
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/file_dtype.hpp"

namespace nanovllm {

namespace detail {

NANOVLLM_INLINE void check_checkpoint_size(std::int64_t count, const Checkpoint& checkpoint) {
  std::uint64_t held = 0;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const BlockFormat* const blocks = tensor.blocks;
    const std::uint64_t size = tensor.data.size();
    held += blocks != nullptr                ? size / blocks->bytes * blocks->elements
            : tensor.dtype == FileDType::i32 ? 2 * size
                                             : size;
  }
  check<LoadError>(static_cast<std::uint64_t>(count) <= held, "'", checkpoint.name(),
                   "': the sizes in config.json make a model of ", count,
                   " weights; the checkpoint holds ", checkpoint.total_bytes(),
                   " bytes, which are at most ", held, " weights");
}

NANOVLLM_INLINE void check_weight_memory(std::int64_t count, int element_bits,
                                         std::size_t available) {
  const std::int64_t needed = count / 8 * element_bits;
  check<ConfigError>(static_cast<std::uint64_t>(needed) <= available,
                     "the sizes in config.json make ", count, " weights, ", needed,
                     " bytes, for the ranks that share a memory; available there are ", available,
                     " bytes");
}

NANOVLLM_INLINE void check_step_memory(const char* setting, std::int64_t rows, const char* what,
                                       std::int64_t row_bytes, std::int64_t num_sharing,
                                       std::size_t available) {
  // Rows are fewer than 2^31: nothing overflows that ModelLimits allow.
  const std::int64_t needed = rows * row_bytes * num_sharing;
  check<ConfigError>(static_cast<std::uint64_t>(needed) <= available, setting, " = ", rows,
                     ": the ", what, " of a step take ", needed,
                     " bytes on the ranks that share a memory; available there are ", available,
                     " bytes");
}

}  // namespace detail

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
