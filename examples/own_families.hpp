#pragma once
/// Two families that the library does not have, for programs that take any checkpoint: Llama 3 and
/// Qwen2.5. Both are built as Qwen3 is; docs/adding_a_model.md goes through this file.

#include <nanovllm/io/json_fields.hpp>
#include <nanovllm/model/qwen3/qwen3.hpp>
#include <nanovllm/with/any/all_models.hpp>

namespace nanovllm::examples {

/// Llama 3, 3.1 and 3.2: no norm of heads, and positions that are stretched in its own way.
struct Llama {
  struct Config : Qwen3Config {
    static Config load(const Checkpoint& checkpoint) {
      Config out;
      const auto read_more = [](const JsonFields& fields, Problems& problems) {
        if (fields.boolean("mlp_bias") == true)
          problems.add("'mlp_bias' must be false: biases are not supported");
      };
      load_as_qwen3(checkpoint,
                    {.model_type = "llama", .class_prefix = "Llama", .rope = RopeType::llama3}, out,
                    read_more);
      return out;
    }
  };

  static constexpr ModelFamily kFamily{.model_type = "llama", .architecture = "LlamaForCausalLM"};
  static constexpr Qwen3Traits kTraits{.norms_heads = false};
  template <class Elements, class Backend, class Communicator>
  using Network = NetworkAsQwen3<kTraits, Elements, Backend, Communicator>;
};

/// Qwen2 and Qwen2.5: no norm of heads, but a bias of q, k and v.
struct Qwen2 {
  struct Config : Qwen3Config {
    static Config load(const Checkpoint& checkpoint) {
      Config out;
      load_as_qwen3(checkpoint, {.model_type = "qwen2", .class_prefix = "Qwen2"}, out);
      return out;
    }
  };

  static constexpr ModelFamily kFamily{.model_type = "qwen2", .architecture = "Qwen2ForCausalLM"};
  static constexpr Qwen3Traits kTraits{.norms_heads = false, .has_qkv_bias = true};
  template <class Elements, class Backend, class Communicator>
  using Network = NetworkAsQwen3<kTraits, Elements, Backend, Communicator>;
};

/// With the library's.
using AllAndOwnModels = JoinedModels<AllModels, Models<Llama, Qwen2>>;

}  // namespace nanovllm::examples
