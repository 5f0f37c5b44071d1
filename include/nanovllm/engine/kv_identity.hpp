#pragma once
/// Whose keys and values are in a file.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/elements.hpp"

namespace nanovllm {

class Checkpoint;

/// Names and values that must be equal for the keys and values of one engine to be another's:
/// sizes, element types, the config and a hash over a part of every weight.
using KvIdentity = std::vector<std::pair<std::string, std::string>>;

/// Hashes of config.json, and of the tensors' names, sizes and some pages of each, at its
/// beginning, middle and end.
struct CheckpointHash {
  std::uint64_t config = 0;
  std::uint64_t weights = 0;
};
[[nodiscard]] CheckpointHash hash_of(const Checkpoint& checkpoint);

/// What an engine's weights are: noise, or those of a checkpoint.
using WeightsHash = std::variant<RandomWeights, CheckpointHash>;

/// An engine's element types by name.
struct ElementNames {
  std::string_view weight, activation, kv;

  template <class Elements>
  [[nodiscard]] static ElementNames of() {
    return {.weight = weight_format_name<typename Elements::Weight>(),
            .activation = name(kDType<typename Elements::Activation>),
            .kv = kv_format_name<typename Elements::KvElement>()};
  }
};

/// What the keys and values of an engine are of.
/// @param settings  of its model.
[[nodiscard]] KvIdentity kv_identity(const StepRunner& runner, const ElementNames& elements,
                                     const std::vector<ModelSetting>& settings,
                                     const WeightsHash& weights);

/// The same of an engine of `Policy`.
/// @param model  as the ranks divide it (`divided_model`). One whose order of sums depends on the
///               ranks says so: `ranks_in_sums(num_ranks)`, names and numbers.
template <class Policy, class ModelConfig>
[[nodiscard]] KvIdentity kv_identity(const ModelConfig& model, const StepRunner& runner,
                                     const WeightsHash& weights) {
  std::vector<ModelSetting> settings = model_settings(model);
  if constexpr (requires { model.ranks_in_sums(1); }) {
    for (const ModelSetting& more : model.ranks_in_sums(runner.num_ranks()))
      settings.push_back(more);
  }
  return kv_identity(runner, ElementNames::of<ElementsOf<Policy>>(), settings, weights);
}

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"

namespace nanovllm {

NANOVLLM_INLINE CheckpointHash hash_of(const Checkpoint& checkpoint) {
  constexpr std::size_t kSample = 4096;
  std::uint64_t hash = 0;
  const auto add = [&hash](const void* data, std::size_t size) { hash = XXH64(data, size, hash); };
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    add(tensor.name.data(), tensor.name.size());
    const std::span<const std::byte> data = tensor.data;
    const std::size_t size = data.size(), part = std::min(size, kSample);
    add(&size, sizeof size);
    for (const std::size_t at : {std::size_t{0}, (size - part) / 2, size - part})
      add(data.data() + at, part);
  }
  const std::string config = checkpoint.text("config.json").value_or("");
  return {.config = XXH64(config.data(), config.size(), 0), .weights = hash};
}

namespace detail {

/// Adds to `identity` what the weights are.
NANOVLLM_INLINE void append_weights(KvIdentity& identity, const WeightsHash& weights) {
  const auto hex = [](std::uint64_t value) {
    std::string out(16, '0');
    for (std::size_t i = 16; i-- > 0; value >>= 4) out[i] = "0123456789abcdef"[value & 15];
    return out;
  };
  if (const auto* noise = std::get_if<RandomWeights>(&weights)) {
    identity.emplace_back("weights", concat("noise of seed ", noise->seed));
    return;
  }
  const auto& checkpoint = std::get<CheckpointHash>(weights);
  identity.emplace_back("config.json", hex(checkpoint.config));
  identity.emplace_back("weights", hex(checkpoint.weights));
}

}  // namespace detail

NANOVLLM_INLINE KvIdentity kv_identity(const StepRunner& runner, const ElementNames& elements,
                                       const std::vector<ModelSetting>& settings,
                                       const WeightsHash& weights) {
  const KvShape shape = runner.kv_shape();
  KvIdentity out = {{"K/V layers", std::to_string(shape.num_layers)},
                    {"K/V heads", std::to_string(shape.num_kv_heads * runner.num_ranks())},
                    {"head_dim", std::to_string(shape.head_dim)},
                    {"type of K/V", std::string(elements.kv)},
                    {"type of weights", std::string(elements.weight)},
                    {"type of activations", std::string(elements.activation)}};
  for (const auto& [setting, value] : settings) out.emplace_back(setting, std::to_string(value));
  detail::append_weights(out, weights);
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
