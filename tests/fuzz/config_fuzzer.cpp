/// libFuzzer target: any two texts for config.json and generation_config.json, separated by a NUL,
/// are either a config, dense or of experts, within its stated ranges and with finite rotary
/// frequencies, or a ConfigError.
/// Build with clang++ -fsanitize=fuzzer,address,undefined.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/rope_scaling.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_integers.hpp"
#include "nanovllm/with/moe/qwen3_moe/config.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_ranges(nanovllm::Qwen3Config& config) {
  using Limits = nanovllm::ModelLimits;
  const auto check_size = [](std::int64_t size, std::int64_t limit) {
    require(size >= 1 && size <= limit);
  };
  check_size(config.hidden_size, Limits::kHiddenSize);
  check_size(config.num_hidden_layers, Limits::kNumLayers);
  check_size(config.num_attention_heads, Limits::kNumHeads);
  check_size(config.num_key_value_heads, Limits::kNumHeads);
  check_size(config.head_dim, Limits::kHeadDim);
  check_size(config.intermediate_size, Limits::kIntermediateSize);
  check_size(config.vocab_size, Limits::kVocabSize);
  check_size(config.max_position_embeddings, Limits::kNumPositions);
  require(nanovllm::num_parameters(config) <= Limits::kNumParameters);
  require(nanovllm::max_context_length(config) <= Limits::kRopeElements / config.head_dim);
  require(config.head_dim % 2 == 0);
  require(config.num_attention_heads % config.num_key_value_heads == 0);
  require(config.rms_norm_eps > 0 && config.rms_norm_eps < 1);
  for (const nanovllm::TokenId id : config.eos_token_ids)
    require(id >= 0 && id < config.vocab_size);
  if (config.generation.temperature) require(*config.generation.temperature >= 0);
  if (config.generation.top_p) require(*config.generation.top_p >= 0);

  for (const double frequency : nanovllm::rope_inv_freq(config.rope, config.head_dim))
    require(std::isfinite(frequency));
  const double factor = nanovllm::rope_attention_factor(config.rope);
  require(std::isfinite(factor) && factor > 0);
  require(nanovllm::max_context_length(config) >= config.max_position_embeddings);
  require(nanovllm::matches<nanovllm::shapes::qwen3_any>(config));
}

void check_experts(const nanovllm::Qwen3MoeConfig& config) {
  require(config.num_experts >= 1 && config.num_experts <= nanovllm::ModelLimits::kNumExperts);
  require(config.num_experts_per_tok >= 1 && config.num_experts_per_tok <= config.num_experts);
  require(config.moe_intermediate_size >= 1 && config.decoder_sparse_step >= 1);
  for (const std::int64_t layer : config.mlp_only_layers) {
    require(layer >= 0 && layer < config.num_hidden_layers);
    require(!config.is_sparse(layer));
  }
  require(nanovllm::num_parameters(config) <= nanovllm::ModelLimits::kNumParameters);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t split = std::min(text.find('\0'), size);
  const std::string_view rest = text.substr(split);
  const std::string_view generation = rest.empty() ? rest : rest.substr(1);
  try {
    auto config = nanovllm::Qwen3Config::from_json(text.substr(0, split), generation);
    check_ranges(config);
  } catch (const nanovllm::ConfigError&) {
  }
  try {
    auto config = nanovllm::Qwen3MoeConfig::from_json(text.substr(0, split), generation);
    check_ranges(config);
    check_experts(config);
  } catch (const nanovllm::ConfigError&) {
  }
  return 0;
}
