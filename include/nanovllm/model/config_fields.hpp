#pragma once
/// What the config.json of all models have in common.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/generation_config.hpp"

namespace nanovllm {

class JsonFields;
class Problems;

/// The largest sizes that are read from a config.json, far above any model there is. They keep a
/// hostile file from asking for all memory, and products of sizes from overflowing.
struct ModelLimits {
  static constexpr std::int64_t kHiddenSize = std::int64_t{1} << 17;
  static constexpr std::int64_t kNumLayers = 1 << 10;
  static constexpr std::int64_t kNumHeads = 1 << 10;
  static constexpr std::int64_t kHeadDim = 1 << 10;
  static constexpr std::int64_t kIntermediateSize = std::int64_t{1} << 20;
  static constexpr std::int64_t kNumExperts = 1 << 12;
  static constexpr std::int64_t kNumExpertsOfAllLayers = 1 << 16;
  static constexpr std::int64_t kVocabSize = std::int64_t{1} << 22;
  static constexpr std::int64_t kNumPositions = std::int64_t{1} << 26;
  /// The rotary table of all positions, YaRN's included: positions times head_dim.
  static constexpr std::int64_t kRopeElements = std::int64_t{1} << 33;
  /// All weights together.
  static constexpr std::int64_t kNumParameters = std::int64_t{1} << 42;
};

namespace detail {

/// The texts of config.json and of generation_config.json, which may be absent and is empty then.
struct ConfigTexts {
  std::string config;
  std::string generation;
  std::string source;  ///< path of config.json, for messages
};

/// Throws LoadError when config.json cannot be read.
[[nodiscard]] ConfigTexts read_config_texts(const Checkpoint& checkpoint);

/// Adds a problem unless "model_type" is `type`, or for weights that are quantised.
void check_model_type(const JsonFields& fields, std::string_view type, Problems& problems);

/// Adds a problem when a model has more weights than ModelLimits allow.
void check_num_parameters(std::int64_t count, Problems& problems);

/// Reads "dtype" (transformers 5.x) and "torch_dtype" (4.x), which must agree where both are given;
/// bfloat16 when there is neither.
[[nodiscard]] DType read_dtype(const JsonFields& fields, Problems& problems);

/// Reads generation_config.json, if `generation_text` is not empty, and the end tokens of both
/// files, which must be less than `vocab_size` where that is not 0.
void read_generation(const JsonFields& fields, std::string_view generation_text,
                     std::int64_t vocab_size, GenerationConfig& generation,
                     std::vector<TokenId>& eos_token_ids, Problems& problems);

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/model/quantization/quantization_config.hpp"

namespace nanovllm::detail {

NANOVLLM_INLINE ConfigTexts read_config_texts(const Checkpoint& checkpoint) {
  return {.config = checkpoint.required_text("config.json"),
          .generation = checkpoint.text("generation_config.json").value_or(""),
          .source = checkpoint.path_of("config.json")};
}

NANOVLLM_INLINE void check_model_type(const JsonFields& fields, std::string_view type,
                                      Problems& problems) {
  if (const Json* found = fields.find("model_type"); found == nullptr) {
    problems.add("'model_type' is missing");
  } else if (*found != Json(std::string(type))) {
    fields.wrong("model_type", concat('"', type, '"'), *found);
  }
  static_cast<void>(read_quantization(fields, problems));
}

NANOVLLM_INLINE void check_num_parameters(std::int64_t count, Problems& problems) {
  if (count > ModelLimits::kNumParameters) {
    problems.add("the sizes make a model of ", count, " weights; at most ",
                 ModelLimits::kNumParameters, " are supported");
  }
}

NANOVLLM_INLINE DType read_dtype(const JsonFields& fields, Problems& problems) {
  std::optional<DType> out;
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto text = fields.string(key);
    if (!text) continue;
    std::optional<DType> dtype;
    for (const DType known : {DType::float32, DType::float16, DType::bfloat16}) {
      if (*text == name(known)) dtype = known;
    }
    if (!dtype) {
      fields.wrong(key, "float32, float16 or bfloat16", *fields.find(key));
    } else if (out && *out != *dtype) {
      problems.add("'dtype' (", name(*out), ") and 'torch_dtype' (", name(*dtype), ") disagree");
    } else {
      out = dtype;
    }
  }
  return out.value_or(DType::bfloat16);
}

NANOVLLM_INLINE void read_generation(const JsonFields& fields, std::string_view generation_text,
                                     std::int64_t vocab_size, GenerationConfig& generation,
                                     std::vector<TokenId>& eos_token_ids, Problems& problems) {
  eos_token_ids = read_eos_token_ids(fields);
  if (!generation_text.empty()) {
    const auto json = parse_json_object<ConfigError>(generation_text, "generation_config.json");
    generation = read_generation_config(JsonFields(json, "generation_config.json: ", problems));
    merge_token_ids(generation.eos_token_ids, eos_token_ids);
  }
  if (vocab_size > 0 && !eos_token_ids.empty() && eos_token_ids.back() >= vocab_size) {
    problems.add("'eos_token_id' (", eos_token_ids.back(), ") must be less than 'vocab_size' (",
                 vocab_size, ")");
  }
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
