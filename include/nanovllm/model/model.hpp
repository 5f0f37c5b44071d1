#pragma once
/// What a model is to the engine: a type that knows its config.json, its network and its text.
///
/// The engine, the runner and the executors know these concepts and no model. docs/policies.md
/// shows how to write one; model/layers/ has the parts.

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/ops/elements.hpp"

namespace nanovllm {

class Checkpoint;

/// What text comes with the checkpoints of a model. Without a tokenizer prompts are token ids.
struct TextHints {
  bool has_tokenizer = true;      ///< tokenizer.json, if there is one
  bool has_chat_template = true;  ///< as chat/chat_template.hpp finds it
};

/// What config.json says of the checkpoints of a model. Models of one family differ in the sizes
/// that are fixed at compile time.
struct ModelFamily {
  std::string_view model_type;    ///< as "model_type"
  std::string_view architecture;  ///< among "architectures"
  /// Further architectures of the same decoder: with a head for labels, without a head.
  std::array<std::string_view, 2> others{};
};

/// What a model's `Config` must offer: what config.json says.
///
/// - `Config::load(checkpoint)`: reads it; throws LoadError or ConfigError.
/// - `vocab_size`; `eos_token_ids`, ascending; `generation`, of generation_config.json.
/// - `max_context_length(config)`, found by argument-dependent lookup: tokens of a sequence that
///   the model was made for.
template <class Config>
concept ModelConfigLike = std::copyable<Config> &&
    requires(const Config& config, const Checkpoint& checkpoint) {
  { Config::load(checkpoint) } -> std::convertible_to<Config>;
  { config.vocab_size } -> std::convertible_to<std::int64_t>;
  { config.eos_token_ids } -> std::convertible_to<std::vector<TokenId>>;
  { config.generation } -> std::convertible_to<GenerationConfig>;
  { max_context_length(config) } -> std::convertible_to<std::int64_t>;
};

namespace detail {

/// Names a template of three types.
template <template <class, class, class> class>
struct NetworkTemplate;

}  // namespace detail

/// The `Model` of `Engine<Model, Policy>`: a `Config`, and a template
/// `Network<Elements, Backend, Communicator>` that is a `NetworkLike`.
///
/// Where it has them, the engine also uses `Model::kText`, a TextHints, and
/// `settings_of(config)`, found by argument-dependent lookup: names and numbers that must be the
/// same in all processes of a group; and `num_parameters(config)`, found likewise: how many weights
/// the model has, or a little less. Sizes that neither the checkpoint nor the memory can hold are
/// refused by it. `config.head`, a ModelHead (model/model_head.hpp), says that a checkpoint gives
/// no tokens; `config.divide(extras)`, which takes what it knows of EngineConfig::extras; and
/// `Model::kRunsOn<Elements, Backend>`
/// (`runs_on`, with/any/registry.hpp), that a backend lacks what the model needs.
template <class M>
concept ModelLike = ModelConfigLike<typename M::Config> && requires {
  typename detail::NetworkTemplate<M::template Network>;
};

/// One rank's share of a model on a backend: its weights, its activations and the forward pass.
///
/// - a constructor from the config, StepLimits, the backend and the communicator, which outlive
///   it. It calls the backend's `reserve`, if its ops want that.
/// - `weights()`: what is filled before the first step, by `load(checkpoint, backend, progress)` or
///   `randomize(seed, backend)`.
/// - `num_layers()`, `num_kv_heads()` (of this rank), `head_dim()`: the shape of its KV cache.
/// - `vocab_size()`, and `padded_vocab_size()`, the columns that a matrix for its logits must have.
/// - `forward(in, kv, logits)`: computes the tokens of `in`, stores their K and V in `kv.layer(i)`,
///   and writes the logits of `in.logit_rows`, [m, padded_vocab_size()], of which the first
///   vocab_size() columns count. All ranks call this together and all get the same logits.
/// - `Activation`, `hidden_size()` and a fourth argument of `forward`, optional: the hidden states
///   of `in.hidden_rows` after the last norm, MatrixView<Activation> [h, hidden_size()], for
///   requests with a `Pooler`. The same on all ranks.
/// - `lm_head()`, optional: what a wing that draws from ranks' parts of the logits needs
///   (with/shards/step_sampler.hpp); without it, tokens are drawn from whole logits.
/// - `projections()`, optional: what a step multiplies by (ops/projections.hpp), for backends that
///   choose how to run it when the weights are there.
/// - `add_statistics(to, at_start)`, optional: adds what it has counted to `EngineStats::extras`,
///   but for what `at_start`, which it filled before the first request, has. Called from any
///   thread, while steps run.
template <class N, class Config, class Backend, class Communicator, class KvCache>
concept NetworkLike =
    std::constructible_from<N, const Config&, const StepLimits&, Backend&, Communicator&> &&
    requires(N& network, const N& cnetwork, Backend& backend, KvCache& kv, const Checkpoint& files,
             std::function<void(std::uint64_t, std::uint64_t)> progress) {
  typename N::Weights;
  { network.weights() } -> std::same_as<typename N::Weights&>;
  network.weights().load(files, backend, progress);
  network.weights().randomize(std::uint64_t{}, backend);
  { cnetwork.num_layers() } -> std::convertible_to<std::int64_t>;
  { cnetwork.num_kv_heads() } -> std::convertible_to<std::int64_t>;
  { cnetwork.head_dim() } -> std::convertible_to<std::int64_t>;
  { cnetwork.vocab_size() } -> std::convertible_to<std::int64_t>;
  { cnetwork.padded_vocab_size() } -> std::convertible_to<std::int64_t>;
  network.forward(ForwardBatch{}, kv, MatrixView<float>{});
};

/// `Model::kText`, or that there is everything.
template <class Model>
[[nodiscard]] constexpr TextHints text_hints_of() {
  if constexpr (requires { TextHints{Model::kText}; }) return Model::kText;
  return {};
}

/// A name and a number that must be the same in all processes of a group.
using ModelSetting = std::pair<const char*, std::int64_t>;

/// `settings_of(config)`, or the size of the vocabulary alone.
template <ModelConfigLike Config>
[[nodiscard]] std::vector<ModelSetting> model_settings(const Config& config) {
  if constexpr (requires { settings_of(config); }) {
    return settings_of(config);
  } else {
    return {{"vocab_size", static_cast<std::int64_t>(config.vocab_size)}};
  }
}

/// `num_parameters(config)`, or 0.
template <ModelConfigLike Config>
[[nodiscard]] std::int64_t least_num_parameters(const Config& config) {
  if constexpr (requires { std::int64_t(num_parameters(config)); }) {
    return num_parameters(config);
  } else {
    return 0;
  }
}

/// True if the `Config` of `M` is one; a compile error that names what is missing if not.
template <class M>
consteval bool check_model_config() {
  static_assert(
      requires { typename M::Config; }, "nanovllm: the Model must have a 'Config'");
  using Config = typename M::Config;
  static_assert(
      requires(const Checkpoint& c) { Config(Config::load(c)); },
      "nanovllm: the Model's Config must have a static 'load(checkpoint)'");
  static_assert(
      requires(const Config& c) { std::int64_t(c.vocab_size); },
      "nanovllm: the Model's Config must have 'vocab_size'");
  static_assert(
      requires(const Config& c) { std::vector<TokenId>(c.eos_token_ids); },
      "nanovllm: the Model's Config must have 'eos_token_ids'");
  static_assert(
      requires(const Config& c) { GenerationConfig(c.generation); },
      "nanovllm: the Model's Config must have 'generation', a GenerationConfig");
  static_assert(
      requires(const Config& c) { std::int64_t(max_context_length(c)); },
      "nanovllm: there must be a 'max_context_length(config)' beside the Model's Config");
  return true;
}

/// The same for all of `M`, with its network on this backend.
template <class M, class E, class Backend, class Communicator, class KvCache>
consteval bool check_model() {
  static_assert(check_model_config<M>());
  using Config = typename M::Config;
  static_assert(
      requires { typename M::template Network<E, Backend, Communicator>; },
      "nanovllm: the Model must have a template 'Network<Elements, Backend, "
      "Communicator>'");
  using N = typename M::template Network<E, Backend, Communicator>;
  static_assert(
      std::constructible_from<N, const Config&, const StepLimits&, Backend&, Communicator&>,
      "nanovllm: the Model's Network must be made from (config, StepLimits, backend, "
      "communicator)");
  static_assert(
      requires(N & n, Backend & b, const Checkpoint& files) {
        n.weights().load(files, b, std::function<void(std::uint64_t, std::uint64_t)>());
        n.weights().randomize(std::uint64_t{}, b);
      },
      "nanovllm: the Network's 'weights()' must have 'load(checkpoint, backend, progress)' and "
      "'randomize(seed, backend)'");
  static_assert(
      requires(const N& n) { n.num_layers() + n.num_kv_heads() + n.head_dim(); },
      "nanovllm: the Network must have 'num_layers()', 'num_kv_heads()' and 'head_dim()'");
  static_assert(
      requires(const N& n) { n.vocab_size() + n.padded_vocab_size(); },
      "nanovllm: the Network must have 'vocab_size()' and 'padded_vocab_size()'");
  static_assert(
      requires(N & n, KvCache & kv) { n.forward(ForwardBatch{}, kv, MatrixView<float>{}); },
      "nanovllm: the Network must have 'forward(inputs, kv, logits)'; see model/model.hpp");
  static_assert(ModelLike<M> && NetworkLike<N, Config, Backend, Communicator, KvCache>,
                "nanovllm: the Model is no 'ModelLike'; see model/model.hpp");
  return true;
}

}  // namespace nanovllm
